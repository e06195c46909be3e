"""Survivors: which segments compaction rewrites, and which records stay (KIP-58, KIP-534).

A compacted log has a *clean* part, in which no key occurs twice, and a *dirty* part after it. A
cleaning maps each key of the dirty part to its newest offset (`OffsetMap`) and rewrites both parts
without the older records. Offsets and order stay. A tombstone is removed only
`delete.retention.ms` after a cleaning first found it, so a reader that starts at the beginning and
keeps up sees every deletion. Records of aborted transactions are removed at once; a transaction's
marker stays as long as any of its records, and `delete.retention.ms` longer. The active segment,
records younger than `min.compaction.lag.ms`, open transactions and what follows them, and
uncommitted records are never touched.

The map takes 24 bytes per key: 16 of a keyed hash (BLAKE2b with a secret per cleaning, against
deliberate collisions) and 8 of the offset, with open addressing and linear probing. Its memory is
fixed when it is created; when it is full, the cleaning ends there.

Rules of this module: it gets facts and returns decisions; `cleaning` does the rewrite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.compaction.cleaned_batch import delete_horizon_ms
from streamlog.broker.storage.log.producer_states import EndedTransaction, OpenTransactions
from streamlog.records.batch import LogRecord, RecordBatch
from streamlog.records.control_batches import AbortedBatches

OFFSETS_MAX = 2**31
"""Offsets per segment: its index holds them relative to the base, in four bytes."""


class SegmentFacts(NamedTuple):
    """The facts about a sealed segment that decisions need."""

    base_offset: int
    next_offset: int
    size_bytes: int
    index_entries: int
    first_timestamp_ms: int
    max_timestamp_ms: int


class Dirtiness(NamedTuple):
    """What a cleaning of a log would do."""

    first_dirty_offset: int
    end_offset: int
    """The offset at which the cleaning has to stop."""
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """Whether a record in it is older than `max.compaction.lag.ms`."""

    @property
    def ratio(self) -> float:
        """The dirty share of the bytes that can be cleaned, 0 to 1."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    def due(self, config: TopicConfig) -> bool:
        """Whether a cleaning is worthwhile or overdue."""
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
    """Measure the dirty part of these segments, which are all but the active one.

    The log is clean before `cleaned_offset`; uncommitted records begin at `limit_offset`.
    """
    first = max(cleaned_offset, sealed[0].base_offset if sealed else 0)
    lag_ms = config.min_compaction_lag_ms
    # Without a lag, no timestamp is too new, not even one in the future.
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
    """Return the end of the last whole segment that is old enough and committed."""
    end = first
    for segment in sealed:
        if segment.next_offset <= first:
            continue
        # A cleaning covers a prefix of the log, so it ends at the first segment that is not
        # entirely committed, or has one young record.
        if segment.next_offset > limit_offset or segment.max_timestamp_ms > newest_ms:
            break
        end = segment.next_offset
    return end


def groups(
    sealed: Sequence[SegmentFacts], *, end_offset: int, config: TopicConfig, index_entry_bytes: int
) -> list[range]:
    """Group the segments before `end_offset` so that each group fits one segment; by number."""
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
        # One more per segment: a merged segment begins a new index interval for each.
        entries += segment.index_entries + 1
        last = number + 1
    if sealed and sealed[0].base_offset < end_offset:
        found.append(range(begin, last))
    return found


class Outcomes:
    """The outcomes of a log's transactions from some offset on, fed batch by batch."""

    def __init__(self) -> None:
        self._open = OpenTransactions()
        self._aborted = AbortedBatches()

    def take(self, batch: RecordBatch) -> None:
        """Add the next batch.

        Raises:
            CorruptData: a marker is malformed.
        """
        decided = self._open.take(batch, batch.base_offset)
        if decided is not None and decided.aborted:
            self._aborted.add(decided.range)

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the earliest open transaction; None without one."""
        return self._open.first_open_offset

    def is_aborted_data(self, batch: RecordBatch) -> bool:
        """Whether the batch contains data of an aborted transaction."""
        return self._aborted.hides(batch)


class Survivors:
    """Decides which records stay, batch by batch in the order of the log.

    Args:
        end_offset: batches from here on stay unchanged.
        outcomes: the outcomes of transactions that reach into the dirty part.
        last_offsets: per producer, the last offset of the batch that preserves its state.
        wall_ms: the current time, for tombstones.
        delete_retention_ms: how long a tombstone stays from now on.
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

    def is_untouched(self, batch: RecordBatch) -> bool:
        """Whether the batch stays unchanged, whatever it contains."""
        base_offset: int = batch.base_offset
        return base_offset >= self._end_offset

    def is_removed(self, batch: RecordBatch) -> bool:
        """Whether no record of the batch stays, whatever it contains."""
        if batch.record_count == 0:
            return True
        return self._outcomes.is_aborted_data(batch)

    def select(
        self, batch: RecordBatch, records: Iterable[LogRecord], newest: Iterable[int]
    ) -> list[bool]:
        """Return for each record whether it stays; `newest` has the map's offset for its key."""
        # 1. The map says: the newest record of key a is at 70. A record of a at 40 goes, the one
        #    at 70 stays; a key that the map does not know (-1) has nothing newer, so it stays.
        # 2. The record at 70 is a tombstone. The first cleaning keeps it and sets the horizon to
        #    now + delete.retention.ms. A cleaning after the horizon removes it.
        # 3. A reader that was at 50 during the first cleaning has that time to reach 70. Without
        #    the horizon it would read 40 and miss that the key was deleted.
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
        """Return the delete horizon to write into the batch; None if it has or needs none."""
        if delete_horizon_ms(batch) is not None:
            return None
        pairs = zip(records, kept, strict=True)
        dying = any(keep and record.value is None for record, keep in pairs)
        return self._horizon_ms if dying else None

    def note_data(self, batch: RecordBatch) -> None:
        """Note that records of this batch stay, so the marker of their transaction must stay."""
        if batch.is_transactional:
            self._with_data.add(batch.producer_id)

    def marker_stays(self, batch: RecordBatch) -> tuple[bool, int | None]:
        """Decide whether a transaction's marker stays, and which horizon to write into its batch.

        It is needed as long as there is data of its transaction; after that it gets a horizon.
        """
        if batch.producer_id in self._with_data:
            self._with_data.discard(batch.producer_id)
            return True, None
        horizon_ms = delete_horizon_ms(batch)
        if horizon_ms is None:
            return True, self._horizon_ms
        return self._wall_ms < horizon_ms, None

    def keeps_producer(self, batch: RecordBatch) -> bool:
        """Whether the batch stays, emptied, for the last sequence or epoch of its producer."""
        # Otherwise a replay of the compacted log would forget the producer's sequence number, and
        # accept a retry of its last batch a second time (KIP-98).
        return self._last_offsets.get(batch.producer_id) == batch.last_offset

    def note_written(self, batch: RecordBatch) -> Iterator[EndedTransaction]:
        """Add what was written of a batch; yield the transaction that it aborts, if any."""
        decided = self._written.take(batch, batch.base_offset)
        if decided is not None and decided.aborted:
            yield decided


ENTRY_BYTES = 24
HASH_BYTES = 16
FILL_MAX = 0.75
"""The share of used slots at which the map is full; beyond it, searches get long."""
SLOTS_MIN = 16

PAGE_SLOTS = 1 << 14
"""Slots per page of memory, which takes a fraction of a millisecond to allocate and clear."""

_ABSENT = -1
_PAGE_BITS = PAGE_SLOTS.bit_length() - 1
_PAGE_MASK = PAGE_SLOTS - 1
_first_slot = int.from_bytes


class OffsetMap:
    """Maps keys to offsets; exhaust `reserve` first.

    It uses at most `memory_bytes`, and no more than `keys_max` keys need. `secret` is random bytes.
    """

    def __init__(self, *, memory_bytes: int, keys_max: int, secret: bytes) -> None:
        # The number of keys is at most the number of offsets.
        wanted = 2 * keys_max  # Half full, so that most searches need one probe.
        self._slots = max(min(memory_bytes // ENTRY_BYTES, wanted), SLOTS_MIN)
        self._hashes: list[bytearray] = []
        self._offsets: list[memoryview] = []
        self._hash = blake2b(digest_size=HASH_BYTES, key=secret)
        self._keys = 0
        self._keys_max = int(self._slots * FILL_MAX)

    def __len__(self) -> int:
        return self._keys

    def reserve(self) -> Iterator[int]:
        """Allocate the memory, one page per step; yield the bytes of each."""
        for begin in range(0, self._slots, PAGE_SLOTS):
            slots = min(PAGE_SLOTS, self._slots - begin)
            self._hashes.append(bytearray(slots * HASH_BYTES))
            # Offsets are stored plus one, because fresh memory is 0.
            self._offsets.append(memoryview(bytearray(slots * 8)).cast("q"))
            yield slots * ENTRY_BYTES

    def release(self) -> Iterator[int]:
        """Free the memory page by page; the map can't be used afterwards."""
        while self._offsets:
            self._hashes.pop()
            yield len(self._offsets.pop()) * ENTRY_BYTES

    def take(self, records: Iterable[LogRecord]) -> bool:
        """Add records in order, each the newest of its key so far; False if the map is full.

        Records without a key are skipped. Records added before the map was full stay in it, because
        their offsets are right.
        """
        copy, hashes, offsets, slots = self._hash.copy, self._hashes, self._offsets, self._slots
        for offset, _, key, _, _ in records:
            if key is None:
                continue
            state = copy()
            state.update(key)
            digest = state.digest()
            slot = _first_slot(digest[:8], "little") % slots
            page, at = slot >> _PAGE_BITS, slot & _PAGE_MASK
            while offsets[page][at] and not hashes[page].startswith(digest, at * HASH_BYTES):
                slot = slot + 1 if slot + 1 < slots else 0
                page, at = slot >> _PAGE_BITS, slot & _PAGE_MASK
            if not offsets[page][at]:
                if self._keys >= self._keys_max:
                    return False
                self._keys += 1
                hashes[page][at * HASH_BYTES : (at + 1) * HASH_BYTES] = digest
            offsets[page][at] = offset + 1
        return True

    def newest(self, records: Iterable[LogRecord]) -> list[int]:
        """Return for each record the offset added last for its key, or -1."""
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
            page, at = slot >> _PAGE_BITS, slot & _PAGE_MASK
            while offsets[page][at] and not hashes[page].startswith(digest, at * HASH_BYTES):
                slot = slot + 1 if slot + 1 < slots else 0
                page, at = slot >> _PAGE_BITS, slot & _PAGE_MASK
            found.append(offsets[page][at] - 1)
        return found
