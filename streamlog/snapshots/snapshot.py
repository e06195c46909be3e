"""Snapshot: what a history has come to, for live workers to begin with."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Final

from crc32c import crc32c

from streamlog.errors import ConfigError, CorruptData, LogDirectoryError
from streamlog.snapshots.manifest import MANIFEST_FILE, FilePart, Manifest, TaskEntry
from streamlog.tables.state.changelog import TaskProgress

CHUNK_BYTES: Final = 1024 * 1024
EMBEDDED: Final = "embedded:"
SNAPSHOTS: Final = "snapshots"
LOCAL: Final = ("", "file")


def default_snapshot_store(log_url: str, state_dir: str) -> str:
    """Where an app keeps its snapshots if nobody says: beside its log, else beside its state."""
    directory = log_url.removeprefix(EMBEDDED) if log_url.startswith(EMBEDDED) else state_dir
    return os.path.join(os.path.dirname(directory.rstrip("/")) or ".", SNAPSHOTS)  # noqa: PTH118, PTH120 - paths are text in all of the engine


class SnapshotStore:
    """A directory of snapshots. Holds nothing open, and can be sent to other processes."""

    def __init__(self, url: str) -> None:
        """A place by path or URL; it is made when something is written.

        Args:
            url: a path, `file:///...`, or what fsspec knows: `s3://bucket/prefix`, `memory://x`.

        Raises:
            ConfigError: the URL needs a library that is not installed.
        """
        self.url = url.rstrip("/")
        scheme, _, rest = url.rpartition("://")
        self._path = os.path.abspath(rest) if scheme in LOCAL else None  # noqa: PTH100 - as above
        if self._path is None:
            self._remote()

    def __repr__(self) -> str:
        return f"SnapshotStore({self.url!r})"

    def __truediv__(self, name: str) -> SnapshotStore:
        return SnapshotStore(f"{self.url}/{name}")

    @contextmanager
    def writing(self, name: str) -> Iterator[str]:
        """A path here at which the file is to be written; it is at its place after the block."""
        with self._writing(name) as path:
            yield path

    @contextmanager
    def reading(self, name: str) -> Iterator[str]:
        """A path of this machine at which the file can be read within the block.

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
            raise CorruptData(f"there is no {name} in {self.url}: the snapshot is gone") from error

    def add(self, name: str, data: bytes) -> FilePart:
        """Write a small file."""
        with self.writing(name) as path, open(path, "wb") as file:  # noqa: PTH123 - as above
            file.write(data)
        return FilePart(name=name, size_bytes=len(data), crc=crc32c(data))

    def read(self, name: str) -> bytes:
        """All of a small file.

        Raises:
            CorruptData: there is no such file.
        """
        with self.reading(name) as path, open(path, "rb") as file:  # noqa: PTH123 - as above
            return file.read()

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        if self._path is not None:
            return os.path.exists(f"{self._path}/{name}")  # noqa: PTH110 - as above
        return bool(self._remote().exists(f"{self.url}/{name}"))

    def names(self) -> list[str]:
        """What is directly in it, files and directories."""
        if self._path is not None:
            try:
                return sorted(os.listdir(self._path))  # noqa: PTH208 - as above
            except FileNotFoundError:
                return []
        try:
            found = self._remote().ls(self.url, detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(each).rstrip("/").rpartition("/")[2] for each in found)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        elif self._remote().exists(self.url):
            self._remote().rm(self.url, recursive=True)

    @contextmanager
    def checked(self, part: FilePart) -> Iterator[str]:
        """As `reading`, of a file whose size and checksum are known.

        Raises:
            CorruptData: it is not there, or not what was written.
        """
        with self.reading(part.name) as path:
            size_bytes, crc = measure_file(path)
            if (size_bytes, crc) != (part.size_bytes, part.crc):
                raise CorruptData(
                    f"{part.name} in {self.url} is not what was written there: it has {size_bytes} "
                    f"bytes with CRC {crc:08x}, not {part.size_bytes} with {part.crc:08x}; "
                    "make the snapshot again"
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
            with tempfile.TemporaryDirectory(dir=directory, prefix=".") as scratch:
                path = f"{scratch}/{os.path.basename(name)}"  # noqa: PTH119 - as above
                yield path
                _synced(path)
                os.replace(path, target)  # noqa: PTH105 - as above
            _synced(directory)
        except OSError as error:
            raise LogDirectoryError(
                f"{target} can't be written: {error.strerror}; choose another place for snapshots, "
                "or change its permissions"
            ) from error

    def _remote(self) -> Any:  # noqa: ANN401 - fsspec has no types
        scheme = self.url.partition("://")[0]
        try:
            fsspec = import_module("fsspec")
        except ImportError as error:
            raise ConfigError(
                f"snapshots at {self.url} need fsspec: pip install 'streamlog[history]'"
            ) from error
        try:
            return fsspec.filesystem(scheme)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"snapshots can't be kept at {self.url}: {error}") from error


def measure_file(path: str) -> tuple[int, int]:
    """Size in bytes and CRC-32C of a file."""
    size_bytes = crc = 0
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        while data := file.read(CHUNK_BYTES):
            size_bytes += len(data)
            crc = crc32c(data, crc)
    return size_bytes, crc


def _synced(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class Snapshot:
    """The state of an app at one cut of its inputs; the result of `BackfillJob.run`."""

    def __init__(self, manifest: Manifest, place: SnapshotStore) -> None:
        self.manifest = manifest
        self.place = place
        """Of this one snapshot."""

    @classmethod
    def open(cls, url: str) -> Snapshot:
        """A snapshot by the path or URL of its directory.

        Raises:
            CorruptData: there is none, or it is not readable.
            ConfigError: the URL needs a library that is not installed.
        """
        place = SnapshotStore(url)
        if not place.has(MANIFEST_FILE):
            raise CorruptData(
                f"there is no snapshot at {url}: it has no {MANIFEST_FILE}; a job that has "
                "not come to its end leaves none"
            )
        return cls(Manifest.decode(place.read(MANIFEST_FILE)), place)

    @property
    def id(self) -> str:
        """Of the job that made it."""
        return self.manifest.id

    @property
    def url(self) -> str:
        """Where it is kept."""
        return self.place.url

    @property
    def offsets(self) -> Mapping[tuple[str, int], int]:
        """Per source partition, the first offset that is not in it: live workers begin there."""
        return self.manifest.offsets

    def __repr__(self) -> str:
        tasks, rows = len(self.manifest.tasks), self.manifest.rows
        return f"<Snapshot {self.id} of {self.manifest.app_id}: {tasks} tasks, {rows} rows>"

    def entry(self, subtopology: int, partition: int) -> TaskEntry | None:
        """What one task has left."""
        at = (subtopology, partition)
        found = (e for e in self.manifest.tasks if (e.subtopology, e.partition) == at)
        return next(found, None)

    def progress(self, entry: TaskEntry) -> TaskProgress | None:
        """What a task has taken in; None if it has no state.

        Raises:
            CorruptData: the file is missing, or not what was written.
        """
        if entry.progress is None:
            return None
        return TaskProgress.decode(self.read(entry.progress))

    def rows(self, entry: TaskEntry) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a task as they are in its store, store by store.

        Raises:
            CorruptData: a file is missing, or not what was written.
        """
        from streamlog.tables.local_disk.rocksdb_store import read_sorted  # noqa: PLC0415 - RocksDB, for this

        for file in entry.files:
            with self.place.checked(file) as path:
                yield from read_sorted(path)

    @contextmanager
    def files(self, entry: TaskEntry) -> Iterator[Sequence[str]]:
        """Paths of a task's sorted files on this machine, checked; not to be changed.

        Raises:
            CorruptData: one is missing, or not what was written.
        """
        with ExitStack() as stack:
            yield [stack.enter_context(self.place.checked(file)) for file in entry.files]

    def read(self, part: FilePart) -> bytes:
        """All of one file.

        Raises:
            CorruptData: it is missing, or not what was written.
        """
        with self.place.checked(part) as path, open(path, "rb") as file:  # noqa: PTH123 - paths are text in all of the engine
            return file.read()

    def verify(self) -> None:
        """Read all files and compare their checksums.

        Raises:
            CorruptData: one is missing, or not what was written.
        """
        for part in self.manifest.files:
            with self.place.checked(part):
                pass

    def remove(self) -> None:
        """Remove it with all its files. Workers that have begun with it do not need it any more."""
        self.place.remove()
