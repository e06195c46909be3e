"""Snapshot: what a history has come to, for live workers to begin with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from streamlog.errors import CorruptData
from streamlog.snapshots.manifest import MANIFEST_FILE, FilePart, Manifest, TaskEntry
from streamlog.snapshots.places import SnapshotPlace
from streamlog.tables.state.changelog import TaskProgress


class Snapshot:
    """The state of an app at one cut of its inputs; the result of `BackfillJob.run`."""

    def __init__(self, manifest: Manifest, place: SnapshotPlace) -> None:
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
        place = SnapshotPlace(url)
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
