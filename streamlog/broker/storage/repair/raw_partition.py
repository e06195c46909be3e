"""Stored: a partition as files, told as they are and not as `PartitionLog` would have them.

Which files are the log is said by `swap.chain_of`, as for everybody who opens it: a compacted
segment that a crash has left under a name of its own counts, and what it replaces does not.
Rule of the file: it reads and judges nothing; only `Scan` says what a sound batch is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from streamlog.broker.storage.disk.files import File, Files
from streamlog.broker.storage.log.producer_snapshots import offset_of
from streamlog.broker.storage.log.scan import OFFSETS_MAX, Scan, sound_position
from streamlog.broker.storage.log.segment import LOG_SUFFIX
from streamlog.broker.storage.log.swap import CLEANED_SUFFIX, chain_of
from streamlog.records.batch import RecordBatch

NAME_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Unsound:
    """Bytes of a log file that are no batches."""

    position: int
    end_position: int
    first_offset: int
    next_offset: int | None
    """Where the sound batch behind it begins; None if there is none."""
    reason: str


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """A sound batch and where it stands."""

    path: str
    position: int
    batch: RecordBatch

    @property
    def segment_offset(self) -> int:
        """Where the segment that it stands in begins."""
        return offset_of(self.path.rpartition("/")[2])

    @property
    def next_offset(self) -> int:
        """The offset behind it."""
        return self.batch.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSegment:
    """A segment that counts, as files."""

    directory: str
    base_offset: int
    name: str
    """Of its log, which is another one than usual while it waits for its place."""
    names: frozenset[str] = field(repr=False)
    """Of all files in the directory."""

    @property
    def path(self) -> str:
        """Of its log."""
        return f"{self.directory}/{self.name}"

    def index_path(self, suffix: str) -> str:
        """Where the index with this suffix is, or would be."""
        name = f"{self.base_offset:0{NAME_DIGITS}d}{suffix}"
        waits = not self.name.endswith(LOG_SUFFIX) and name + CLEANED_SUFFIX in self.names
        return f"{self.directory}/{name}{CLEANED_SUFFIX if waits else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPartition:
    """A partition as files."""

    topic: str
    partition: int
    directory: str
    recovery_point: int
    log_start_offset: int
    """Everything before it was deleted."""
    is_compacted: bool

    def path(self, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
        """The file of a segment that has its place."""
        return f"{self.directory}/{base_offset:0{NAME_DIGITS}d}{suffix}"

    def names(self, files: Files) -> frozenset[str]:
        """Of its files; none if it has no directory.

        Raises:
            OSError: the directory can't be read.
        """
        try:
            return frozenset(files.list(self.directory))
        except FileNotFoundError:
            return frozenset()

    def segments(self, names: frozenset[str]) -> list[RawSegment]:
        """The segments that count, of the files with these names, in order."""
        return [
            RawSegment(
                directory=self.directory, base_offset=link.base_offset, name=link.log, names=names
            )
            for link in chain_of(names)
        ]

    def batches(self, files: Files) -> Iterator[tuple[int, RecordBatch]]:
        """Every sound batch, and where its segment begins.

        Raises:
            OSError: they can't be read.
        """
        for segment in self.segments(self.names(files)):
            with closing(files.open(segment.path)) as file:
                places = walk_file(file, base_offset=segment.base_offset, end=file.size())
                base = segment.base_offset
                yield from ((base, each[1]) for each in places if not isinstance(each, Unsound))


def walk_file(
    file: File, *, base_offset: int, end: int
) -> Iterator[tuple[int, RecordBatch] | Unsound]:
    """Everything in a log file up to `end`: sound batches with their positions, and the rest.

    Raises:
        OSError: it can't be read.
    """
    position, offset = 0, base_offset
    while True:
        scan = Scan(file, position=position, next_offset=offset, end=end)
        yield from scan
        if not scan.reason:
            return
        offsets = range(scan.next_offset, base_offset + OFFSETS_MAX)
        found = sound_position(file, position=scan.position, end=end, offsets=offsets)
        if found is None:
            yield Unsound(scan.position, end, scan.next_offset, None, scan.reason)
            return
        yield Unsound(scan.position, found[0], scan.next_offset, found[1], scan.reason)
        position, offset = found
