"""TaskDirectory: where the state of one task is on this machine, from owner to owner.

`<task>/<epoch>/` is a database; each opening creates the next epoch, so a new owner never writes
where an old one may still be running. `<task>/snapshots/<epoch>-<number>/` are snapshots of a
running one. A new epoch begins with the files of the newest of all these that is not open: links to
the large files, which never change, and copies of the small ones. A store whose process was killed
is as good as a closed one, up to what had reached the disk: its changelog offset tells what it
lacks. What is damaged is logged and skipped; the changelog has it all. `state_host` tells whether
two workers share a disk. `WorkerIdentity` is the name by which a worker writes in transactions,
which survives a restart (KIP-447 fences by the group's generation): a slot of the state directory,
with a kernel lock on its file. Rule of the module: nothing is removed or taken over while it is
locked. Not done here: when to look.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

import msgspec

from streamlog.errors import CorruptData, LogDirectoryError, LogDirectoryLocked
from streamlog.tables.local_disk.rocksdb_store import (
    DAMAGED_FILE,
    OWNER_FILE,
    DirectoryLock,
    RocksBudget,
    RocksStore,
    make_directory,
)

logger = logging.getLogger(__name__)

SNAPSHOTS = "snapshots"
SNAPSHOTS_KEPT = 2
"""The number of snapshots to keep. Each keeps files on disk that its store has replaced since."""
SNAPSHOT_BYTES = 64 * 1024 * 1024
"""A snapshot is due when this much was written since the last one; replaying it takes a second."""
SNAPSHOT_INTERVAL_MS = 10 * 60 * 1000
"""The time after which a snapshot of a store with new writes is due."""
UNFINISHED = ".tmp"
"""The suffix of a directory's name until it is complete."""
EPOCHS_TRIED_MAX = 100
"""The most attempts to create the next epoch, which other owners may create at the same time."""
CURRENT_FILE = "CURRENT"
"""A file of RocksDB that names the list of all other files. It is copied last: a directory without
it is not a database."""
LINKED = ".sst"
"""The suffix of files that never change."""
KEPT_APART = (".upload", ".download")
"""The suffixes of databases that are on their way to an object store, or come from one. They are no
source of later owners."""
STANDBY_FILE = "standby"
"""The name of a file that marks a standby: a store that only follows its changelog."""
LEFT_OUT = ("LOCK", "LOG", OWNER_FILE, DAMAGED_FILE, STANDBY_FILE)
"""Files of the directory, not of the database; RocksDB's old logs have longer names."""


class StateSource(msgspec.Struct, frozen=True, order=True):
    """A directory with a database to begin with; the greatest is the newest."""

    epoch: int
    is_store: bool
    """A store is newer than its own snapshots."""
    number: int
    path: str


class TaskDirectory:
    """The directories of one task."""

    __slots__ = ("_epoch", "_is_damaged", "_number", "_path", "_snapshot_bytes", "_snapshot_ms")

    def __init__(self, path: str) -> None:
        self._path = path
        self._epoch = self._number = 0
        self._is_damaged = False
        self._snapshot_bytes = 0
        self._snapshot_ms: int | None = None

    def open(
        self,
        budget: RocksBudget,
        *,
        skip_locked: bool = False,
        is_standby: bool = False,
        first: str | None = None,
    ) -> RocksStore:
        """Open a store in a new directory, with the newest state that exists.

        Args:
            budget: shared by the stores of the process.
            skip_locked: begin with an older state if another owner still has the newest one.
            is_standby: mark the store as a standby, for which no other opening has to wait.
            first: a database that is newer than the state that exists (see `fetched`).

        Raises:
            LogDirectoryLocked: another owner has the newest one, in this or another process.
            LogDirectoryError: the directories can't be created, read or written.
        """
        make_directory(f"{self._path}/{SNAPSHOTS}")
        sources = self.sources()
        owned = (s for s in sources if s.is_store and STANDBY_FILE not in _names(s.path))
        # 1. The owner of epoch 4 is still closing its store, and holds the lock.
        # 2. Beginning with older state now would replay what epoch 4 writes to disk in a moment:
        #    the lock error tells the caller to try again, unless it prefers older state.
        if not skip_locked and (newest := next(owned, None)) is not None:
            DirectoryLock.acquire(newest.path).release()
        if any(map(_is_damaged, sources)):
            # The sources share files, and which of these are damaged is unknown.
            logger.warning("state in %s is damaged: the changelog restores it", self._path)
            sources = []
            self._is_damaged = True
        if first is not None:
            sources.insert(0, StateSource(0, is_store=False, number=0, path=first))
        path, lock = self._create_epoch()
        try:
            if is_standby:
                _touch(f"{path}/{STANDBY_FILE}")
            for source in sources:
                if (store := _take_over(source, path, lock, budget)) is not None:
                    return store
            return RocksStore.open(path, budget=budget, lock=lock)
        except BaseException:
            lock.release()
            raise

    def remove_old(self) -> None:
        """Remove the stores of owners before the one that was opened here.

        Their snapshots stay until there are newer ones, unless they are damaged.
        """
        # Later epochs belong to owners that have opened the task since.
        for source in self.sources(is_any=True):
            if source.epoch < self._epoch and (source.is_store or self._is_damaged):
                _remove(source)
        self._is_damaged = False
        for name in _names(f"{self._path}/{SNAPSHOTS}"):
            epoch, _, _ = name.partition("-")
            if name.endswith(KEPT_APART) and epoch.isdecimal() and int(epoch) < self._epoch:
                self.let_go(f"{self._path}/{SNAPSHOTS}/{name}")

    def hold(self, store: RocksStore) -> str:
        """Write a checkpoint of the open store for an upload; returns its path.

        It stays as it is while the store changes, until `let_go`.
        """
        self._number += 1
        path = f"{self._path}/{SNAPSHOTS}/{self._epoch}-{self._number}{KEPT_APART[0]}"
        # The number is new to this process, not to a former one with a copy of the directory.
        self.let_go(path)
        store.checkpoint(path)
        return path

    @property
    def fetched(self) -> str:
        """The path of a database that comes from an object store, for `open`, until `let_go`."""
        return f"{self._path}/{SNAPSHOTS}/{self._epoch}-0{KEPT_APART[1]}"

    def let_go(self, path: str) -> None:
        """Remove a directory of `hold` or `fetched`, if it exists."""
        shutil.rmtree(path, ignore_errors=True)

    def is_snapshot_due(self, store: RocksStore, now_ms: int) -> bool:
        """Return whether enough was written, or enough time has passed, for another snapshot."""
        if self._snapshot_ms is None:
            self._snapshot_ms = now_ms
        fresh_bytes = store.written_bytes - self._snapshot_bytes
        is_time = now_ms - self._snapshot_ms >= SNAPSHOT_INTERVAL_MS
        return fresh_bytes >= SNAPSHOT_BYTES or (fresh_bytes > 0 and is_time)

    def snapshot(self, store: RocksStore, now_ms: int) -> None:
        """Write a snapshot of the open store, and remove the oldest snapshots."""
        self._snapshot_bytes, self._snapshot_ms = store.written_bytes, now_ms
        self._number += 1
        path = f"{self._path}/{SNAPSHOTS}/{self._epoch}-{self._number}"
        # Renamed when complete: a crash leaves a directory that is no source, and is removed below.
        store.checkpoint(path + UNFINISHED)
        os.rename(path + UNFINISHED, path)  # noqa: PTH104 - paths are text in all of the engine
        snapshots = [source for source in self.sources(is_any=True) if not source.is_store]
        for source in snapshots[SNAPSHOTS_KEPT:]:
            _remove(source)
        for name in _names(f"{self._path}/{SNAPSHOTS}"):
            if name.endswith(UNFINISHED):
                shutil.rmtree(f"{self._path}/{SNAPSHOTS}/{name}", ignore_errors=True)

    def _create_epoch(self) -> tuple[str, DirectoryLock]:
        """Create the directory of a new epoch; returns its path and lock."""
        for _ in range(EPOCHS_TRIED_MAX):
            epoch = 1 + max((source.epoch for source in self.sources(is_any=True)), default=0)
            path = f"{self._path}/{epoch}"
            try:
                os.mkdir(path)  # noqa: PTH102 - as above
                lock = DirectoryLock.acquire(path)
            except (FileExistsError, FileNotFoundError, LogDirectoryLocked):
                continue  # Another owner creates or removes directories at this moment.
            except OSError as error:
                raise LogDirectoryError(
                    f"the state directory {path} can't be created: {error.strerror}; choose another"
                    " one or change its permissions"
                ) from error
            self._epoch = epoch
            self._number = self._snapshot_bytes = 0
            self._snapshot_ms = None
            return path, lock
        raise LogDirectoryError(
            f"no directory can be created in {self._path}: other workers keep creating theirs"
        )

    def sources(self, *, is_any: bool = False) -> list[StateSource]:
        """Return the databases that a store can begin with, newest first.

        With `is_any`, return incomplete ones too.
        """
        found = [
            StateSource(int(name), is_store=True, number=0, path=f"{self._path}/{name}")
            for name in _names(self._path)
            if name.isdecimal()
        ]
        for name in _names(f"{self._path}/{SNAPSHOTS}"):
            epoch, _, number = name.partition("-")
            if epoch.isdecimal() and number.isdecimal():
                path = f"{self._path}/{SNAPSHOTS}/{name}"
                found.append(StateSource(int(epoch), is_store=False, number=int(number), path=path))
        found.sort(reverse=True)
        return [source for source in found if is_any or _is_complete(source)]


class AbandonedTasks:
    """Finds the state of tasks that no process on this machine has had open for some time."""

    __slots__ = ("_delay_ms", "_idle_since_ms", "_path")

    def __init__(self, path: str, *, delay_ms: int) -> None:
        """`path` is the app's state directory; a task idle for `delay_ms` is removed."""
        self._path = path
        self._delay_ms = delay_ms
        self._idle_since_ms: dict[str, int] = {}

    def remove(self, now_ms: int) -> list[str]:
        """Remove the tasks that have been idle for long enough; returns their names.

        Times are those of a clock that never goes back, and count from the first call: the age of
        the files does not tell for how long they have been idle.
        """
        idle = {name for name in _names(self._path) if _is_idle(f"{self._path}/{name}")}
        # From idle tasks only: one that was open at this look starts to count anew.
        since_ms = {name: self._idle_since_ms.get(name, now_ms) for name in idle}
        removed = [name for name, at_ms in since_ms.items() if now_ms - at_ms >= self._delay_ms]
        for name in removed:
            del since_ms[name]
            _remove_task(f"{self._path}/{name}")
        self._idle_since_ms = since_ms
        return removed


def _is_idle(path: str) -> bool:
    """Return whether this is a task's directory in which no store is open."""
    stores = [name for name in _names(path) if name.isdecimal()]
    is_task = bool(stores) or SNAPSHOTS in _names(path)
    return is_task and not any(_is_locked(f"{path}/{name}") for name in stores)


def _is_locked(path: str) -> bool:
    try:
        DirectoryLock.acquire(path).release()
    except LogDirectoryError:
        return True
    return False


def _remove_task(path: str) -> None:
    """Remove a task's directory, except stores that have been opened meanwhile."""
    directory = TaskDirectory(path)
    for source in directory.sources(is_any=True):
        _remove(source)
    for name in _names(f"{path}/{SNAPSHOTS}"):
        if name.endswith(KEPT_APART):
            directory.let_go(f"{path}/{SNAPSHOTS}/{name}")
    # `rmdir` fails if anything is left, which is in use: then the task's directory stays.
    with suppress(OSError):
        os.rmdir(f"{path}/{SNAPSHOTS}")  # noqa: PTH106 - as above
        os.rmdir(path)  # noqa: PTH106 - as above


def _take_over(
    source: StateSource, path: str, lock: DirectoryLock, budget: RocksBudget
) -> RocksStore | None:
    """Open a store in `path` with the files of `source`; returns None if they can't be used."""
    try:
        with _hold_lock(source):
            _clone(source.path, path)
        return RocksStore.open(path, budget=budget, lock=lock)
    except LogDirectoryLocked:
        logger.info("%s is in use: its task begins with older state", source.path)
    except OSError as error:  # Another owner of the task removes old directories.
        logger.info("%s can't be taken over: %s", source.path, error)
    except CorruptData as error:
        logger.warning("%s can't be used, trying older state: %s", source.path, error)
    _empty(path)
    return None


@contextmanager
def _hold_lock(source: StateSource) -> Iterator[None]:
    """Keep others from opening or removing a store. Snapshots are never opened in place."""
    lock = DirectoryLock.acquire(source.path) if source.is_store else None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _clone(source: str, path: str) -> None:
    names = [name for name in _names(source) if not name.startswith(LEFT_OUT)]
    names.sort(key=CURRENT_FILE.__eq__)  # Last: without it, the rest is not a database.
    for name in names:
        if name.endswith(LINKED):
            _link(f"{source}/{name}", f"{path}/{name}")
        else:
            shutil.copyfile(f"{source}/{name}", f"{path}/{name}")


def _link(source: str, path: str) -> None:
    try:
        os.link(source, path)
    except FileNotFoundError:
        raise
    except OSError:  # A file system without links.
        shutil.copyfile(source, path)


def _remove(source: StateSource) -> None:
    """Remove a directory that is not open."""
    try:
        with _hold_lock(source):
            shutil.rmtree(source.path)
    except LogDirectoryError:
        logger.debug("%s is in use and stays", source.path)
    except OSError as error:
        logger.warning("%s can't be removed: %s", source.path, error)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _empty(path: str) -> None:
    for name in _names(path):
        if name not in (OWNER_FILE, STANDBY_FILE):
            os.unlink(f"{path}/{name}")  # noqa: PTH108 - as above


def _is_complete(source: StateSource) -> bool:
    return CURRENT_FILE in _names(source.path)


def _is_damaged(source: StateSource) -> bool:
    return DAMAGED_FILE in _names(source.path)


def _names(path: str) -> list[str]:
    """Return the names in a directory; none if it does not exist or is not a directory."""
    try:
        return os.listdir(path)  # noqa: PTH208 - as above
    except (FileNotFoundError, NotADirectoryError):
        return []


_TASK = re.compile(r"(\d+)_(\d+)")


def state_host(path: str) -> str:
    """Return a name that all processes on this state directory share; creates the directory.

    Raises:
        LogDirectoryError: it can't be created.
    """
    make_directory(path)
    found = os.stat(path)  # noqa: PTH116 - paths are text in all of the engine
    return f"{socket.gethostname()}:{found.st_dev}:{found.st_ino}"


def tasks_with_state(path: str) -> Iterator[tuple[int, int]]:
    """Yield sub-topology and partition of the tasks that have state in this directory."""
    try:
        names = os.listdir(path)  # noqa: PTH208 - as above
    except FileNotFoundError:
        return
    for name in sorted(names):
        found = _TASK.fullmatch(name)
        if found is not None and {*os.listdir(f"{path}/{name}")} - {SNAPSHOTS}:  # noqa: PTH208 - as above
            yield int(found[1]), int(found[2])


SLOTS_MAX = 10_000
"""The most slots: more than any machine runs workers on one state directory."""
_NAME = re.compile(rb"[0-9a-f]{32}")


class WorkerIdentity:
    """A slot among the workers of an app on this machine. Use it in a `with` block."""

    def __init__(self, app_id: str, state_path: str) -> None:
        self._app_id = app_id
        self._path = f"{state_path}/workers"
        self._lock = -1
        self.transactional_id = ""
        """Begins with the app's id and a "-", as the names of its topics do."""

    def __enter__(self) -> Self:
        """Take the first free slot.

        Raises:
            LogDirectoryError: the state directory can't be used.
        """
        try:
            os.makedirs(self._path, exist_ok=True)  # noqa: PTH103 - a path is text in all of the engine
            self._lock = self._first_free()
            self.transactional_id = f"{self._app_id}-{self._name()}"
        except OSError as error:
            self._release()
            raise LogDirectoryError(
                f"the state directory {self._path} can't be used: {error.strerror}; choose another "
                "one or change its permissions"
            ) from error
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release()

    def _first_free(self) -> int:
        for number in range(SLOTS_MAX):
            # The file stays when its worker ends: the next worker in this slot has its name.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(f"{self._path}/{number}.name", flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
            else:
                return descriptor
        raise LogDirectoryError(f"{SLOTS_MAX} workers have locked {self._path}")

    def _name(self) -> str:
        """Return the name in the file; write a new one if it has none or only a part of one."""
        found = os.pread(self._lock, 64, 0)
        if _NAME.fullmatch(found) is None:
            found = secrets.token_hex(16).encode()
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, found, 0)
        return found.decode()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
