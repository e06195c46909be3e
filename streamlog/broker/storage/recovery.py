"""Recovery: what the end of a log is worth after its process or its machine went down.

Nothing before the recovery point can have lost anything. It never is far behind (a log is synced
one roll behind, see `partition_log`) but where a hole was found once: there it waits, so that the
hole is found again. The batches from its segment on are scanned:

1. What is not sound at the very end, behind the recovery point, is *torn*: it was being
   written, nobody was promised it in any other way than "as long as the machine lives". Cut.
2. Anything else that is not sound is *damage*: sound batches follow it, or it had been synced.
   It is reported and refused, never cut off, and what follows it is kept and served.

A torn tail and a damaged last batch that was not synced yet can't be told apart.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from streamlog.broker.storage.damage import Damage
from streamlog.broker.storage.files import Files, write_whole
from streamlog.broker.storage.segment import Segment

WRITTEN_AGAIN_BYTES = 1024 * 1024
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


def write_again(files: Files, segment: Segment, offset: int) -> None:
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
        for position in range(begin, segment.size_bytes, WRITTEN_AGAIN_BYTES):
            size_bytes = min(WRITTEN_AGAIN_BYTES, segment.size_bytes - position)
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
    if not sound or segment.indexes_are_behind:
        segment.write_what_fits(
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
