"""Replica: one broker's copy of one partition, as its leader, a follower, or neither.

Pure. Committed metadata says which of them it is; all three share the log's numbers (`ReplicaLog`),
so a high watermark survives a change of leader. `Follower` decides what to fetch, where to cut and
what to append. One fetch at a time is in flight, and its answer counts only if it answers that
fetch, in this leader epoch, and the log still ends where the fetch began.
`parse_fetched_batches` checks that batches follow each other and the log without a gap.

Rules of this module: a follower fetches only from an end that is on disk; no cut goes below the
high watermark, except after an unclean election. A replica acts on nothing that was committed
before this start of the broker was registered. A scenario without that: A leads in epoch 3 and
serves records that are not synced; A loses them in a power cut, comes back, reads in its metadata
log that it leads in epoch 3, and writes others at the same offsets, in the same epoch.

Not done here: the leader's side (`leader_replica`), all I/O (`partition_replica`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.replication.leader_replica import Leader
from streamlog.broker.replication.replica_state import (
    CORRECT,
    NO_EPOCH,
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BeginEpoch,
    BrokerIdentity,
    Diverging,
    Effect,
    LoseLeadership,
    OutstandingFetch,
    ReplicaFetch,
    ReplicaLog,
    ReplicaRules,
    ReplicaSettings,
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


class FetchedBatches(NamedTuple):
    """What may be appended."""

    records: Buffer
    end_offset: int
    begin_offset: int | None = None
    """Where it begins, if that is before the end of the follower's log."""


def parse_fetched_batches(data: Buffer, offset: int, *, is_empty: bool) -> FetchedBatches:
    """The batches in `data`, for a log that ends at `offset`, and holds nothing if `is_empty`.

    Raises:
        CorruptData: one is cut off, or does not follow the one before it. Whether its bytes are
            what they were is the log's to find out.
    """
    begin_offset: int | None = None
    due, position = offset, 0
    while position < len(data):
        batch = RecordBatch(data, position)
        if position == 0 and batch.base_offset < offset < batch.next_offset:
            if batch.record_count == 0:
                rest = filler(offset, batch.last_offset, batch.leader_epoch)
                data = rest + bytes(data[batch.size_bytes :])
                continue
            if is_empty:
                begin_offset = due = batch.base_offset
        if batch.base_offset != due:
            raise CorruptData(f"a batch begins at offset {batch.base_offset}, {due} is due")
        due = batch.next_offset
        position += batch.size_bytes
    return FetchedBatches(data, due, begin_offset)


class Follower:
    """Follower of one partition for one leader epoch.

    `fetch_ids` are numbers that no other fetch of this broker has, in this life and earlier ones.
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
            effects.append(AppendBatches(end_offset))
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


class Replica:
    """This broker's replica of one partition.

    `incarnation` is a number that no earlier life of this broker has had.
    """

    def __init__(
        self,
        broker_id: int,
        log: ReplicaLog,
        *,
        brokers: Mapping[int, int],
        settings: ReplicaSettings,
        incarnation: int,
        rules: ReplicaRules = CORRECT,
    ) -> None:
        self.log = log
        self.state: ReplicaState | None = None
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self._broker = BrokerIdentity(broker_id)
        self._registered_offset = 0
        self._brokers = brokers
        self._settings = settings
        self._rules = rules
        self._fetch_id = (0 if rules.repeats_fetch_ids else incarnation, 0)

    @property
    def leader_epoch(self) -> int | None:
        """The newest leader epoch that this replica knows of; None before it knows any."""
        return None if self.state is None else self.state.leader_epoch

    def on_registered(self, broker_epoch: int, metadata_offset: int) -> list[Effect]:
        """This life of the broker was registered by the record at `metadata_offset`.

        What it did under an earlier registration ends.
        """
        if broker_epoch == self._broker.epoch:
            return []
        self._broker.epoch, self._registered_offset = broker_epoch, metadata_offset
        if self._rules.takes_old_metadata:
            return []
        self.state = None
        return self._leave()

    def on_metadata(
        self, state: ReplicaState, *, metadata_offset: int, now_ms: int
    ) -> list[Effect]:
        """The partition's state as of `metadata_offset`, committed.

        It is ignored before `on_registered`, if it is older than the registration, and if it is
        older than what is known. So the shell brings the state of every partition again once it
        has applied the registration.
        """
        if not self._is_news(state, metadata_offset):
            return []
        previous, self.state = self.state, state
        new_epoch = previous is None or state.leader_epoch > previous.leader_epoch
        if state.leader == self._broker.id:
            if self.leader is not None and not new_epoch:
                return self.leader.on_metadata(state, now_ms)
            return self._lead(state, now_ms)
        if self.follower is not None and not new_epoch:
            return []
        return self._follow(state)

    def retire(self) -> list[Effect]:
        """The partition is none of this broker's any more."""
        self.state = None
        return self._leave()

    def on_appended(self, end_offset: int) -> list[Effect]:
        """The leader's log now ends at `end_offset`."""
        self.log.end_offset = end_offset
        return [] if self.leader is None else self.leader.on_appended(end_offset)

    def on_flushed(self, generation: int, end_offset: int) -> list[Effect]:
        """A sync that began in `generation` has brought everything below `end_offset` to disk."""
        if generation != self.log.generation and not self._rules.ignores_generations:
            return []
        flushed = min(end_offset, self.log.end_offset)
        self.log.flushed_offset = max(self.log.flushed_offset, flushed)
        return [] if self.leader is None else self.leader.on_flushed()

    def on_settings(self, settings: ReplicaSettings) -> list[Effect]:
        """The topic's settings have changed."""
        self._settings = settings
        return [] if self.leader is None else self.leader.on_settings(settings)

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Time has passed."""
        return [] if self.leader is None else self.leader.on_tick(now_ms)

    def _is_news(self, state: ReplicaState, metadata_offset: int) -> bool:
        registered = self._broker.epoch != NO_EPOCH and metadata_offset >= self._registered_offset
        if not registered and not self._rules.takes_old_metadata:
            return False
        known = self.state
        if known is None or state.leader_epoch > known.leader_epoch:
            return True
        if state.leader_epoch < known.leader_epoch:
            return False
        of_leader = -1 if self.leader is None else self.leader.partition_epoch
        return state.partition_epoch > max(known.partition_epoch, of_leader)

    def _lead(self, state: ReplicaState, now_ms: int) -> list[Effect]:
        effects = self._leave()
        self.leader = Leader(
            self._broker,
            self.log,
            state,
            brokers=self._brokers,
            settings=self._settings,
            now_ms=now_ms,
            rules=self._rules,
        )
        effects.append(BeginEpoch(state.leader_epoch, self.log.end_offset))
        return [*effects, *self.leader.on_flushed()]

    def _follow(self, state: ReplicaState) -> list[Effect]:
        effects = self._leave()
        if state.leader < 0:
            return effects
        self.follower = Follower(
            self._broker, self.log, state, first_fetch_id=self._fetch_id, rules=self._rules
        )
        if self._rules.truncates_to_high_watermark:
            effects += self.follower.truncate_to_high_watermark()
        return effects

    def _leave(self) -> list[Effect]:
        """Be neither leader nor follower any more."""
        if self.follower is not None:
            self._fetch_id = self.follower.next_fetch_id
            self.follower = None
        leader, self.leader = self.leader, None
        if leader is None:
            return []
        return [LoseLeadership(leader.epoch, leader.take_tickets())]
