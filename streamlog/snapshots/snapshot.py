"""Snapshot: reads and writes the files of a snapshot, in a directory or a store that fsspec knows.

A file appears under its name only when it is complete. Rule of the file: a reader compares size and
checksum with the manifest before it uses a file. Not done here: the content (`manifest`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from streamlog.errors import ConfigError, CorruptData, LogDirectoryError, quantity, some_of
from streamlog.metrics.build_info import install_command
from streamlog.snapshots.manifest import MANIFEST_FILE, FilePart, Manifest, TaskEntry
from streamlog.tables.state.changelog import TaskProgress

CHUNK_BYTES: Final = 1024 * 1024
EMBEDDED: Final = "embedded:"
SNAPSHOTS: Final = "snapshots"
LOCAL: Final = ("", "file")


def default_snapshot_store(log_url: str, state_dir: str) -> str:
    """Return the default directory of an app's snapshots.

    It lies next to the embedded log; for another log, next to the app's state.
    """
    directory = log_url.removeprefix(EMBEDDED) if log_url.startswith(EMBEDDED) else state_dir
    return os.path.join(os.path.dirname(directory.rstrip("/")) or ".", SNAPSHOTS)  # noqa: PTH118, PTH120 - paths are text in all of the engine


class SnapshotStore:
    """A directory of snapshots. Holds nothing open, and can be sent to other processes."""

    def __init__(self, url: str) -> None:
        """Name a directory; it is created with its first file.

        Args:
            url: a path, `file:///...`, or a URL of fsspec: `s3://bucket/prefix`, `memory://x`.

        Raises:
            ConfigError: the URL needs a library that is not installed.
        """
        self.url = url.rstrip("/")
        scheme, _, rest = url.rpartition("://")
        self._path = os.path.abspath(rest) if scheme in LOCAL else None  # noqa: PTH100 - as above
        if self._path is None:
            # Raises now if the library is missing, not after a job has run for hours.
            self._remote()

    def __repr__(self) -> str:
        return f"SnapshotStore({self.url!r})"

    def __truediv__(self, name: str) -> SnapshotStore:
        return SnapshotStore(f"{self.url}/{name}")

    @contextmanager
    def writing(self, name: str) -> Iterator[str]:
        """Yield a local path to write a file to; after the block, the file has its name here."""
        with self._writing(name) as path:
            yield path

    @contextmanager
    def reading(self, name: str) -> Iterator[str]:
        """Yield a local path at which a file can be read in the block.

        Raises:
            CorruptData: there is no such file.
        """
        try:
            if self._path is not None:
                path = f"{self._path}/{name}"
                os.stat(path)  # noqa: PTH116 - as above
                yield path
                return
            with tempfile.TemporaryDirectory() as scratch:
                path = f"{scratch}/{os.path.basename(name)}"  # noqa: PTH119 - as above
                self._remote().get_file(f"{self.url}/{name}", path)
                yield path
        except FileNotFoundError as error:
            raise CorruptData(
                f"{self.url} has no file {name}: the snapshot was removed, or never completed"
            ) from error

    def add(self, name: str, data: bytes) -> FilePart:
        """Write a small file; return its description for the manifest."""
        with self.writing(name) as path, open(path, "wb") as file:  # noqa: PTH123 - as above
            file.write(data)
        return FilePart(name=name, size_bytes=len(data), crc=crc32c(data))

    def read(self, name: str) -> bytes:
        """Return the content of a small file.

        Raises:
            CorruptData: there is no such file.
        """
        with self.reading(name) as path, open(path, "rb") as file:  # noqa: PTH123 - as above
            return file.read()

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        if self._path is not None:
            return os.path.exists(f"{self._path}/{name}")  # noqa: PTH110 - as above
        return bool(self._fresh().exists(f"{self.url}/{name}"))

    def names(self) -> list[str]:
        """Return the names of the files and directories directly in this directory."""
        if self._path is not None:
            try:
                return sorted(os.listdir(self._path))  # noqa: PTH208 - as above
            except FileNotFoundError:
                return []
        try:
            found = self._fresh().ls(self.url, detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(each).rstrip("/").rpartition("/")[2] for each in found)

    def remove(self) -> None:
        """Remove the directory and all its content."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        elif (remote := self._fresh()).exists(self.url):
            remote.rm(self.url, recursive=True)

    @contextmanager
    def checked(self, part: FilePart) -> Iterator[str]:
        """Yield a local path of a file, as `reading`, after a check of its size and checksum.

        Raises:
            CorruptData: the file is missing, or its content has changed.
        """
        with self.reading(part.name) as path:
            size_bytes, crc = measure_file(path)
            if (size_bytes, crc) != (part.size_bytes, part.crc):
                raise CorruptData(
                    f"{part.name} in {self.url} is damaged: it has {size_bytes} bytes with CRC "
                    f"{crc:08x}, not {part.size_bytes} bytes with CRC {part.crc:08x}; create the "
                    "snapshot again"
                )
            yield path

    @contextmanager
    def _writing(self, name: str) -> Iterator[str]:
        if self._path is None:
            with tempfile.TemporaryDirectory() as scratch:
                path = f"{scratch}/{os.path.basename(name)}"  # noqa: PTH119 - as above
                yield path
                self._remote().put_file(path, f"{self.url}/{name}")
            return
        target = f"{self._path}/{name}"
        directory = os.path.dirname(target)  # noqa: PTH120 - as above
        try:
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103 - as above
            # In the same directory, because a rename is atomic only within one file system.
            with tempfile.TemporaryDirectory(dir=directory, prefix=".") as scratch:
                path = f"{scratch}/{os.path.basename(name)}"  # noqa: PTH119 - as above
                yield path
                # Durable in this order: first the content, then the name.
                _sync(path)
                os.replace(path, target)  # noqa: PTH105 - as above
            _sync(directory)
        except OSError as error:
            raise LogDirectoryError(
                f"{target} can't be written: {error.strerror}; choose another directory for "
                "snapshots, or change its permissions"
            ) from error

    def _fresh(self) -> Any:  # noqa: ANN401 - as below
        """Return the file system without what it remembers of directories.

        Those of object stores keep each listing for good, and the process that fills a directory
        is another one: a job on its machine, or Spark's executors.
        """
        remote = self._remote()
        remote.invalidate_cache()
        return remote

    def _remote(self) -> Any:  # noqa: ANN401 - fsspec has no types
        scheme = self.url.partition("://")[0]
        try:
            fsspec = import_module("fsspec")
        except ImportError as error:
            raise ConfigError(
                f"snapshots at {self.url} need fsspec: {install_command('history')}"
            ) from error
        try:
            return fsspec.filesystem(scheme)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"snapshots can't be kept at {self.url}: {error}") from error


def measure_file(path: str) -> tuple[int, int]:
    """Return size in bytes and CRC-32C of a file."""
    size_bytes = crc = 0
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        while data := file.read(CHUNK_BYTES):
            size_bytes += len(data)
            crc = crc32c(data, crc)
    return size_bytes, crc


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _hint(url: str) -> str:
    """Return the snapshots in the directory of a mistyped id, if it is on this machine."""
    if "://" in url:
        return ""
    found = sorted(each.parent.name for each in Path(url).parent.glob(f"*/{MANIFEST_FILE}"))
    return f"; snapshots beside it: {some_of(found)}" if found else ""


class Snapshot:
    """The state of an app at one cut of its inputs; the result of `BackfillJob.run`."""

    def __init__(self, manifest: Manifest, snapshots: SnapshotStore) -> None:
        self.manifest = manifest
        self.store = snapshots
        """The directory of this snapshot."""

    @classmethod
    def open(cls, url: str) -> Snapshot:
        """Open a snapshot by the path or URL of its directory.

        Raises:
            CorruptData: there is no snapshot, or its manifest can't be decoded.
            ConfigError: the URL needs a library that is not installed.
        """
        store = SnapshotStore(url)
        if not store.has(MANIFEST_FILE):
            raise CorruptData(
                f"there is no snapshot at {url}: it has no {MANIFEST_FILE}, which a job writes last"
                f"{_hint(url)}"
            )
        return cls(Manifest.decode(store.read(MANIFEST_FILE)), store)

    @property
    def id(self) -> str:
        """ID of the job that made the snapshot."""
        return self.manifest.id

    @property
    def url(self) -> str:
        """Path or URL of its directory."""
        return self.store.url

    @property
    def offsets(self) -> Mapping[tuple[str, int], int]:
        """The offset at which live workers start, by source partition."""
        return self.manifest.offsets

    def __repr__(self) -> str:
        tasks, rows = (
            quantity(len(self.manifest.tasks), "task"),
            quantity(self.manifest.rows, "row"),
        )
        return f"<Snapshot {self.id} of {self.manifest.app_id}: {tasks}, {rows}>"

    def entry(self, subtopology: int, partition: int) -> TaskEntry | None:
        """Return the entry of a task; None if the snapshot has no such task."""
        at = (subtopology, partition)
        found = (e for e in self.manifest.tasks if (e.subtopology, e.partition) == at)
        return next(found, None)

    def progress(self, entry: TaskEntry) -> TaskProgress | None:
        """Return the progress of a task; None if the task has no state.

        Raises:
            CorruptData: the file is missing or damaged.
        """
        if entry.progress is None:
            return None
        return TaskProgress.decode(self.read(entry.progress))

    def rows(self, entry: TaskEntry) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a task as its database holds them, store by store.

        Raises:
            CorruptData: a file is missing or damaged.
        """
        from streamlog.tables.local_disk.rocksdb_store import read_sorted  # noqa: PLC0415 - RocksDB, for this

        for file in entry.files:
            with self.store.checked(file) as path:
                yield from read_sorted(path)

    @contextmanager
    def files(self, entry: TaskEntry) -> Iterator[Sequence[str]]:
        """Yield local paths of a task's sorted files, checked; callers must not change them.

        Raises:
            CorruptData: a file is missing or damaged.
        """
        with ExitStack() as stack:
            yield [stack.enter_context(self.store.checked(file)) for file in entry.files]

    def read(self, part: FilePart) -> bytes:
        """Return the content of a file.

        Raises:
            CorruptData: the file is missing or damaged.
        """
        with self.store.checked(part) as path, open(path, "rb") as file:  # noqa: PTH123 - paths are text in all of the engine
            return file.read()

    def verify(self) -> None:
        """Read all files and compare their checksums.

        Raises:
            CorruptData: a file is missing or damaged.
        """
        for part in self.manifest.files:
            with self.store.checked(part):
                pass

    def remove(self) -> None:
        """Remove the snapshot and its files; workers that started from it no longer need it."""
        self.store.remove()
