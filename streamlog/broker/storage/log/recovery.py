"""Recovery: what the end of a log is worth after its process or machine went down.

Nothing before the recovery point can have lost anything. The recovery point is at most one roll
behind (see `partition_log`), unless a hole was found: it stays before the hole, so that the next
opening finds the hole again. The batches from its segment on are scanned:

1. Unsound bytes at the very end, behind the recovery point, are *torn*: they were being written,
   and no client was promised more than "as long as the machine lives". They are cut off.
2. Any other unsound bytes are *damage*: sound batches follow them, or they had been synced. Damage
   is reported and refused, never cut off, and what follows it is kept and served.

A torn tail and a damaged last batch that was not synced yet can't be told apart.

`LostOffsets` records which offsets a repair gave up, in a file beside the segments. Other replicas
may have these records, so a replica with such a log is not complete until it has fetched again
from the first of them. Rule: lost offsets are recorded before the repaired segment is in place,
and forgotten once the log is durably cut below them.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise

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
    """The lost offsets of the log in `directory`: none before `first_offset` or from `end_offset`.

    What reads or writes raises OSError if the disk refuses.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._range: tuple[int, int] | None = None

    def read(self) -> None:
        """Know what is written down. A file that says nothing says that all may be lost."""
        try:
            content = json.loads(read_file(self._files, f"{self._directory}/{LOST_OFFSETS}"))
            is_known = content["version"] == _FORMAT
            found = (int(content["first_offset"]), int(content["end_offset"]))
            self._range = found if is_known else _EVERYTHING
        except FileNotFoundError:
            self._range = None
        except (RecursionError, *MALFORMED):
            self._range = _EVERYTHING

    def open(self, log_start_offset: int, log_end_offset: int) -> None:
        """Know what is written down of a log that begins and ends there."""
        self.read()
        self.keep_within(log_start_offset, log_end_offset)

    def first_from(self, log_start_offset: int) -> int | None:
        """From where on a log that begins there may lack records; None if it does not."""
        if self._range is None or self._range[1] <= log_start_offset:
            return None
        return max(self._range[0], log_start_offset)

    def add(self, first_offset: int, end_offset: int) -> None:
        """Write down, durably, that these are lost, besides what is known to be."""
        if self._range is not None:
            first_offset = min(first_offset, self._range[0])
            end_offset = max(end_offset, self._range[1])
        text = json.dumps(
            {"version": _FORMAT, "first_offset": first_offset, "end_offset": end_offset}
        )
        replace_file(self._files, f"{self._directory}/{LOST_OFFSETS}", text.encode())
        self._range = (first_offset, end_offset)

    def keep_within(self, log_start_offset: int, log_end_offset: int) -> None:
        """The log begins and ends there now, durably: nothing outside of it can be lost."""
        if self._range is None:
            return
        first_offset, end_offset = self._range
        if end_offset <= log_start_offset or log_end_offset <= first_offset:
            with suppress(FileNotFoundError):
                self._files.remove(f"{self._directory}/{LOST_OFFSETS}")
            self._files.sync_directory(self._directory)
            self._range = None


REWRITE_BYTES = 1024 * 1024
"""At a time."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening a log took."""

    scanned_bytes: int = 0
    scanned_segments: int = 0
    """The last so many of the log."""
    truncated_bytes: int = 0
    damage: tuple[Damage, ...] = ()
    """Places that were found damaged; what was not scanned is not judged."""
    unsynced_segments: int = 0
    """The last so many: they, and their indexes, may be in the page cache only."""


def recover(segments: list[Segment], *, recovery_point: int) -> Recovery:
    """Scan the segments that may be torn, cut off a torn tail, note what is damaged.

    Segments with nothing sound in them that do not continue the log are removed from the list
    and from disk.

    Raises:
        OSError: the files can't be read or cut.
    """
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
    damage = tuple(place for segment in segments for place in segment.damage)
    scanned = unsynced = len(segments[begin:])
    if unsynced == 1 and last.next_offset <= recovery_point:
        unsynced = 0  # There is nothing new but its indexes, and they may wait.
    return Recovery(scanned_bytes, scanned, truncated_bytes, damage, unsynced)


def rewrite(files: Files, segment: Segment, offset: int) -> None:
    """Write what a segment has from the batch with `offset` in it on once more, as it is.

    A sync that failed in a life before leaves pages that are in memory, taken for clean, and not
    on disk: they look sound, and no sync would ever bring them there.

    Raises:
        OSError: they can't be read or written.
    """
    if offset >= segment.next_offset:
        return
    # In a damaged place nobody knows where a batch begins.
    is_whole = not segment.damage and offset > segment.base_offset
    begin = segment.position_of(offset) if is_whole else 0
    with closing(files.open(segment.path, writable=True)) as file:
        for position in range(begin, segment.size_bytes, REWRITE_BYTES):
            size_bytes = min(REWRITE_BYTES, segment.size_bytes - position)
            write_whole(file, file.read(size_bytes, position), position)


def look_at_end(last: Segment) -> None:
    """Find the end of a log that someone else may be writing; nothing is changed or judged.

    What follows the last whole batch is a write in progress, unless sound batches follow it.

    Raises:
        OSError: the files can't be read.
    """
    if not last.load() or (last.trailing_bytes and last.sound_behind()):
        last.rescan()


def load_sealed(segment: Segment, next_base_offset: int) -> None:
    """Load a segment that another one follows; an end that does not meet it is damage.

    Raises:
        OSError: the files can't be read.
    """
    reason = ""
    sound = segment.load() and segment.next_offset == next_base_offset
    if not sound:
        reason = segment.rescan()
    if not sound or segment.has_stale_indexes:
        segment.write_if_space(
            segment.keep_indexes
        )  # What a power cut took off them has been found again.
    if segment.next_offset < next_base_offset:
        segment.note_tail_damage(reason, next_base_offset)


def _rescan(segment: Segment) -> str:
    reason = segment.rescan()
    # Aborted transactions of a segment that was not on disk are told by a replay.
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
    while len(segments) > 1:
        earlier, last = segments[-2:]
        sound = last.size_bytes > 0 or earlier.next_offset == last.base_offset
        if sound or not earlier.loaded or earlier.next_offset < recovery_point:
            break
        dropped_bytes += last.trailing_bytes
        last.remove()
        segments.pop()
    return dropped_bytes
