"""Recovery, LostOffsets: what is left of a log after its process or machine has crashed.

Nothing before the recovery point can be lost. The recovery point is at most one roll behind (see
`partition_log`), unless damage was found: it stays before the damage, so that the next opening
finds it again. Recovery scans the batches from the segment of the recovery point on:

1. Unsound bytes at the very end, after the recovery point, are *torn*: they were being written, and
   no client was promised that they survive a crash of the machine. They are cut off.
2. Any other unsound bytes are *damage*: sound batches follow them, or they had been synced. Damage
   is reported and refused, never cut off, and the batches after it are kept and served.

A torn tail can't be distinguished from a damaged last batch that was never synced.

`LostOffsets` records the offsets that a repair gave up, in a file of the partition's directory.
Other replicas may have these records, so a replica with such a log is not complete until it has
fetched again from the first of them. Rule: lost offsets are recorded before the repaired segment is
in place, and forgotten once the log is durably cut below them.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from contextlib import closing, suppress
from itertools import pairwise

import msgspec

from streamlog.broker.storage.disk.files import (
    MALFORMED,
    Files,
    read_file,
    replace_file,
    write_whole,
)
from streamlog.broker.storage.log.segment import Damage, Segment

LOST_OFFSETS = "lost-offsets"
_FORMAT = 1
_EVERYTHING = (0, 2**63 - 1)


class LostOffsets:
    """The lost offsets of the log in `directory`, as one range.

    Methods that read or write raise OSError if the disk refuses.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._range: tuple[int, int] | None = None

    def read(self) -> None:
        """Read the file; if it is unreadable, any offset may be lost."""
        try:
            content = json.loads(read_file(self._files, f"{self._directory}/{LOST_OFFSETS}"))
            is_known = content["version"] == _FORMAT
            found = (int(content["first_offset"]), int(content["end_offset"]))
            self._range = found if is_known else _EVERYTHING
        except FileNotFoundError:
            self._range = None
        except (RecursionError, *MALFORMED):
            self._range = _EVERYTHING

    @property
    def known(self) -> tuple[int, int] | None:
        """The first lost offset, and the one after the last; None if the log is complete."""
        return self._range

    def open(self, log_start_offset: int, log_end_offset: int) -> None:
        """Read the file of a log with this extent."""
        self.read()
        self.keep_within(log_start_offset, log_end_offset)

    def first_from(self, log_start_offset: int) -> int | None:
        """Return the first offset that the log may lack; None if it is complete."""
        if self._range is None or self._range[1] <= log_start_offset:
            return None
        return max(self._range[0], log_start_offset)

    def add(self, first_offset: int, end_offset: int) -> None:
        """Durably record more lost offsets; the range is extended to include them."""
        # One range for all: a gap between two repairs counts as lost, which costs a follower a
        # longer fetch and nothing else.
        if self._range is not None:
            first_offset = min(first_offset, self._range[0])
            end_offset = max(end_offset, self._range[1])
        text = json.dumps(
            {"version": _FORMAT, "first_offset": first_offset, "end_offset": end_offset}
        )
        replace_file(self._files, f"{self._directory}/{LOST_OFFSETS}", text.encode())
        self._range = (first_offset, end_offset)

    def keep_within(self, log_start_offset: int, log_end_offset: int) -> None:
        """Forget lost offsets outside the durable extent of the log."""
        if self._range is None:
            return
        first_offset, end_offset = self._range
        if end_offset <= log_start_offset or log_end_offset <= first_offset:
            with suppress(FileNotFoundError):
                self._files.remove(f"{self._directory}/{LOST_OFFSETS}")
            self._files.sync_directory(self._directory)
            self._range = None


REWRITE_BYTES = 1024 * 1024
"""Bytes per read and write of a rewrite."""


class Recovery(msgspec.Struct, frozen=True):
    """What opening a log has scanned, cut off and found."""

    scanned_bytes: int = 0
    scanned_segments: int = 0
    """How many segments were scanned, counted from the log's end."""
    truncated_bytes: int = 0
    damage: tuple[Damage, ...] = ()
    """The damaged ranges found; segments that were not scanned are not judged."""
    unsynced_segments: int = 0
    """How many segments, counted from the log's end, may be only in the page cache."""


def recover(segments: list[Segment], *, recovery_point: int) -> Recovery:
    """Scan the segments that may be torn, cut off a torn tail, and note damage.

    Segments that contain nothing sound and don't continue the log are removed from `segments` and
    from disk.

    Raises:
        OSError: the files can't be read or cut.
    """
    # 1. The recovery point is 100, in the segment of base 80: everything below is on disk.
    # 2. Segments 80 and 150 are scanned. 80 ends at 150: sound. 150 has batches up to 170 and
    #    then half a batch: torn, because 170 is after the recovery point. It is cut off.
    # 3. Had segment 80 ended at 140, offsets 140-149 would be damage, as segment 150 follows.
    # 4. Had everything after 90 been unsound, 90 to the end would be damage: 90-99 was on disk.
    begin = _first_unsynced(segments, recovery_point)
    reasons = {segment.base_offset: _rescan(segment) for segment in segments[begin:]}
    scanned_bytes = sum(segment.size_bytes for segment in segments[begin:])
    truncated_bytes = _drop_empty(segments, recovery_point)
    for earlier, later in pairwise(segments[begin:]):
        if earlier.next_offset < later.base_offset:
            earlier.note_tail_damage(reasons[earlier.base_offset], later.base_offset)
    last = segments[-1]
    trailing_bytes = last.trailing_bytes
    if last.next_offset < recovery_point:
        last.note_tail_damage(reasons[last.base_offset], None)
    elif trailing_bytes:
        last.cut()
        truncated_bytes += trailing_bytes
    damage = tuple(finding for segment in segments for finding in segment.damage)
    scanned = unsynced = len(segments[begin:])
    if unsynced == 1 and last.next_offset <= recovery_point:
        unsynced = 0  # Only its indexes are new, and they need no sync.
    return Recovery(scanned_bytes, scanned, truncated_bytes, damage, unsynced)


def rewrite(files: Files, segment: Segment, offset: int) -> None:
    """Rewrite the bytes of a segment from the batch that contains `offset` on, unchanged.

    1. A sync of the previous process failed; the kernel marked the pages clean. 2. The process was
    restarted: the scan reads those pages from memory and finds them sound. 3. A sync would skip
    them, as they are clean, and a power cut would take them. So they are made dirty again.

    Raises:
        OSError: the bytes can't be read or written.
    """
    if offset >= segment.next_offset:
        return
    # The batches of a damaged segment can't be found by offset: rewrite all of it.
    is_whole = not segment.damage and offset > segment.base_offset
    begin = segment.position_of(offset) if is_whole else 0
    with closing(files.open(segment.path, writable=True)) as file:
        for position in range(begin, segment.size_bytes, REWRITE_BYTES):
            size_bytes = min(REWRITE_BYTES, segment.size_bytes - position)
            write_whole(file, file.read(size_bytes, position), position)


def look_at_end(last: Segment) -> None:
    """Find the end of a log that another process may be writing; change and judge nothing.

    Bytes after the last whole batch are a write in progress, unless sound batches follow them.

    Raises:
        OSError: the files can't be read.
    """
    if not last.load() or (last.trailing_bytes and last.sound_behind()):
        last.rescan()


def load_sealed(segment: Segment, next_base_offset: int) -> None:
    """Load a segment that another one follows; if it ends too early, note damage.

    Raises:
        OSError: the files can't be read.
    """
    reason = ""
    sound = segment.load() and segment.next_offset == next_base_offset
    if not sound:
        reason = segment.rescan()
    if not sound or segment.has_stale_indexes:
        # Index entries that a power cut took were found again by the scan.
        segment.write_if_space(segment.keep_indexes)
    if segment.next_offset < next_base_offset:
        segment.note_tail_damage(reason, next_base_offset)


def _rescan(segment: Segment) -> str:
    reason = segment.rescan()
    # The index of aborted transactions may not have been on disk; a replay rebuilds it.
    if segment.has_markers:
        segment.aborted.distrust()
    else:
        segment.aborted.remove()
    return reason


def _first_unsynced(segments: list[Segment], recovery_point: int) -> int:
    bases = [segment.base_offset for segment in segments]
    return max(bisect_right(bases, recovery_point) - 1, 0)


def _drop_empty(segments: list[Segment], recovery_point: int) -> int:
    dropped_bytes = 0
    # A segment without a sound batch was created by a roll whose data never reached the disk. It
    # goes if what precedes it is unfinished too. It stays if the log reaches up to it (an idle
    # new segment), or if synced offsets before it are missing (damage, which must be reported).
    while len(segments) > 1:
        earlier, last = segments[-2:]
        sound = last.size_bytes > 0 or earlier.next_offset == last.base_offset
        if sound or not earlier.loaded or earlier.next_offset < recovery_point:
            break
        dropped_bytes += last.trailing_bytes
        last.remove()
        segments.pop()
    return dropped_bytes
