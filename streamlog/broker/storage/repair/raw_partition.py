"""RawPartition: the files of a partition as they are on disk, which `PartitionLog` would change.

`swap.chain_of` decides which files are the log, as it does when a log is opened: a compacted
segment that a crash has left under its `.swap` name counts, and the segments that it replaces do
not.

Rules of this module: it changes nothing, and only `Scan` decides what a sound batch is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import msgspec

from streamlog.broker.storage.disk.files import File, Files, names_in
from streamlog.broker.storage.log.producer_snapshots import offset_of
from streamlog.broker.storage.log.scan import OFFSETS_MAX, Scan, sound_position
from streamlog.broker.storage.log.segment import LOG_SUFFIX
from streamlog.broker.storage.log.swap import CLEANED_SUFFIX, chain_of
from streamlog.records.batch import RecordBatch

NAME_DIGITS = 20
OFFSET_BYTES = 8
"""A batch begins with its base offset."""


class Unsound(msgspec.Struct, frozen=True):
    """A range of a log file that contains no sound batch."""

    position: int
    end_position: int
    first_offset: int
    next_offset: int | None
    """The base offset of the next sound batch; None if there is none."""
    reason: str


class RawBatch(msgspec.Struct, frozen=True):
    """A sound batch and its position in a file."""

    path: str
    position: int
    batch: RecordBatch

    @property
    def segment_offset(self) -> int:
        """The base offset of its segment."""
        return offset_of(self.path.rpartition("/")[2])

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.batch.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSegment:
    """The files of one segment of the log."""

    directory: str
    base_offset: int
    name: str
    """The name of its log file, which ends in `.swap` if its swap is unfinished."""
    names: frozenset[str] = field(repr=False)
    """The names of all files in the directory."""

    @property
    def path(self) -> str:
        """The path of its log file."""
        return f"{self.directory}/{self.name}"

    def index_path(self, suffix: str) -> str:
        """Return the path that an index with this suffix has or would have."""
        name = f"{self.base_offset:0{NAME_DIGITS}d}{suffix}"
        # An unfinished swap may not have renamed this index yet (step 4 of `log.swap`).
        waits = not self.name.endswith(LOG_SUFFIX) and name + CLEANED_SUFFIX in self.names
        return f"{self.directory}/{name}{CLEANED_SUFFIX if waits else ''}"


class RawPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one partition."""

    topic: str
    partition: int
    directory: str
    recovery_point: int
    log_start_offset: int
    """The offset before which all records were deleted."""
    is_compacted: bool

    def path(self, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
        """Return the path of a segment's file under its final name."""
        return f"{self.directory}/{base_offset:0{NAME_DIGITS}d}{suffix}"

    def names(self, files: Files) -> frozenset[str]:
        """Return the names of its files; none if the directory does not exist.

        Raises:
            OSError: the directory can't be read.
        """
        return frozenset(names_in(files, self.directory))

    def segments(self, names: frozenset[str]) -> list[RawSegment]:
        """Return the segments of the log, in order, from these names of files."""
        return [
            RawSegment(
                directory=self.directory, base_offset=link.base_offset, name=link.log, names=names
            )
            for link in chain_of(names)
        ]

    def batches(self, files: Files) -> Iterator[tuple[int, RecordBatch]]:
        """Iterate over every sound batch, with the base offset of its segment.

        Raises:
            OSError: a file can't be read.
        """
        for segment in self.segments(self.names(files)):
            with closing(files.open(segment.path)) as file:
                found = walk_file(file, base_offset=segment.base_offset, end=file.size())
                base = segment.base_offset
                yield from ((base, each[1]) for each in found if not isinstance(each, Unsound))


def batches_of_file(files: Files, path: str) -> Iterator[RawBatch | Unsound]:
    """Iterate over a file of batches that stands alone, as those of lost-and-found do.

    Its name tells no offset; the first batch does.

    Raises:
        OSError: it can't be read.
    """
    with closing(files.open(path)) as file:
        base_offset = int.from_bytes(file.read(OFFSET_BYTES, 0))
        for each in walk_file(file, base_offset=base_offset, end=file.size()):
            yield each if isinstance(each, Unsound) else RawBatch(path, *each)


def walk_file(
    file: File, *, base_offset: int, end: int
) -> Iterator[tuple[int, RecordBatch] | Unsound]:
    """Iterate over a log file up to `end`: sound batches with positions, and unsound ranges.

    Raises:
        OSError: it can't be read.
    """
    position, offset = 0, base_offset
    while True:
        scan = Scan(file, position=position, next_offset=offset, end=end)
        yield from scan
        if not scan.reason:
            return
        # What follows the damage has offsets after it, and in the range of the segment.
        offsets = range(scan.next_offset, base_offset + OFFSETS_MAX)
        found = sound_position(file, position=scan.position, end=end, offsets=offsets)
        if found is None:
            yield Unsound(scan.position, end, scan.next_offset, None, scan.reason)
            return
        yield Unsound(scan.position, found[0], scan.next_offset, found[1], scan.reason)
        position, offset = found
