"""Follower: what a follower of one partition fetches, where it cuts its log, what it appends.

Pure, for one leader epoch. `parse_fetched_batches` checks that batches follow each other without a
gap.

Rules of this module:

- A follower fetches only from an end that is on disk. One fetch is open at a time; its answer
  counts in this leader epoch only, and if the log still ends where the fetch began.
- No cut goes below the high watermark, except after an unclean election.

Not done here: the leader's side (`leader_replica`), the change of roles (`replica`), all I/O
(`partition_replica`, `replica_fetcher`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.replication.replica_state import (
    CORRECT,
    NO_EPOCH,
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BrokerIdentity,
    Diverging,
    Effect,
    OutstandingFetch,
    ReplicaFetch,
    ReplicaLog,
    ReplicaRules,
    ReplicaState,
    StartAt,
    StopReplica,
    Truncate,
)
from streamlog.broker.storage.compaction.cleaned_batch import filler
from streamlog.errors import CorruptData
from streamlog.records.batch import RecordBatch

if TYPE_CHECKING:
    from streamlog.protocol.schema import Buffer


_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults


class FetchedBatches(NamedTuple):
    """Batches that follow the log, and the offset after them."""

    records: Buffer
    end_offset: int
    begin_offset: int | None = None
    """The first batch's base offset, if a void log has to begin earlier than planned."""


def parse_fetched_batches(data: Buffer, offset: int, *, is_void: bool) -> FetchedBatches:
    """Return the batches in `data` for a log that ends at `offset`.

    The first batch may begin before `offset`: the leader's log starts within a batch, or
    compaction left a batch without records that spans the offset.

    Args:
        data: record batches of a fetch response.
        offset: the end of the follower's log.
        is_void: whether that log contains no record that the leader has.

    Raises:
        CorruptData: a batch is cut off, or does not follow the one before it. The log checks the
            CRC when it appends.
    """
    begin_offset: int | None = None
    due, position = offset, 0
    while position < len(data):
        batch = RecordBatch(data, position)
        if position == 0 and batch.base_offset < offset < batch.next_offset:
            if batch.record_count == 0:
                # Compacted away: an empty batch from `offset` on stands for the rest of the range.
                rest = filler(offset, batch.last_offset, batch.leader_epoch)
                data = rest + bytes(data[batch.size_bytes :])
                continue
            if is_void:
                # The leader deleted records up to the middle of this batch: a log without any of
                # its records takes the whole batch and begins with it.
                begin_offset = due = batch.base_offset
        if batch.base_offset != due:
            raise CorruptData(
                f"a fetched batch begins at offset {batch.base_offset} instead of {due}"
            )
        due = batch.next_offset
        position += batch.size_bytes
    return _new_tuple(FetchedBatches, (data, due, begin_offset))


class Follower:
    """Follower of one partition for one leader epoch.

    Fetch ids are unique over all starts of this broker: `first_fetch_id` is the number of this
    start, and the number of the first fetch.
    """

    def __init__(
        self,
        broker: BrokerIdentity,
        log: ReplicaLog,
        state: ReplicaState,
        *,
        first_fetch_id: tuple[int, int],
        rules: ReplicaRules = CORRECT,
    ) -> None:
        self.epoch = state.leader_epoch
        self.leader = state.leader
        self._broker = broker
        self._last_unclean_epoch = state.last_unclean_epoch
        self._is_mirror = state.mirror_of is not None
        self._log = log
        self._rules = rules
        self._incarnation, self._number = first_fetch_id
        self._outstanding: OutstandingFetch | None = None
        self._stopped = False

    @property
    def next_fetch_id(self) -> tuple[int, int]:
        """The id of the next fetch."""
        return self._incarnation, self._number

    @property
    def is_stopped(self) -> bool:
        """Whether this follower has stopped, because it would have to cut committed records."""
        return self._stopped

    def next_fetch(self) -> OutstandingFetch | None:
        """Return the next fetch; None while one is open, or while the log is not synced."""
        if self._outstanding is not None or self._stopped:
            return None
        # 1. The follower appends 8, and fetches from 9 before the sync. 2. The leader counts 8 as
        # confirmed and commits it. 3. Both lose power: 8 was committed and is on no disk.
        if self._log.counted_offset < self._log.end_offset and not self._rules.fetches_before_flush:
            return None
        fetch = ReplicaFetch(
            broker=self._broker.id,
            broker_epoch=self._broker.epoch,
            leader_epoch=self.epoch,
            offset=self._log.end_offset,
            last_epoch=self._log.last_epoch,
            log_start=self._log.start_offset,
            number=self._number + 1,
        )
        number = self._incarnation, self._number
        self._outstanding = OutstandingFetch(number, self.leader, fetch)
        self._number += 1
        return self._outstanding

    def on_fetched(
        self,
        fetch_id: tuple[int, int],
        *,
        end_offset: int,
        high_watermark: int,
        log_start: int,
        begin_offset: int | None = None,
    ) -> list[Effect]:
        """Handle an answer of the leader, with or without batches.

        Args:
            fetch_id: the fetch that is answered.
            end_offset: the offset after the last batch; without batches, the fetch's offset.
            high_watermark: the high watermark of the leader.
            log_start: the start of the leader's log.
            begin_offset: where a void log has to begin instead, see `FetchedBatches`.
        """
        if not self._take(fetch_id):
            return []
        log = self._log
        if log_start > log.end_offset:
            # The leader has deleted everything that is in this log, and the batches begin after a
            # gap.
            log.start_at(log_start)
            return [StartAt(log_start)]
        effects: list[Effect] = []
        # 1. This log has 3 and 4 of epoch 1, which were never committed. 2. The leader has a batch
        # from 3 to 8 of epoch 2, and deletes its records below 5. 3. Nothing below 5 counts any
        # more, and the batch has no half that could follow 4.
        is_void = log.end_offset in (log.start_offset, log_start)
        if begin_offset is not None and begin_offset < log.end_offset and is_void:
            log.start_at(begin_offset)
            effects.append(StartAt(begin_offset))
        if end_offset > log.end_offset:
            log.end_offset = end_offset
            effects.append(AppendBatches(end_offset))
        if log_start > log.start_offset:
            log.start_offset = log_start
            effects.append(AdvanceLogStart(log_start))
        # The leader's high watermark may be past this log's end: the batches were limited in size.
        committed = min(high_watermark, log.end_offset)
        if committed > log.high_watermark:
            log.high_watermark = committed
            effects.append(AdvanceHighWatermark(committed))
        return effects

    def on_diverging(self, fetch_id: tuple[int, int], diverging: Diverging) -> list[Effect]:
        """Cut the log where it diverges from the leader's (KIP-101, KIP-279, KIP-595).

        1. This log: epoch 1 up to 6, epoch 2 up to 9. The leader's: epoch 1 up to 8, epoch 3.
        2. The follower fetches from 9 with last epoch 2; the leader has no epoch 2, and answers
           with the last one before it: epoch 1, which ends at 8 there.
        3. Here epoch 1 ends at 6. Records 6 and 7 of epoch 2 are not the leader's, so the cut is
           at 6, the smaller of both ends. If this log has no epoch 1, the cut is where its last
           earlier epoch ends, and the next fetch compares again.
        """
        if not self._take(fetch_id):
            return []
        log = self._log
        epoch, end_offset = log.end_of(diverging.epoch)
        if epoch == diverging.epoch:
            end_offset = min(end_offset, diverging.end_offset)
        return self._cut(max(min(end_offset, log.end_offset), log.start_offset))

    def on_out_of_range(self, fetch_id: tuple[int, int], log_start: int) -> list[Effect]:
        """Begin at the start of the leader's log, which does not contain the fetch offset."""
        if not self._take(fetch_id):
            return []
        log = self._log
        # An end after the leader's is a divergence, which the next fetch finds by its epoch.
        if log.end_offset < log_start or log.end_offset == log.start_offset:
            # 1. The source deletes its records below 84, and the leader of the mirror, which ends
            # at 75, begins at 84. 2. Another replica, which ends at 75 too, leads next. 3. The log
            # of the former leader is empty: it loses nothing if it begins where the new one does.
            may_begin = self._is_mirror or self._may_lose()
            if log_start < log.high_watermark and not may_begin:
                return self._stop(log_start)
            log.start_at(log_start)
            return [StartAt(log_start)]
        return []

    def begin_anew(self, offset: int) -> list[Effect]:
        """Cut the log at `offset`, from which on it is damaged, to fetch the rest again.

        Only for a replica out of sync: the cut may go below the high watermark.
        """
        self._outstanding = None
        log = self._log
        if offset <= log.start_offset:
            log.start_at(log.start_offset)
            return [StartAt(log.start_offset)]
        log.cut(offset)
        return [Truncate(offset)]

    def on_failed(self, fetch_id: tuple[int, int]) -> None:
        """Allow the next fetch: this one was refused, or its answer is lost."""
        if self._outstanding is not None and self._outstanding.fetch_id == fetch_id:
            self._outstanding = None

    def renew(self) -> bool:
        """Give up an open fetch that names an older start of the log; return whether there is one.

        Retention here moves the start. The leader sends readers to this replica by it (KIP-392),
        and a fetch of a session may stay open for as long as the partition is idle.
        """
        outstanding = self._outstanding
        if outstanding is None or outstanding.fetch.log_start == self._log.start_offset:
            return False
        self._outstanding = None
        return True

    def truncate_to_high_watermark(self) -> list[Effect]:
        """Cut the log as followers did before KIP-101; only a planted fault does this.

        1. The follower has record 8, which is committed, but knows high watermark 8, not yet 9.
        2. It restarts and cuts 8. 3. The leader stops, and the follower is elected: 8 is lost.
        """
        return self._cut(self._log.high_watermark)

    def _take(self, fetch_id: tuple[int, int]) -> bool:
        """Return whether this is the awaited answer; if so, the fetch is closed.

        An answer for another end offset does not count: the log was cut since the fetch was sent.
        """
        outstanding = self._outstanding
        if outstanding is None or outstanding.fetch_id != fetch_id:
            return False
        self._outstanding = None
        return outstanding.fetch.offset == self._log.end_offset

    def _cut(self, offset: int) -> list[Effect]:
        log = self._log
        if offset >= log.end_offset:
            return []
        if offset < log.high_watermark and not self._may_lose():
            return self._stop(offset)
        log.cut(offset)
        return [Truncate(offset)]

    def _may_lose(self) -> bool:
        """Return whether there was an unclean election since the last record committed here."""
        committed = self._log.high_watermark
        epoch = self._log.epochs.at(committed - 1) if committed > 0 else NO_EPOCH
        return self._last_unclean_epoch > epoch

    def _stop(self, offset: int) -> list[Effect]:
        self._stopped = True
        return [
            StopReplica(
                f"the log of leader {self.leader}, epoch {self.epoch}, lacks the records from"
                f" offset {offset} on, although those below {self._log.high_watermark} are"
                " committed"
            )
        ]
