"""Replica: one broker's copy of one partition, as its leader, as a follower, or as neither.

Pure. Committed metadata decides the role; all roles share the log's offsets (`ReplicaLog`), so that
the high watermark survives a change of leader. `Follower` decides what to fetch, where to cut and
what to append. `parse_fetched_batches` checks that batches follow each other without a gap.

Rules of this module:

- A follower fetches only from an end that is on disk. One fetch is open at a time; its answer
  counts in this leader epoch only, and if the log still ends where the fetch began.
- No cut goes below the high watermark, except after an unclean election.
- A replica does not act on metadata from before the broker's registration. Without that rule:
  1. Broker 1 leads epoch 3 and appends 8 and 9, not synced, which followers copy.
  2. It loses them in a power cut, and restarts. 3. Its own metadata log still says that it leads
  epoch 3. 4. It appends other records at 8 and 9, in epoch 3: no comparison of epochs shows it.

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
    """Batches that follow the log, and the offset after them."""

    records: Buffer
    end_offset: int
    begin_offset: int | None = None
    """The first batch's base offset, if an empty log has to begin earlier than planned."""


def parse_fetched_batches(data: Buffer, offset: int, *, is_empty: bool) -> FetchedBatches:
    """Return the batches in `data` for a log that ends at `offset`.

    The first batch may begin before `offset`: the leader's log starts within a batch, or
    compaction left a batch without records that spans the offset.

    Args:
        data: record batches of a fetch response.
        offset: the end of the follower's log.
        is_empty: whether that log contains no record.

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
            if is_empty:
                # The leader deleted records up to the middle of this batch: an empty log takes
                # the whole batch and begins with it.
                begin_offset = due = batch.base_offset
        if batch.base_offset != due:
            raise CorruptData(
                f"a fetched batch begins at offset {batch.base_offset} instead of {due}"
            )
        due = batch.next_offset
        position += batch.size_bytes
    return FetchedBatches(data, due, begin_offset)


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
        """Handle an answer of the leader, with or without batches.

        Args:
            fetch_id: the fetch that is answered.
            end_offset: the offset after the last batch; without batches, the fetch's offset.
            high_watermark: the high watermark of the leader.
            log_start: the start of the leader's log.
            begin_offset: where an empty log has to begin instead, see `FetchedBatches`.
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
        if begin_offset is not None and begin_offset < log.end_offset == log.start_offset:
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
            if log_start < log.high_watermark and not self._may_lose():
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


class Replica:
    """This broker's replica of one partition.

    Args:
        broker_id: this broker.
        log: the offsets of its log.
        brokers: the live brokers and their epochs, see `Leader`.
        settings: the settings of the topic and the broker.
        incarnation: a number that no earlier start of this broker had.
        rules: the faults to plant.
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
        """The newest leader epoch that this replica knows; None before the first metadata."""
        return None if self.state is None else self.state.leader_epoch

    def on_registered(self, broker_epoch: int, metadata_offset: int) -> list[Effect]:
        """End every role under an earlier registration of this broker.

        `metadata_offset` is the offset of the record that registered it. Older metadata is ignored.
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
        """Take the role that the partition's committed state gives this broker.

        The state, as of `metadata_offset`, is ignored before `on_registered`, and if it is older
        than the registration or than the known state. So the shell passes the state of every
        partition again once it has applied the registration.
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
        """End the role, because this broker no longer has a replica of the partition."""
        self.state = None
        return self._leave()

    def on_appended(self, end_offset: int) -> list[Effect]:
        """Note an append by this leader, up to `end_offset`."""
        self.log.end_offset = end_offset
        return [] if self.leader is None else self.leader.on_appended(end_offset)

    def on_flushed(self, generation: int, end_offset: int) -> list[Effect]:
        """Note a sync of everything below `end_offset` that began in `generation`."""
        # A sync that began before a cut proves nothing, see `replica_state`.
        if generation != self.log.generation and not self._rules.ignores_generations:
            return []
        flushed = min(end_offset, self.log.end_offset)
        self.log.flushed_offset = max(self.log.flushed_offset, flushed)
        return [] if self.leader is None else self.leader.on_flushed()

    def on_settings(self, settings: ReplicaSettings) -> list[Effect]:
        """Apply changed settings of the topic."""
        self._settings = settings
        return [] if self.leader is None else self.leader.on_settings(settings)

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Remove lagging replicas from the in-sync set, if this broker leads."""
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
        # An answer to AlterPartition tells the leader a partition epoch before metadata does.
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
        """End the current role."""
        if self.follower is not None:
            self._fetch_id = self.follower.next_fetch_id
            self.follower = None
        leader, self.leader = self.leader, None
        if leader is None:
            return []
        return [LoseLeadership(leader.epoch, leader.take_tickets())]
