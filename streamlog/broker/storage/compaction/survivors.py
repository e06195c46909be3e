"""Survivors: when a log is compacted, which segments, and which records survive (KIP-58, KIP-534).

A compacted log has a *clean* part, in which no key occurs twice, and a *dirty* part behind it. A
cleaning maps each key in the dirty part to its newest offset (`OffsetMap`) and rewrites both
parts without the records that are older. Offsets and order stay. A tombstone is dropped only
`delete.retention.ms` after a cleaning first met it, so a reader that starts at the beginning and
keeps up sees every deletion. Records of aborted transactions go at once; a transaction's marker
stays as long as any of its records, and `delete.retention.ms` longer. The active segment, records
younger than `min.compaction.lag.ms`, open transactions and what follows them, and uncommitted
records are never touched.

The map takes 24 bytes a key: 16 of a keyed hash (BLAKE2b, with a secret per cleaning, against
collisions on purpose) and 8 of the offset, with open addressing and linear probing. Its memory is
fixed when it is made; when it is full the cleaning ends there.

Rule of this module: facts in, verdicts out. `cleaning` does the rewrite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.compaction.cleaned_batch import delete_horizon_ms
from streamlog.broker.storage.log.producer_states import Decided, OpenTransactions
from streamlog.records.batch import LogRecord, RecordBatch
from streamlog.records.control_batches import AbortedBatches

OFFSETS_MAX = 2**31
"""In one segment: its index holds them relative to the base, in four bytes."""


class SegmentFacts(NamedTuple):
    """What the decisions need to know of a sealed segment."""

    base_offset: int
    next_offset: int
    size_bytes: int
    index_entries: int
    first_timestamp_ms: int
    max_timestamp_ms: int


class Dirtiness(NamedTuple):
    """What there is to clean in a log."""

    first_dirty_offset: int
    end_offset: int
    """Where the cleaning has to stop."""
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """Whether `max.compaction.lag.ms` has passed since a record in it was written."""

    @property
    def ratio(self) -> float:
        """The dirty part of what can be cleaned, 0 to 1."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    def due(self, config: TopicConfig) -> bool:
        """Whether it is worth, or time, to clean."""
        if self.dirty_bytes == 0:
            return False
        return self.overdue or self.ratio > config.min_cleanable_dirty_ratio


def dirtiness(
    sealed: Sequence[SegmentFacts],
    *,
    cleaned_offset: int,
    limit_offset: int,
    config: TopicConfig,
    wall_ms: int,
) -> Dirtiness:
    """What there is to clean in these segments, which are all but the active one.

    The log is clean before `cleaned_offset`; what is not committed begins at `limit_offset`.
    """
    first = max(cleaned_offset, sealed[0].base_offset if sealed else 0)
    lag_ms = config.min_compaction_lag_ms
    # Without a lag nothing is too young, were it from the future.
    end = _end_offset(sealed, first, limit_offset, wall_ms - lag_ms if lag_ms else math.inf)
    dirty = [segment for segment in sealed if first < segment.next_offset <= end]
    clean_bytes = sum(segment.size_bytes for segment in sealed if segment.next_offset <= first)
    stamps = [segment.first_timestamp_ms for segment in dirty if segment.first_timestamp_ms >= 0]
    return Dirtiness(
        first_dirty_offset=first,
        end_offset=max(end, first),
        clean_bytes=clean_bytes,
        dirty_bytes=sum(segment.size_bytes for segment in dirty),
        overdue=bool(stamps) and min(stamps) < wall_ms - config.max_compaction_lag_ms,
    )


def _end_offset(
    sealed: Sequence[SegmentFacts], first: int, limit_offset: int, newest_ms: float
) -> int:
    """Whole segments only: up to the first that is too young or not committed as a whole."""
    end = first
    for segment in sealed:
        if segment.next_offset <= first:
            continue
        if segment.next_offset > limit_offset or segment.max_timestamp_ms > newest_ms:
            break
        end = segment.next_offset
    return end


def groups(
    sealed: Sequence[SegmentFacts], *, end_offset: int, config: TopicConfig, index_entry_bytes: int
) -> list[range]:
    """Which segments before `end_offset` become one each: as many as fit, by number."""
    found: list[range] = []
    begin = size_bytes = entries = 0
    for number, segment in enumerate(sealed):
        if segment.base_offset >= end_offset:
            break
        full = (
            size_bytes + segment.size_bytes > config.segment_bytes
            or (entries + segment.index_entries) * index_entry_bytes > config.segment_index_bytes
            or segment.next_offset - sealed[begin].base_offset >= OFFSETS_MAX
        )
        if full and number > begin:
            found.append(range(begin, number))
            begin, size_bytes, entries = number, 0, 0
        size_bytes += segment.size_bytes
        # One more, for the intervals that a merged segment begins anew.
        entries += segment.index_entries + 1
        last = number + 1
    if sealed and sealed[0].base_offset < end_offset:
        found.append(range(begin, last))
    return found


class Outcomes:
    """How the transactions of a log from some offset on end, fed batch by batch."""

    def __init__(self) -> None:
        self._open = OpenTransactions()
        self._aborted = AbortedBatches()

    def take(self, batch: RecordBatch) -> None:
        """The next batch.

        Raises:
            CorruptData: a marker is malformed.
        """
        decided = self._open.take(batch, batch.base_offset)
        if decided is not None and decided.aborted:
            self._aborted.add(decided.range)

    @property
    def first_open_offset(self) -> int | None:
        """Where the earliest open transaction begins; None if all are decided."""
        return self._open.first_open_offset

    def holds_aborted(self, batch: RecordBatch) -> bool:
        """Whether the batch is data of an aborted transaction."""
        return self._aborted.hides(batch)


class Survivors:
    """Which records stay, asked batch by batch in the order of the log.

    Args:
        end_offset: what lies behind stays as it is.
        outcomes: of the transactions that reach into the dirty part.
        last_offsets: of the batch that tells of a producer, for all that the log remembers.
        wall_ms: now, for tombstones.
        delete_retention_ms: how long a tombstone stays after this.
    """

    def __init__(
        self,
        *,
        end_offset: int,
        outcomes: Outcomes,
        last_offsets: Mapping[int, int],
        wall_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._end_offset = end_offset
        self._outcomes = outcomes
        self._last_offsets = last_offsets
        self._wall_ms = wall_ms
        self._horizon_ms = wall_ms + delete_retention_ms
        self._with_data: set[int] = set()
        self._written = OpenTransactions()

    def untouched(self, batch: RecordBatch) -> bool:
        """Whether the batch stays as it is, whatever is in it."""
        base_offset: int = batch.base_offset
        return base_offset >= self._end_offset

    def gone(self, batch: RecordBatch) -> bool:
        """Whether no record of the batch stays, whatever is in it."""
        if batch.record_count == 0:
            return True
        return self._outcomes.holds_aborted(batch)

    def kept(
        self, batch: RecordBatch, records: Iterable[LogRecord], newest: Iterable[int]
    ) -> list[bool]:
        """For each data record whether it stays; `newest` is the map's offset for its key."""
        horizon_ms = delete_horizon_ms(batch)
        tombstones = horizon_ms is None or self._wall_ms < horizon_ms
        return [
            record.key is not None
            and record.offset >= latest
            and (tombstones or record.value is not None)
            for record, latest in zip(records, newest, strict=True)
        ]

    def horizon_ms(
        self, batch: RecordBatch, records: Iterable[LogRecord], kept: Iterable[bool]
    ) -> int | None:
        """The horizon to write into the batch, if it has none and needs one."""
        if delete_horizon_ms(batch) is not None:
            return None
        pairs = zip(records, kept, strict=True)
        dying = any(keep and record.value is None for record, keep in pairs)
        return self._horizon_ms if dying else None

    def note_data(self, batch: RecordBatch) -> None:
        """Records of this batch have stayed: the marker of its transaction has to stay, too."""
        if batch.is_transactional:
            self._with_data.add(batch.producer_id)

    def marker_stays(self, batch: RecordBatch) -> tuple[bool, int | None]:
        """Whether a transaction's marker stays, and the horizon to write into its batch.

        It is needed as long as there is data of its transaction; then it gets a horizon.
        """
        if batch.producer_id in self._with_data:
            self._with_data.discard(batch.producer_id)
            return True, None
        horizon_ms = delete_horizon_ms(batch)
        if horizon_ms is None:
            return True, self._horizon_ms
        return self._wall_ms < horizon_ms, None

    def keeps_producer(self, batch: RecordBatch) -> bool:
        """Whether the batch stays, without records, for its producer's last sequence or epoch."""
        return self._last_offsets.get(batch.producer_id) == batch.last_offset

    def written(self, batch: RecordBatch) -> Iterator[Decided]:
        """The batch, or some of it, is in the cleaned log; yields what it has aborted there."""
        decided = self._written.take(batch, batch.base_offset)
        if decided is not None and decided.aborted:
            yield decided


ENTRY_BYTES = 24
HASH_BYTES = 16
FILL_MAX = 0.75
"""Of the slots; fuller, and a search takes too many looks."""
SLOTS_MIN = 16

PAGE_SLOTS = 1 << 14
"""Slots in one piece of memory: to make and clear it takes a fraction of a millisecond."""

_ABSENT = -1
_PAGE_BITS = PAGE_SLOTS.bit_length() - 1
_PAGE_MASK = PAGE_SLOTS - 1
_first_slot = int.from_bytes


class OffsetMap:
    """At most `memory_bytes`, and no more than `keys_max` keys need. `secret` is random bytes.

    Before anything is taken, `reserve` has to come to its end.
    """

    def __init__(self, *, memory_bytes: int, keys_max: int, secret: bytes) -> None:
        wanted = 2 * keys_max  # half full, so that most searches take one look
        self._slots = max(min(memory_bytes // ENTRY_BYTES, wanted), SLOTS_MIN)
        self._hashes: list[bytearray] = []
        self._offsets: list[memoryview] = []
        self._hash = blake2b(digest_size=HASH_BYTES, key=secret)
        self._keys = 0
        self._keys_max = int(self._slots * FILL_MAX)

    def __len__(self) -> int:
        return self._keys

    def reserve(self) -> Iterator[int]:
        """Get the memory, a page with each step; each gives how many bytes it was."""
        for begin in range(0, self._slots, PAGE_SLOTS):
            slots = min(PAGE_SLOTS, self._slots - begin)
            self._hashes.append(bytearray(slots * HASH_BYTES))
            # One more than the offset, as 0 is what fresh memory has.
            self._offsets.append(memoryview(bytearray(slots * 8)).cast("q"))
            yield slots * ENTRY_BYTES

    def release(self) -> Iterator[int]:
        """Give the memory back in the same way. Nothing may be asked any more."""
        while self._offsets:
            self._hashes.pop()
            yield len(self._offsets.pop()) * ENTRY_BYTES

    def take(self, records: Iterable[LogRecord]) -> bool:
        """These are the newest of their keys so far, in order; False if there was no room.

        Records without a key are left out. What was taken before there was no room stays:
        it is true, too.
        """
        copy, hashes, offsets, slots = self._hash.copy, self._hashes, self._offsets, self._slots
        for offset, _, key, _, _ in records:
            if key is None:
                continue
            state = copy()
            state.update(key)
            digest = state.digest()
            slot = _first_slot(digest[:8], "little") % slots
            page, place = slot >> _PAGE_BITS, slot & _PAGE_MASK
            while offsets[page][place] and not hashes[page].startswith(digest, place * HASH_BYTES):
                slot = slot + 1 if slot + 1 < slots else 0
                page, place = slot >> _PAGE_BITS, slot & _PAGE_MASK
            if not offsets[page][place]:
                if self._keys >= self._keys_max:
                    return False
                self._keys += 1
                hashes[page][place * HASH_BYTES : (place + 1) * HASH_BYTES] = digest
            offsets[page][place] = offset + 1
        return True

    def newest(self, records: Iterable[LogRecord]) -> list[int]:
        """For each record the offset that was taken last for its key, or -1."""
        copy, hashes, offsets, slots = self._hash.copy, self._hashes, self._offsets, self._slots
        found: list[int] = []
        for _, _, key, _, _ in records:
            if key is None:
                found.append(_ABSENT)
                continue
            state = copy()
            state.update(key)
            digest = state.digest()
            slot = _first_slot(digest[:8], "little") % slots
            page, place = slot >> _PAGE_BITS, slot & _PAGE_MASK
            while offsets[page][place] and not hashes[page].startswith(digest, place * HASH_BYTES):
                slot = slot + 1 if slot + 1 < slots else 0
                page, place = slot >> _PAGE_BITS, slot & _PAGE_MASK
            found.append(offsets[page][place] - 1)
        return found
