"""PartitionReplica: the shell of one partition's replica, over its log.

It performs the effects of `Replica` in order: it appends to the log and cuts it, answers requests
that wait for a commit, proposes in-sync sets to the controller, and announces what can be fetched.

Rules of this module: a batch from the leader is appended unchanged, with its offsets and its leader
epoch. Before a log is cut, its checkpoint records the cut durably.

Not done here: decisions (`replica`, `leader_replica`), requests to other brokers (`replicas`,
`replica_fetcher`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from streamlog import repeated
from streamlog.broker.config.topic import is_listed
from streamlog.broker.replication.replica import Replica
from streamlog.broker.replication.replica_state import (
    CORRECT,
    NO_EPOCH,
    Acknowledge,
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BeginEpoch,
    Effect,
    FetchAnswer,
    LoseLeadership,
    OutstandingFetch,
    ProposeIsr,
    RefuseAcknowledgement,
    ReplicaFetch,
    ReplicaLog,
    ReplicaRules,
    ReplicaSettings,
    ReplicaState,
    StartAt,
    StopReplica,
    Truncate,
)
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.broker.topic_traffic import TopicTraffic
from streamlog.errors import NotLeader, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for

if TYPE_CHECKING:
    from streamlog.broker.replication.group_flush import Flushed, GroupFlush
    from streamlog.broker.storage.log.leader_epochs import LeaderEpochHistory
    from streamlog.broker.storage.log.partition_log import PartitionLog
    from streamlog.protocol.schema import Buffer


@dataclass(slots=True)
class LeaderContact:
    """When a leader broker has last answered a request for the replicas that follow it."""

    answered_ms: int


Committed = Callable[[StreamlogError | None], None]
"""A callback without an error once records are committed, or with the reason why not."""

_log = repeated.logger(__name__)


class OtherReplicas(Protocol):
    """Port: the rest of the broker, as a replica needs it."""

    def propose(self, replica: PartitionReplica, proposal: ProposeIsr) -> None:
        """Ask the controller for an in-sync set, and repeat it until there is an answer."""
        ...

    def may_fetch(self, replica: PartitionReplica) -> None:
        """Fetch for a follower, if it has something to fetch."""
        ...

    def on_progress(self, topic: str, partition: int) -> None:
        """Answer fetches of followers that wait for new records, or another state."""
        ...

    def on_committed(self, topic: str, partition: int) -> None:
        """Tell followers of a higher high watermark."""
        ...

    def keep_checkpoints(self) -> None:
        """Write and sync all checkpoints. Raises LogDirectoryError."""
        ...


@dataclass(slots=True, kw_only=True)
class ReplicaNode:
    """The state that all replicas of one broker share."""

    broker_id: int
    neighbours: OtherReplicas
    incarnation: int
    """A number that no earlier start of this broker had."""
    lag_max_ms: int
    broker_epoch: int = NO_EPOCH
    registered_offset: int = -1
    brokers: dict[int, int] = field(default_factory=dict)
    """The live brokers and their epochs; changes with metadata."""
    racks: dict[int, str] = field(default_factory=dict)
    """The racks of the live brokers that have one; changes with metadata."""
    sends_readers_near: bool = False
    """Whether a leader sends consumers to a replica in their rack (KIP-392)."""
    strict: bool = True
    """Whether only synced records count (`flush=always`)."""
    rules: ReplicaRules = CORRECT


class _LogEpochs:
    """The leader epochs of a log, as the port `Epochs`."""

    def __init__(self, epochs: LeaderEpochHistory) -> None:
        self.at = epochs.at
        self.start_after = epochs.start_after


class PartitionReplica:
    """One partition's replica on this broker.

    Args:
        topic_partition: the topic's name and the partition's number.
        log: the partition's log.
        node: the state that this broker's replicas share.
        flush: begins syncs, of several logs together.
        flushed: what `flush` calls after a sync of this log.
        on_committed: called with the bytes that a new high watermark commits.
        traffic: counts the traffic of the topic.
    """

    def __init__(
        self,
        topic_partition: tuple[str, int],
        log: PartitionLog,
        *,
        node: ReplicaNode,
        flush: GroupFlush,
        flushed: Flushed,
        on_committed: Callable[[int], None],
        traffic: TopicTraffic,
    ) -> None:
        self.traffic = traffic
        self.topic, self.index = topic_partition
        self.log = log
        self.facts = ReplicaLog(
            epochs=_LogEpochs(log.epochs),
            start_offset=log.log_start_offset,
            end_offset=log.log_end_offset,
            flushed_offset=log.synced.offset,
            high_watermark=max(log.high_watermark, log.log_start_offset),
            strict=node.strict,
            generation=log.truncation.generation,
        )
        self.machine = Replica(
            node.broker_id,
            self.facts,
            brokers=node.brokers,
            settings=ReplicaSettings(lag_max_ms=node.lag_max_ms, min_insync=1),
            incarnation=node.incarnation,
            rules=node.rules,
            keeps_cut=True,
        )
        self._node = node
        self._flush = flush
        self._flushed = flushed
        self._on_committed = on_committed
        self._waiting: dict[int, Committed] = {}
        """The callbacks of requests that wait for a commit, by ticket."""
        self._tickets = 0
        self._deletions: list[tuple[int, Committed]] = []
        """Requests that wait until all live replicas have deleted the records below an offset."""
        self._uncommitted: list[tuple[int, int]] = []
        """Per append that is not committed: its end offset and its bytes."""
        self._contact: tuple[int, LeaderContact] | None = None
        """The leader epoch of the leader's last answer, and when its broker has answered."""
        self._is_contact_old = False
        """Whether that broker's last answer was found to be too old."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.machine.leader is not None

    @property
    def is_alone(self) -> bool:
        """Whether it leads and has no followers, so that synced records are committed."""
        return self.machine.leader is not None and not self.machine.leader.followers

    @property
    def has_waiting_commits(self) -> bool:
        """Whether a request waits for a commit."""
        return bool(self._waiting)

    def is_syncing_for(self, leader: int) -> bool:
        """Whether it follows this broker, and has records that are not synced."""
        follower = self.machine.follower
        return (
            follower is not None
            and follower.leader == leader
            and self.facts.counted_offset < self.facts.end_offset
        )

    @property
    def is_in_touch(self) -> bool:
        """Whether it follows a leader that has answered recently, in the current leader epoch."""
        follower = self.machine.follower
        if follower is None or follower.is_stopped or self._contact is None:
            return False
        return self._contact[0] == follower.epoch and not self._is_contact_old

    def nearest(self, rack: str, offset: int) -> int | None:
        """Return the broker from which consumers in a rack read `offset`; None for this one."""
        node, leader = self._node, self.machine.leader
        racks = node.racks
        if leader is None or not node.sends_readers_near or racks.get(node.broker_id) == rack:
            return None
        return leader.nearest([each for each in racks if racks[each] == rack], offset)

    @property
    def is_throttled_follower(self) -> bool:
        """Whether the replication quota applies to this follower: only out of sync (KIP-73)."""
        state, own = self.machine.state, self._node.broker_id
        listed = self.log.config.follower_throttled_replicas
        if not listed or state is None or own in state.isr:
            return False
        return is_listed(listed, self.index, own)

    def throttles_follower(self, follower: int) -> bool:
        """Return whether this leader's replication quota applies to a follower (KIP-73)."""
        leader, own = self.machine.leader, self._node.broker_id
        listed = self.log.config.leader_throttled_replicas
        if not listed or leader is None or follower in leader.isr:
            return False
        return is_listed(listed, self.index, own)

    @property
    def current_leader(self) -> tuple[int, int] | None:
        """The leader and its epoch; None if there is no leader, or no metadata yet."""
        state = self.machine.state
        return None if state is None or state.leader < 0 else (state.leader, state.leader_epoch)

    @property
    def is_empty(self) -> bool:
        """Whether its log contains no record."""
        return self.facts.end_offset == self.facts.start_offset

    @property
    def high_watermark(self) -> int:
        """The offset below which this replica knows that records are committed."""
        return min(self.facts.high_watermark, self.facts.end_offset)

    def apply(self, state: ReplicaState, *, metadata_offset: int, now_ms: int) -> None:
        """Take the role of the committed state, see `Replica.on_metadata`."""
        # Before the role changes: all that counted while this leader was alone is committed.
        self.read_offsets(keep=not self.is_alone)
        machine, node = self.machine, self._node
        self._perform(machine.on_registered(node.broker_epoch, node.registered_offset))
        self._perform(machine.on_metadata(state, metadata_offset=metadata_offset, now_ms=now_ms))
        # A follower does not fetch before its log is synced (`Follower.next_fetch`).
        if self.facts.flushed_offset < self.facts.end_offset:
            self._flush.add(self._flushed)
        self.configure()
        self._answer_deletions()
        self._node.neighbours.may_fetch(self)

    def on_kept(self, offset: int, now_ms: int) -> None:
        """Cut off the records from `offset` on, which are kept in a file, and lead.

        Raises:
            StreamlogError: the disk refused.
        """
        try:
            self._perform(self.machine.on_kept(offset))
        except StreamlogError:
            self._recover_offsets()
            raise
        self._perform(self.machine.on_cut(now_ms))
        self.configure()

    def read_offsets(self, *, keep: bool) -> None:
        """Read the offsets from the log, because a leader without followers reports no appends.

        `keep` leaves the high watermark; otherwise everything that counts is committed.
        """
        facts, log = self.facts, self.log
        facts.start_offset = log.log_start_offset
        facts.end_offset = log.log_end_offset
        facts.flushed_offset = min(log.synced.offset, log.log_end_offset)
        if not keep:
            facts.high_watermark = max(facts.high_watermark, facts.counted_offset)
        facts.high_watermark = max(facts.high_watermark, log.log_start_offset)

    def replace_log(self, log: PartitionLog, flush: GroupFlush) -> None:
        """Use the log that has succeeded the present one, with the same records, all on disk."""
        self.log, self._flush = log, flush
        self.facts.epochs = _LogEpochs(log.epochs)
        # Another generation: a sync of the replaced log that is under way counts for nothing.
        self.facts.generation = log.truncation.generation
        self.facts.start_offset = log.log_start_offset
        log.producers.transactions.settle(self.high_watermark)
        if not self.is_alone:
            self.on_synced(self.facts.generation)

    def configure(self) -> None:
        """Apply changed settings of the topic, or a changed number of replicas."""
        state = self.machine.state
        count = 1 if state is None else len(state.replicas)
        settings = ReplicaSettings(
            lag_max_ms=self._node.lag_max_ms, min_insync=self.log.config.min_insync(count)
        )
        self._perform(self.machine.on_settings(settings))

    # ---- the leader's log ----

    def on_appended(self, size_bytes: int) -> None:
        """Note an append of `size_bytes` by this leader."""
        end_offset = self.log.log_end_offset
        self._uncommitted.append((end_offset, size_bytes))
        if effects := self.machine.on_appended(end_offset):
            self._perform(effects)
        self._node.neighbours.on_progress(self.topic, self.index)

    def on_synced(self, generation: int) -> None:
        """Note a sync of the log, which began in `generation`."""
        if effects := self.machine.on_flushed(generation, self.log.synced.offset):
            self._perform(effects)
        if self.machine.follower is not None:
            self._node.neighbours.may_fetch(self)

    def when_committed(self, end_offset: int, then: Committed) -> None:
        """Call `then` once everything below `end_offset` is committed, or with an error.

        Errors: NOT_LEADER_OR_FOLLOWER if this broker no longer leads, so that the outcome is
        unknown; NOT_ENOUGH_REPLICAS_AFTER_APPEND.
        """
        leader = self.machine.leader
        if leader is None:
            then(self.not_leader())
            return
        # Stored first: the effects of `wait` may call back at once.
        self._tickets += 1
        self._waiting[self._tickets] = then
        self._perform(leader.wait(self._tickets, end_offset))

    def close(self) -> None:
        """End the replica; waiting requests are answered with NOT_LEADER_OR_FOLLOWER."""
        self._perform(self.machine.retire())
        self._answer_deletions()

    # ---- deletion of the log's head ----

    @property
    def low_watermark(self) -> int:
        """The lowest start offset of all live replicas; -1 if this broker does not lead."""
        leader = self.machine.leader
        return -1 if leader is None else leader.low_watermark

    def on_deleted(self) -> None:
        """Note that the log's head was deleted, and announce it to followers."""
        self.facts.start_offset = self.log.log_start_offset
        self._node.neighbours.on_progress(self.topic, self.index)

    def when_deleted(self, offset: int, then: Committed) -> None:
        """Call `then` once no live replica has records below `offset`, or with an error.

        Errors: NOT_LEADER_OR_FOLLOWER if this broker no longer leads.
        """
        self._deletions.append((offset, then))
        self._answer_deletions()

    def _answer_deletions(self) -> None:
        waiting, self._deletions = self._deletions, []
        low_watermark = self.low_watermark
        for offset, then in waiting:
            if self.machine.leader is None:
                then(self.not_leader())
            elif low_watermark >= offset:
                then(None)
            else:
                self._deletions.append((offset, then))

    def check_insync(self) -> None:
        """Check that enough replicas are in sync for acks=all.

        Raises:
            LogError: NOT_ENOUGH_REPLICAS.
        """
        leader = self.machine.leader
        if leader is not None and leader.is_under_min_isr:
            raise error_for(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic}-{self.index}: acks=all requires {leader.min_insync} in-sync replicas"
                f" (min.insync.replicas); the number is {len(leader.isr)}",
            )

    def not_leader(self) -> StreamlogError:
        """Return the error for a request to a broker that does not lead the partition."""
        leader = self.current_leader
        who = "no broker does" if leader is None else f"broker {leader[0]} does"
        return not_leader_error(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {self._node.broker_id} does not lead {self.topic}-{self.index}: {who}",
            leader,
        )

    def on_fetch(self, fetch: ReplicaFetch, now_ms: int) -> FetchAnswer | None:
        """Answer a follower's fetch; None from a broker that does not lead."""
        leader = self.machine.leader
        if leader is None:
            return None
        # Retention moves the start of the log without a report to the replica.
        self.facts.start_offset = self.log.log_start_offset
        answer, effects = leader.on_fetch(fetch, now_ms)
        if effects:
            self._perform(effects)
        if self._deletions:
            self._answer_deletions()
        return answer

    def on_isr_answer(
        self, number: int, code: int, epochs: tuple[int, int], isr: frozenset[int]
    ) -> None:
        """Handle the controller's answer; `epochs` are the leader epoch and the partition epoch."""
        if self.machine.leader is not None:
            self._perform(
                self.machine.leader.on_isr_answer(
                    number, code, leader_epoch=epochs[0], partition_epoch=epochs[1], isr=isr
                )
            )

    def proposal(self) -> ProposeIsr | None:
        """Return the proposal that the controller has not answered, or None."""
        return None if self.machine.leader is None else self.machine.leader.proposal()

    def on_tick(self, now_ms: int) -> None:
        """Check when the leader has answered, and remove lagging followers from the ISR."""
        if self._contact is not None:
            age_ms = now_ms - self._contact[1].answered_ms
            self._is_contact_old = age_ms > self._node.lag_max_ms
        if self.is_leader and self.log.log_start_offset != self.facts.start_offset:
            # Retention has moved the start of the log, which followers of a session do not ask for.
            self.on_deleted()
        self._perform(self.machine.on_tick(now_ms))

    def renew_fetch(self) -> bool:
        """Give up an open fetch that names an older start of the log, see `Follower.renew`."""
        self.facts.start_offset = self.log.log_start_offset
        return self.machine.follower is not None and self.machine.follower.renew()

    def on_unchanged(self, broker: int, asked_ms: int) -> None:
        """Note when a follower that had everything has last asked, see `Leader.on_unchanged`."""
        if self.machine.leader is not None:
            self.machine.leader.on_unchanged(broker, asked_ms)

    # ---- the follower's log ----

    def next_fetch(self) -> OutstandingFetch | None:
        """Return the next fetch of this follower; None if there is none now."""
        follower = self.machine.follower
        if follower is None:
            return None
        self.facts.start_offset = self.log.log_start_offset
        return follower.next_fetch()

    def append_fetched(
        self, effects: list[Effect], records: Buffer, contact: LeaderContact
    ) -> None:
        """Perform the follower's effects after an answer that contained `records`.

        From now on each answer of the leader's broker, which `contact` notes, is one for this
        replica, too: while its fetch is open, a response without it says that nothing has changed.

        Raises:
            StreamlogError: the log refused the records, or the disk failed.
        """
        follower = self.machine.follower
        self._contact = None if follower is None else (follower.epoch, contact)
        self._is_contact_old = False
        try:
            # In order: a new high watermark comes after the batches that it covers.
            for effect in effects:
                if isinstance(effect, AppendBatches):
                    self.log.append(records, now_ms=contact.answered_ms, origin=AppendOrigin.COPY)
                    self.traffic.replication_bytes_in += len(records)
                    self._flush.add(self._flushed)
                else:
                    self._perform([effect])
        except StreamlogError:
            self._recover_offsets()
            raise
        # Until it is synced it can't fetch: `on_synced` asks for it then.
        if self.facts.counted_offset >= self.facts.end_offset:
            self._node.neighbours.may_fetch(self)

    def lose_contact(self) -> None:
        """Note that the leader's broker has refused a fetch: its later answers don't count."""
        if self._contact is not None:
            self._contact = self._contact[0], LeaderContact(self._contact[1].answered_ms)

    def _recover_offsets(self) -> None:
        """Read the log's offsets again after an effect that failed.

        A cut that had begun counts: what it was to remove is not on disk. The follower fetches
        again once the log is synced.
        """
        facts, log = self.facts, self.log
        facts.generation = log.truncation.generation
        facts.high_watermark = log.high_watermark
        self.read_offsets(keep=True)
        if facts.flushed_offset < facts.end_offset:
            self._flush.add(self._flushed)

    def refetch_damage(self) -> None:
        """Cut the log where records were lost, to fetch them again; for replicas out of sync.

        A damaged log is emptied, because it is unknown what else it lacks. A log in which a repair
        has replaced lost records by empty batches is cut at the first of these batches.

        Raises:
            LogDirectoryError: the disk refused.
        """
        follower, damage = self.machine.follower, self.log.damage
        start = self.log.log_start_offset
        offset = start if damage else self.log.lost.first_from(start)
        if follower is None or offset is None:
            return
        why = damage[0] if damage else "a repair has replaced lost records with empty batches"
        _log.warning(
            "%s-%d: fetching the records again from offset %d, from broker %d: %s",
            *(self.topic, self.index, offset, follower.leader, why),
        )
        try:
            self._perform(follower.begin_anew(offset))
        except StreamlogError:
            self._recover_offsets()
            raise
        self._node.neighbours.may_fetch(self)

    # ---- effects ----

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case AdvanceHighWatermark(offset):
                    self._advance(offset)
                case Acknowledge(ticket):
                    self._waiting.pop(ticket)(None)
                case RefuseAcknowledgement(ticket):
                    self._waiting.pop(ticket)(self._not_enough_replicas())
                case LoseLeadership(_, tickets):
                    # Only a leader counts the bytes of its appends.
                    self._uncommitted.clear()
                    for ticket in tickets:
                        self._waiting.pop(ticket)(self.not_leader())
                    self._node.neighbours.on_progress(self.topic, self.index)
                case ProposeIsr():
                    self._node.neighbours.propose(self, effect)
                case BeginEpoch(epoch):
                    self.log.epochs.begin(epoch)
                case AppendBatches():
                    raise TypeError("AppendBatches without an answer of the leader")
                case _:
                    self.change_log(effect)

    def _advance(self, offset: int) -> None:
        self.log.high_watermark = offset
        self.log.producers.transactions.settle(offset)
        size_bytes = committed = 0
        for end_offset, appended_bytes in self._uncommitted:
            if end_offset > offset:
                break
            size_bytes += appended_bytes
            committed += 1
        # A list and no deque: thousands of partitions have one, and an empty deque
        # takes 600 bytes.
        del self._uncommitted[:committed]
        self._on_committed(size_bytes)
        if self.machine.leader is not None:
            self._node.neighbours.on_committed(self.topic, self.index)

    def change_log(self, effect: Truncate | StartAt | AdvanceLogStart | StopReplica) -> None:
        """Perform an effect that cuts the log, or stops the replica.

        Raises:
            StreamlogError: the disk refused.
        """
        match effect:
            case Truncate(offset):
                _log.info("%s-%d is truncated at offset %d", self.topic, self.index, offset)
                # 1. `begin` lowers the synced end. 2. The checkpoints make that durable. 3. Records
                # go. In another order, a crash would leave a log that is shorter than its
                # checkpoint says, which looks like damage.
                self.log.high_watermark = self.facts.high_watermark
                self.log.truncation.begin(offset)
                self._node.neighbours.keep_checkpoints()
                self.log.truncation.cut(offset)
                self.facts.end_offset = self.log.log_end_offset
                self.facts.flushed_offset = self.log.synced.offset
            case StartAt(offset):
                _log.warning(
                    "%s-%d is emptied and continues at offset %d, where its leader's log begins",
                    *(self.topic, self.index, offset),
                )
                # In the order of a cut, for the same reason.
                self.log.high_watermark = offset
                self.log.truncation.begin_restart(offset)
                self._node.neighbours.keep_checkpoints()
                self.log.truncation.restart(offset)
            case AdvanceLogStart(offset):
                self.log.advance_start(offset)
            case StopReplica(reason):
                _log.critical("%s-%d stops following: %s", self.topic, self.index, reason)

    def _not_enough_replicas(self) -> StreamlogError:
        return error_for(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"{self.topic}-{self.index}: the records are appended, but fewer replicas are in sync"
            " than acks=all requires (min.insync.replicas)",
        )


def not_leader_error(code: int, what: str, leader: tuple[int, int] | None) -> StreamlogError:
    """Return an error that names the current leader, for a request to the wrong broker or epoch."""
    error = error_for(code, what)
    if isinstance(error, NotLeader):
        error.current = leader
    return error
