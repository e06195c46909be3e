"""Compaction, the decisions: when, which segments, and which records survive (after KIP-58, 534).

A compacted log has a *clean* part, in which no key occurs twice, and a *dirty* part behind it.
A cleaning takes the newest offset of each key in the dirty part into a map and rewrites both
without the records that are older than what the map says. Offsets and order stay. A tombstone
is only dropped `delete.retention.ms` after a cleaning has first met it, so that a reader who
begins at the start and keeps up sees every deletion; records of aborted transactions go at once.
A transaction's marker stays as long as anything of it does, and then for that time, too.
Never touched: the active segment, what is younger than `min.compaction.lag.ms`, an open
transaction and what follows it, and what is not committed.
Rule of the file: facts in, verdicts out; the rewrite is in `cleaning`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from streamlog.broker.config import TopicConfig
from streamlog.broker.storage.cleaned_batch import delete_horizon_ms
from streamlog.broker.storage.transactions import Decided, Transactions
from streamlog.records.aborted import AbortedBatches
from streamlog.records.batch import Record, RecordBatch

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
        self._open = Transactions()
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
        self._written = Transactions()

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
        self, batch: RecordBatch, records: Iterable[Record], newest: Iterable[int]
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
        self, batch: RecordBatch, records: Iterable[Record], kept: Iterable[bool]
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
