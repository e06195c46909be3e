"""Follower: the follower's side of one partition: what to ask for, where to cut, what to append.

Pure. One fetch at a time is under way, and its answer counts only if it is the one that was asked
for, in this leader epoch, and the log still ends where it was asked from: a late, doubled or
foreign answer changes nothing.
Rule of the file: a fetch claims what is on disk, so none is sent before the log's end is; and no
cut goes below the high watermark, except after an election that was allowed to lose records.
"""

from __future__ import annotations

from streamlog.broker.replication.decisions import (
    NO_EPOCH,
    AdvanceHighWatermark,
    AdvanceLogStart,
    Append,
    BrokerIdentity,
    Diverging,
    Effect,
    OutstandingFetch,
    PartitionState,
    ReplicaFetch,
    StartAt,
    StopReplica,
    Truncate,
)
from streamlog.broker.replication.replica_log import ReplicaLog
from streamlog.broker.replication.replica_rules import CORRECT, Rules


class Follower:
    """Follower of one partition for one leader epoch.

    `fetch_ids` are numbers that no other fetch of this broker has, in this life and earlier ones.
    """

    def __init__(
        self,
        broker: BrokerIdentity,
        log: ReplicaLog,
        state: PartitionState,
        *,
        first_fetch_id: tuple[int, int],
        rules: Rules = CORRECT,
    ) -> None:
        self.epoch = state.leader_epoch
        self.leader = state.leader
        self._broker = broker
        self._last_unclean_epoch = state.last_unclean_epoch
        self._log = log
        self._rules = rules
        self._incarnation, self._number = first_fetch_id
        self._outstanding: OutstandingFetch | None = None
        self._stopped = False

    @property
    def next_fetch_id(self) -> tuple[int, int]:
        """What the next fetch will be called."""
        return self._incarnation, self._number

    @property
    def is_stopped(self) -> bool:
        """Whether following on would lose what was committed."""
        return self._stopped

    def next_fetch(self) -> OutstandingFetch | None:
        """What to ask the leader for now.

        None while an answer is due, or something is on its way to the disk.
        """
        if self._outstanding is not None or self._stopped:
            return None
        if self._log.counted_offset < self._log.end_offset and not self._rules.fetches_before_flush:
            return None
        fetch = ReplicaFetch(
            broker=self._broker.id,
            broker_epoch=self._broker.epoch,
            leader_epoch=self.epoch,
            offset=self._log.end_offset,
            last_epoch=self._log.last_epoch,
            log_start=self._log.start_offset,
        )
        self._outstanding = OutstandingFetch(self.next_fetch_id, self.leader, fetch)
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
        """The leader has sent batches up to `end_offset`, or none: then that is our end.

        The first of them may begin before our end, at `begin_offset`, if our log is empty: where
        the leader's log starts is within a batch then.
        """
        if not self._take(fetch_id):
            return []
        log = self._log
        if log_start > log.end_offset:
            log.start_at(log_start)
            return [StartAt(log_start)]
        effects: list[Effect] = []
        if begin_offset is not None and begin_offset < log.end_offset == log.start_offset:
            log.start_at(begin_offset)
            effects.append(StartAt(begin_offset))
        if end_offset > log.end_offset:
            log.end_offset = end_offset
            effects.append(Append(end_offset))
        if log_start > log.start_offset:
            log.start_offset = log_start
            effects.append(AdvanceLogStart(log_start))
        committed = min(high_watermark, log.end_offset)
        if committed > log.high_watermark:
            log.high_watermark = committed
            effects.append(AdvanceHighWatermark(committed))
        return effects

    def on_diverging(self, fetch_id: tuple[int, int], diverging: Diverging) -> list[Effect]:
        """Our log is not a beginning of the leader's: go back to where both may agree."""
        if not self._take(fetch_id):
            return []
        log = self._log
        epoch, end_offset = log.end_of(diverging.epoch)
        if epoch == diverging.epoch:
            end_offset = min(end_offset, diverging.end_offset)
        return self._cut(max(min(end_offset, log.end_offset), log.start_offset))

    def on_out_of_range(self, fetch_id: tuple[int, int], log_start: int) -> list[Effect]:
        """The leader has nothing of what we ask for: begin where its log begins."""
        if not self._take(fetch_id):
            return []
        log = self._log
        if log.end_offset < log_start or log.end_offset == log.start_offset:
            if log_start < log.high_watermark and not self._may_lose():
                return self._stop(log_start)
            log.start_at(log_start)
            return [StartAt(log_start)]
        return []

    def begin_anew(self, offset: int) -> list[Effect]:
        """Our log has lost what it had from `offset` on, and we are out of sync: fetch it again."""
        self._outstanding = None
        log = self._log
        if offset <= log.start_offset:
            log.start_at(log.start_offset)
            return [StartAt(log.start_offset)]
        log.cut(offset)
        return [Truncate(offset)]

    def on_failed(self, fetch_id: tuple[int, int]) -> None:
        """The fetch was refused, or its answer is lost: the next one may be sent."""
        if self._outstanding is not None and self._outstanding.fetch_id == fetch_id:
            self._outstanding = None

    def truncate_to_high_watermark(self) -> list[Effect]:
        """What followers did before KIP-101; only a planted fault does."""
        return self._cut(self._log.high_watermark)

    def _take(self, fetch_id: tuple[int, int]) -> bool:
        """Whether this is the answer that is due; if so, none is any more."""
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
        """Whether a leader was elected outside of the in-sync set since our last commit."""
        committed = self._log.high_watermark
        epoch = self._log.epochs.at(committed - 1) if committed > 0 else NO_EPOCH
        return self._last_unclean_epoch > epoch

    def _stop(self, offset: int) -> list[Effect]:
        self._stopped = True
        return [
            StopReplica(
                f"leader {self.leader} of epoch {self.epoch} has no records from offset {offset}"
                f" on, and those below {self._log.high_watermark} were committed"
            )
        ]
