"""RocksStore: a KeyValueStore on RocksDB, one database per task directory.

The only module that uses rocksdict, in its raw mode: bytes in, bytes out, nothing pickled. There is
no write-ahead log, because the changelog is one; a crash loses the latest writes and never a part
of one, so the changelog offset in the store tells what to replay. `DirectoryLock` is a kernel lock
on a file of the directory, which ends with its holder however that ends. Sorted files are RocksDB's
SST files, which a store takes over at the cost of a rename. Rules of the module: an error of
RocksDB is raised as an error of ours that names the directory and says what to do; state on disk
can always be deleted, because the changelog restores it; a lock on a directory that was removed
meanwhile does not count. A store that is first filled with many keys (`begin_filling`) puts them
into unsorted buffers, each sorted once on its way to the disk: a fifth of the time of sorted
buffers (measured). Not done here: when to flush, snapshots, encryption, and holders on other
machines.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Self, cast
from weakref import WeakSet

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DataBlockIndexType,
    DbClosedError,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from streamlog.errors import (
    CorruptData,
    LogDirectoryError,
    LogDirectoryFailed,
    LogDirectoryLocked,
    StreamlogError,
    UsageError,
)
from streamlog.tables.state.store_transaction import MEMORY_BYTES, CacheBudget, WaitingBudget
from streamlog.tables.stores.store import Change

OWNER_FILE = "owner"
"""The file in the directory that is locked."""


class DirectoryLock:
    """A lock on a directory, held from `acquire` until `release`."""

    __slots__ = ("_file",)

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def acquire(cls, path: str) -> Self:
        """Lock the directory `path`.

        Raises:
            LogDirectoryLocked: it is locked, by this or another process.
            LogDirectoryError: it does not exist, or can't be written.
        """
        name = f"{path}/{OWNER_FILE}"
        try:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LogDirectoryError(
                f"the state directory {path} can't be used: {error.strerror}; choose another one "
                "or change its permissions"
            ) from error
        try:
            # 1. This opening opens the file; the holder of the lock removes the directory and
            #    releases the lock.
            # 2. The lock is free now, but on a file that has no name any more: another opening may
            #    create the directory again and lock a new file.
            # 3. So the lock counts only if the name still leads to the locked file.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_there = os.path.samestat(os.fstat(file), os.stat(name))  # noqa: PTH116 - text here
        except OSError as error:
            os.close(file)
            raise LogDirectoryLocked(
                f"the state directory {path} is in use by another worker or task: stop that one, "
                f"or give this one a directory of its own ({error.strerror})"
            ) from error
        if not is_there:
            os.close(file)
            raise LogDirectoryLocked(f"the state directory {path} is being removed")
        return cls(file)

    def release(self) -> None:
        """Release the lock; a second call is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


WRITE_BUFFER_BYTES = 16 * 1024 * 1024
"""A task's writes reach the disk in pieces of this size, or when `persist` is called."""

BLOOM_BITS_PER_KEY = 10
"""One look-up in a hundred for an absent key reads a block in vain; costs 1.25 bytes per key."""

MEMTABLE_FILTER_SHARE = 0.02
"""The part of a write buffer that is a filter: ten bits per key, for small aggregates."""

READ_KEYS_MAX = 2_000
"""Keys per read, which lets other threads run meanwhile. Together, a key takes half of what it
takes alone (measured)."""

INDEX_BLOCK_BYTES = 32 * 1024
"""Filters and indexes are cached in blocks of about this size. RocksDB looks up 32 keys at a time,
in their order, and a block once for all of them that it has. Among 5 million rows, 2,000 keys of a
batch share such blocks, and hardly share any of 4 KiB: a fifth of all look-ups' time (measured)."""

HASHED_KEYS_RATIO = 0.75
"""A block has a hash table of its keys, so full: a look-up finds its row in the block without a
binary search. Blocks take a fifth more on disk (measured)."""

TABLES_MAX = 8
"""The number of flushed buffers from which on RocksDB merges them with older rows. If updates are
spread over all keys, each merge rewrites all rows: with 8 in place of RocksDB's 4, a record takes a
third less of RocksDB's threads (measured). Each buffer more costs a look-up one more filter."""

FILLING_BUFFERS_MAX = 4
"""Write buffers of a store that is being filled. With two, a write sometimes waits for the disk
while it holds the interpreter's lock: up to 95 ms measured, and 9 ms with four."""

FILLING_TABLES_MAX = 20
"""The number of flushed buffers from which on RocksDB merges them, 300 MiB in all. Merging took as
long as all other work of the filling (measured), and can wait until the task runs. A larger number
would leave too many files for reads to search."""

OPEN_FILES_MAX = 128
"""Open files per task: a worker with a hundred tasks stays below the usual limits of a machine."""

DAMAGED_FILE = "damaged"
"""The name of a file that marks a store in which a read failed: the next owner of the task does not
take over its files."""

LOG_FILES_KEPT = 2
"""The number of RocksDB's own event logs to keep: the one of this run and the one before."""

SIZES = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")

RocksError = Exception
"""The class of errors that rocksdict raises: it has none of its own. Each caller converts them."""


class RocksBudget:
    """The memory that all stores of one process share, bounded in bytes.

    Half of it belongs to RocksDB: one cache for blocks, indexes and filters, of which the write
    buffers take up to half. A quarter is for values that tasks cache, and a quarter for commits
    that are not written to the stores yet. One task may not use all of the third part: what is left
    is lent to RocksDB's cache, where a row takes a fifth of the memory that it takes as an object.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        """`memory_bytes` is the total."""
        rocksdb_bytes = memory_bytes // 2
        # 1. A look-up asks the cache for three blocks: filter, index, and row. In a cache that
        #    evicts what was used longest ago, each takes a lock and moves the block in a list.
        # 2. This one only marks the block. It has no bound on the size of its table, as the last
        #    argument is 0.
        # 3. As large as it may become: this decides on the number of its parts.
        cache = self.cache = Cache.new_hyper_clock_cache(rocksdb_bytes + memory_bytes // 4, 0)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            rocksdb_bytes // 2, allow_stall=False, cache=cache
        )
        self.caches = CacheBudget(
            memory_bytes // 4, lend=lambda rest: cache.set_capacity(rocksdb_bytes + rest)
        )
        self.waiting = WaitingBudget(memory_bytes // 4)


class RocksStore:
    """A KeyValueStore in a directory of its own, locked while it is open.

    Use `RocksStore.open`.
    """

    __slots__ = (
        "_budget", "_closed", "_database", "_is_filling", "_lock", "_path", "_scans", "_unlogged",
        "_write_buffer_bytes", "written_bytes",
    )  # fmt: skip

    written_bytes: int
    """The size of keys and values written since the store was opened."""

    def __init__(
        self, path: str, budget: RocksBudget, *, write_buffer_bytes: int, lock: DirectoryLock
    ) -> None:
        self._path = path
        self._budget = budget
        self._write_buffer_bytes = write_buffer_bytes
        self._lock = lock
        self.written_bytes = 0
        self._closed = self._is_filling = False
        self._database = self._opened()
        # An open iterator keeps the database, and its lock, alive: `close` has to end iterators.
        self._scans: WeakSet[Generator[tuple[bytes, bytes], None, None]] = WeakSet()
        self._unlogged = WriteOptions()
        # The stub declares a method, the library has a property.
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]

    @classmethod
    def open(
        cls,
        path: str,
        *,
        budget: RocksBudget | None = None,
        write_buffer_bytes: int = WRITE_BUFFER_BYTES,
        lock: DirectoryLock | None = None,
    ) -> RocksStore:
        """Open the state in the directory `path`, which is created if it does not exist.

        `budget` is shared with the other stores of the process; without it the store has the
        default budget for itself. A `lock` that is already held is released by `close`.

        Raises:
            LogDirectoryLocked: another task, in this or another process, has it open.
            CorruptData: the files are damaged; the message says what to do.
            LogDirectoryError: the directory can't be created, read or written.
        """
        make_directory(path)
        held = DirectoryLock.acquire(path) if lock is None else lock
        try:
            return cls(
                path, budget or RocksBudget(), write_buffer_bytes=write_buffer_bytes, lock=held
            )
        except BaseException:
            # A lock that the caller acquired stays with the caller, which may try again.
            if lock is None:
                held.release()
            raise

    def begin_filling(self) -> None:
        """Prepare for many writes and no reads: until `end_filling` a read is very slow."""
        self._reopen(is_filling=True)

    def end_filling(self) -> None:
        """Write everything to disk, and become an ordinary store again."""
        if self._is_filling:
            self._reopen(is_filling=False)

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None if there is none."""
        try:
            value: bytes | None = self._database.get(key)
        except RocksError as error:
            raise _explain(error, self._path) from error
        return value

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key; None for a key that has none."""
        found: list[bytes | None] = []
        try:
            for start in range(0, len(keys), READ_KEYS_MAX):
                several = list[str | int | float | bytes | bool](
                    keys[start : start + READ_KEYS_MAX]
                )
                # The stub declares one value, the library returns a list for a list.
                found += cast("list[bytes | None]", self._database.get(several))
        except RocksError as error:
            raise _explain(error, self._path) from error
        return found

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self.write([(key, value)])

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self.write([(key, None)])

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the current keys from `low` up to but not including `high`, in order."""
        options = ReadOptions()
        if high is not None:
            if high <= low:
                return iter(())
            options.set_iterate_upper_bound(high)
        try:
            items = self._database.items(from_key=low, read_opt=options)
        except RocksError as error:
            raise _explain(error, self._path) from error
        # In raw mode every key and value is bytes.
        pairs = cast("Iterator[tuple[bytes, bytes]]", items)
        scan = _scan(self._database, self._path, pairs, (low, high, options))
        self._scans.add(scan)
        return scan

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`."""
        try:
            if high is None:
                # RocksDB deletes up to an excluded key: take the smallest key after the last one.
                last = cast("bytes | None", next(self._database.keys(backwards=True), None))
                high = low if last is None else last + b"\x00"
            if low < high:
                self._database.delete_range(low, high, self._unlogged)
        except RocksError as error:
            raise _explain(error, self._path) from error

    def write(self, changes: Iterable[Change]) -> None:
        """Apply the changes in their order, as one write of RocksDB."""
        batch = WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self.written_bytes += batch.size_in_bytes()
        try:
            self._database.write(batch, self._unlogged)
        except RocksError as error:
            raise _explain(error, self._path) from error

    def persist(self) -> None:
        """Begin to write what is in memory to disk; RocksDB does so in the background."""
        try:
            self._database.flush(wait=False)
        except RocksError as error:
            raise _explain(error, self._path) from error

    @property
    def size_bytes(self) -> int:
        """The size of the state in files and in write buffers; 0 after `close`."""
        if self._closed:
            return 0
        try:
            return sum(self._database.property_int_value(name) or 0 for name in SIZES)
        except RocksError as error:
            raise _explain(error, self._path) from error

    def checkpoint(self, path: str) -> None:
        """Write the store's content to a new directory `path`, with links to existing files.

        The directory is complete or absent; the store stays open, and may be written meanwhile.

        Raises:
            LogDirectoryError: the directory already exists, or can't be created.
        """
        try:
            # Flush first: this lets other threads run; a flush inside the checkpoint does not.
            self._database.flush()
            Checkpoint(self._database).create_checkpoint(path)
        except RocksError as error:
            raise _explain(error, self._path) from error

    def replace(self, paths: Sequence[str], changes: Iterable[Change]) -> None:
        """Replace all rows by those of sorted files and these changes, on disk.

        Args:
            paths: files of `write_sorted` with disjoint keys, which are copied.
            changes: applied on top of them.

        Raises:
            CorruptData: a file can't be read.
        """
        self.delete_range(b"")
        try:
            # Without this, the deletion would be newer than the rows of the files.
            self._database.flush()
            if paths:
                self._database.ingest_external_file([*paths])
        except RocksError as error:
            raise CorruptData(f"sorted files can't be added to {self._path}: {error}") from error
        self.write(changes)
        try:
            self._database.flush()
        except RocksError as error:
            raise _explain(error, self._path) from error

    def close(self) -> None:
        """Write what is in memory to disk, end open scans, and release the directory."""
        if self._closed:
            return
        self._closed = True
        try:
            self._close_database()
        finally:
            # Last: the next owner must not open files that are still being written.
            self._lock.release()

    def _opened(self) -> Rdict:
        options = _options(self._budget, self._write_buffer_bytes, is_filling=self._is_filling)
        try:
            # For a family that is not named here, rocksdict uses the options stored by the last
            # opening, which lack the shared cache and the filters.
            return Rdict(self._path, options, column_families={"default": options})
        except RocksError as error:
            raise _explain(error, self._path) from error

    def _reopen(self, *, is_filling: bool) -> None:
        if self._closed:
            raise _closed_error(self._path)
        self._close_database()
        self._is_filling = is_filling
        try:
            self._database = self._opened()
        except StreamlogError:
            self._closed = True
            self._lock.release()
            raise

    def _close_database(self) -> None:
        for scan in list(self._scans):
            scan.close()
        try:
            self._database.flush()
        except RocksError as error:
            raise _explain(error, self._path) from error
        finally:
            self._database.close()


def make_directory(path: str) -> None:
    """Create a directory and its parents, if it does not exist.

    Raises:
        LogDirectoryError: it can't be created.
    """
    try:
        os.makedirs(path, exist_ok=True)  # noqa: PTH103 - a path is text in all of the engine
    except OSError as error:
        raise LogDirectoryError(
            f"the state directory {path} can't be created: {error.strerror}; choose another one or "
            "change its permissions"
        ) from error


def _scan(
    database: Rdict,
    path: str,
    pairs: Iterator[tuple[bytes, bytes]],
    bounds: tuple[bytes, bytes | None, ReadOptions],
) -> Generator[tuple[bytes, bytes], None, None]:
    # RocksDB reads the bound from the caller's bytes as long as it iterates, and rocksdict does not
    # keep them alive: without a reference here, the memory is reused and the scan ends anywhere.
    low, _, options = bounds
    last: bytes | None = None
    try:
        for pair in pairs:
            last = pair[0]
            yield pair
        # The scan ends silently at an unreadable block, as it does at the last key: check which.
        probe = database.iter(options)
        probe.seek(low if last is None else last)
        if last is not None and probe.valid():
            probe.next()
        probe.status()
    except RocksError as error:
        raise _explain(error, path) from error


def _options(budget: RocksBudget, write_buffer_bytes: int, *, is_filling: bool) -> Options:
    table = _table_options()
    table.set_block_cache(budget.cache)
    # Without this, each open table has its own in memory without a bound.
    table.set_cache_index_and_filter_blocks(v=True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(v=True)
    table.set_pin_top_level_index_and_filter(v=True)
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_write_buffer_manager(budget.write_buffers)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_keep_log_file_num(LOG_FILES_KEPT)
    # A store has one writer, and vector buffers (below) don't take concurrent writes.
    options.set_allow_concurrent_memtable_write(allow=False)
    # Most keys that are looked up are in no write buffer: without a filter, each search of one
    # walks its list in vain, which took a sixth of a task's time (measured).
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_FILTER_SHARE)
    options.set_memtable_whole_key_filtering(whole_key_filter=True)
    options.set_level_zero_file_num_compaction_trigger(TABLES_MAX)
    if is_filling:
        options.set_memtable_factory(MemtableFactory.vector())
        options.set_max_write_buffer_number(FILLING_BUFFERS_MAX)
        options.set_level_zero_file_num_compaction_trigger(FILLING_TABLES_MAX)
        options.set_level_zero_slowdown_writes_trigger(2 * FILLING_TABLES_MAX)
        options.set_level_zero_stop_writes_trigger(3 * FILLING_TABLES_MAX)
    return options


def _table_options() -> BlockBasedOptions:
    """Return the format of tables, in files of a store and in sorted files."""
    table = BlockBasedOptions()
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    # In blocks, not whole:
    # 1. A table of 4 million keys has a filter of 5 MB, and all tasks of a worker share a cache of
    #    some 100 MB.
    # 2. What the cache can't hold is dropped after use: each look-up would read the whole filter
    #    again, and take 200 us (measured) instead of 8.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(size=True)
    table.set_metadata_block_size(INDEX_BLOCK_BYTES)
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(HASHED_KEYS_RATIO)
    return table


def _closed_error(path: str) -> UsageError:
    return UsageError(f"the store in {path} is closed: its task has ended")


def _explain(error: Exception, path: str) -> StreamlogError:
    """Convert an error of RocksDB, whose kind shows only in the first words of its text."""
    text = " ".join(str(error).split())
    if isinstance(error, DbClosedError):
        return _closed_error(path)
    if text.startswith("Corruption") or "While opening a file" in text:
        with suppress(OSError), open(f"{path}/{DAMAGED_FILE}", "w") as file:  # noqa: PTH123 - text
            file.write(text)
        return CorruptData(
            f"the state in {path} is damaged: restart, the changelog restores it ({text})"
        )
    return LogDirectoryFailed(f"the state directory {path} can't be used: {text}")


SortedPair = tuple[bytes, bytes]


def write_sorted(
    first: SortedPair, more: Iterator[SortedPair], path: str, *, file_bytes: int
) -> int:
    """Write rows to a new file, until it is full or there are no more; returns their number.

    Args:
        first: the first row; a file can't be empty.
        more: the rows after it, by strictly ascending key; the rest belongs to the next file.
        path: of the file.
        file_bytes: the size from which on the file is full.

    Raises:
        LogDirectoryFailed: the disk fails, or the rows are not sorted.
    """
    writer = _Writer(path)
    writer.add(first)
    while writer.size_bytes < file_bytes and (pair := next(more, None)) is not None:
        writer.add(pair)
    writer.finish()
    return writer.rows


def read_sorted(path: str) -> Iterator[SortedPair]:
    """Iterate over the rows of a file, in the order of their keys. The file is unchanged.

    Raises:
        CorruptData: the file is damaged.
    """
    scratch = tempfile.mkdtemp(prefix="streamlog-")
    try:
        store = Rdict(scratch, Options(raw_mode=True))
        try:
            store.ingest_external_file([path])
            yield from store.items()
        finally:
            store.close()
    except RocksError as error:
        raise CorruptData(f"the sorted file {path} can't be read: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_secondary(path: str, scratch: str) -> Iterator[SortedPair]:
    """Iterate over the rows of a database, reserved ones included, as another process may have it.

    Nothing in its directory is locked or written. Rows that its owner has not flushed are missing.

    Args:
        path: the directory of the database.
        scratch: an empty directory for the files of this reader.

    Raises:
        CorruptData: the database is damaged, or its owner has removed it meanwhile.
    """
    try:
        store = Rdict(path, Options(raw_mode=True), access_type=AccessType.secondary(scratch))
        try:
            yield from store.items()
        finally:
            store.close()
    except RocksError as error:
        raise CorruptData(f"the state in {path} can't be read: {error}") from error


class _Writer:
    """Writes one sorted file."""

    def __init__(self, path: str) -> None:
        self.rows = self.size_bytes = 0
        self._path = path
        options = Options(raw_mode=True)
        # A store serves rows from such a file until a compaction rewrites them.
        options.set_block_based_table_factory(_table_options())
        self._writer = SstFileWriter(options)
        try:
            self._writer.open(path)
        except RocksError as error:
            raise self._failed(error) from error

    def add(self, pair: SortedPair) -> None:
        key, value = pair
        try:
            self._writer[key] = value
        except RocksError as error:
            raise self._failed(error) from error
        self.rows += 1
        self.size_bytes += len(key) + len(value)

    def finish(self) -> None:
        try:
            self._writer.finish()
        except RocksError as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> LogDirectoryFailed:
        return LogDirectoryFailed(f"the sorted file {self._path} can't be written: {error}")
