"""Sorted files: rows of a store as RocksDB's own SST files, which a store takes over whole.

A file that is sorted already costs a store nothing but a rename: a sixth of the processor time of
writing the rows one by one. Rule of the file: raw keys and values as they are in the store of a
task, strictly ascending, and a file is closed when it is full, so that none is too large to be
copied again. Beside `rocksdb`, this is all that knows rocksdict. Not done here: taking them in
(`RocksStore.ingest`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

from rocksdict import Options, Rdict, SstFileWriter

from streamlog.errors import CorruptData, LogDirectoryFailed

RocksError = Exception
"""What rocksdict raises: nothing more special."""

Pair = tuple[bytes, bytes]


def write_sorted(first: Pair, more: Iterator[Pair], path: str, *, file_bytes: int) -> int:
    """Write rows to a new file, until it is full or there are no more; returns how many.

    Args:
        first: a row; a file without one can't be.
        more: what follows it, by strictly ascending key; what is left belongs to the next file.
        path: of the file.
        file_bytes: it is full when it holds so much.

    Raises:
        LogDirectoryFailed: the disk does not take them, or they are not sorted.
    """
    writer = _Writer(path)
    writer.add(first)
    while writer.size_bytes < file_bytes and (pair := next(more, None)) is not None:
        writer.add(pair)
    writer.finish()
    return writer.rows


def read_sorted(path: str) -> Iterator[Pair]:
    """The rows of a file, in the order of their keys. The file stays as it is.

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


class _Writer:
    """One file in the making."""

    def __init__(self, path: str) -> None:
        self.rows = self.size_bytes = 0
        self._path = path
        self._writer = SstFileWriter(Options(raw_mode=True))
        try:
            self._writer.open(path)
        except RocksError as error:
            raise self._failed(error) from error

    def add(self, pair: Pair) -> None:
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
