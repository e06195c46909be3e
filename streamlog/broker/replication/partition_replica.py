"""PartitionReplica: the machines of one partition's replica over its log.

What `Replica` decides is performed here, in order: the log is appended to and cut, those who wait
for a commit are told, the controller is asked, and the node is told what there is to fetch.
Rule of the file: a batch that came from the leader goes into the log as it is, offsets and leader
epoch included; and before a log is cut its checkpoint says so, durably.
"""

from __future__ import annotations

from collections import deque
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
from streamlog.errors import NotLeader, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for

if TYPE_CHECKING:
    from streamlog.broker.replication.group_flush import Flushed, GroupFlush
    from streamlog.broker.storage.log.leader_epochs import LeaderEpochHistory
    from streamlog.broker.storage.log.partition_log import PartitionLog
    from streamlog.protocol.schema import Buffer

Committed = Callable[[StreamlogError | None], None]
"""What is called when records are committed, or with the reason why nobody can say so."""

_log = repeated.logger(__name__)


class OtherReplicas(Protocol):
    """The rest of the node, as a replica needs it."""

    def propose(self, replica: PartitionReplica, proposal: ProposeIsr) -> None:
        """Ask the controller for an in-sync set, until there is an answer."""
        ...

    def may_fetch(self, replica: PartitionReplica) -> None:
        """A follower may have something to ask its leader for."""
        ...

    def on_progress(self, topic: str, partition: int) -> None:
        """Followers that wait for more have something to be told."""
        ...

    def keep_checkpoints(self) -> None:
        """Make all checkpoints durable. Raises LogDirectoryError."""
        ...


@dataclass(slots=True, kw_only=True)
class ReplicaNode:
    """What all replicas of one broker have in common."""

    broker_id: int
    neighbours: OtherReplicas
    incarnation: int
    """A number that no earlier life of this broker has had."""
    lag_max_ms: int
    broker_epoch: int = NO_EPOCH
    registered_offset: int = -1
    brokers: dict[int, int] = field(default_factory=dict)
    """The brokers that are alive, and their epochs; changes with metadata."""
    racks: dict[int, str] = field(default_factory=dict)
    """Where they stand, those that say so; likewise."""
    sends_readers_near: bool = False
    """Whether a leader sends readers to a replica in their rack."""
    strict: bool = True
    """Whether only what is on disk counts (`flush=always`)."""
    rules: ReplicaRules = CORRECT


class _LogEpochs:
    """The epochs of a log as the machines ask for them."""

    def __init__(self, epochs: LeaderEpochHistory) -> None:
        self.at = epochs.at
        self.start_after = epochs.start_after


class PartitionReplica:
    """One partition's replica on this broker; `flushed` is who the log's syncs are begun for."""

    def __init__(
        self,
        place: tuple[str, int],
        log: PartitionLog,
        *,
        node: ReplicaNode,
        flush: GroupFlush,
        flushed: Flushed,
        on_committed: Callable[[int], None],
    ) -> None:
        self.topic, self.index = place
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
        )
        self._node = node
        self._flush = flush
        self._flushed = flushed
        self._on_committed = on_committed
        self._waiting: dict[int, Committed] = {}
        self._tickets = 0
        self._deletions: list[tuple[int, Committed]] = []
        """Who waits until nothing is left anywhere before an offset."""
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._heard: tuple[int, int] | None = None
        """In which epoch, and when, the leader has answered last, if that is not long ago."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.machine.leader is not None

    @property
    def is_alone(self) -> bool:
        """Whether it leads, and nobody follows: what is synced is committed."""
        return self.machine.leader is not None and not self.machine.leader.followers

    @property
    def has_waiting_commits(self) -> bool:
        """Whether somebody waits for a commit."""
        return bool(self._waiting)

    def is_syncing_for(self, leader: int) -> bool:
        """Whether it follows this broker, and has something on its way to the disk."""
        follower = self.machine.follower
        return (
            follower is not None
            and follower.leader == leader
            and self.facts.counted_offset < self.facts.end_offset
        )

    @property
    def is_in_touch(self) -> bool:
        """Whether it follows, and its leader has answered, in this epoch and not long ago."""
        follower = self.machine.follower
        if follower is None or follower.is_stopped or self._heard is None:
            return False
        return self._heard[0] == follower.epoch

    def nearest(self, rack: str, offset: int) -> int | None:
        """The broker that readers in a rack are sent to for `offset`; None: they stay with us."""
        node, leader = self._node, self.machine.leader
        racks = node.racks
        if leader is None or not node.sends_readers_near or racks.get(node.broker_id) == rack:
            return None
        return leader.nearest([each for each in racks if racks[each] == rack], offset)

    @property
    def is_throttled_follower(self) -> bool:
        """Whether it follows by the quota: it is throttled, and not in sync."""
        state, own = self.machine.state, self._node.broker_id
        listed = self.log.config.follower_throttled_replicas
        if not listed or state is None or own in state.isr:
            return False
        return is_listed(listed, self.index, own)

    def throttles_follower(self, follower: int) -> bool:
        """Whether a follower goes by the quota of this leader."""
        leader, own = self.machine.leader, self._node.broker_id
        listed = self.log.config.leader_throttled_replicas
        if not listed or leader is None or follower in leader.isr:
            return False
        return is_listed(listed, self.index, own)

    @property
    def current_leader(self) -> tuple[int, int] | None:
        """Who leads, and in which epoch; None if nobody does, or nothing is known of it."""
        state = self.machine.state
        return None if state is None or state.leader < 0 else (state.leader, state.leader_epoch)

    @property
    def is_empty(self) -> bool:
        """Whether its log holds nothing."""
        return self.facts.end_offset == self.facts.start_offset

    @property
    def high_watermark(self) -> int:
        """Records below this offset are committed, as far as this replica knows."""
        return min(self.facts.high_watermark, self.facts.end_offset)

    def apply(self, state: ReplicaState, *, metadata_offset: int, now_ms: int) -> None:
        """The controller has committed this. See `Replica.on_metadata`."""
        self.look(keep=not self.is_alone)
        machine, node = self.machine, self._node
        self._perform(machine.on_registered(node.broker_epoch, node.registered_offset))
        self._perform(machine.on_metadata(state, metadata_offset=metadata_offset, now_ms=now_ms))
        if self.facts.flushed_offset < self.facts.end_offset:
            self._flush.add(self._flushed)
        self.configure()
        self._tell_of_deletions()
        self._node.neighbours.may_fetch(self)

    def look(self, *, keep: bool) -> None:
        """Take what the log says: nobody has told of appends while the leader was alone."""
        facts, log = self.facts, self.log
        facts.start_offset = log.log_start_offset
        facts.end_offset = log.log_end_offset
        facts.flushed_offset = min(log.synced.offset, log.log_end_offset)
        if not keep:
            facts.high_watermark = max(facts.high_watermark, facts.counted_offset)
        facts.high_watermark = max(facts.high_watermark, log.log_start_offset)

    def configure(self) -> None:
        """The topic's settings, or its replicas, have changed."""
        state = self.machine.state
        count = 1 if state is None else len(state.replicas)
        settings = ReplicaSettings(
            lag_max_ms=self._node.lag_max_ms, min_insync=self.log.config.min_insync(count)
        )
        self._perform(self.machine.on_settings(settings))

    # ---- the leader's log ----

    def on_appended(self, size_bytes: int) -> None:
        """So much was appended by this leader."""
        self._uncommitted.append((self.log.log_end_offset, size_bytes))
        self._perform(self.machine.on_appended(self.log.log_end_offset))
        self._node.neighbours.on_progress(self.topic, self.index)

    def on_synced(self, generation: int) -> None:
        """The log has got some further on the disk."""
        self._perform(self.machine.on_flushed(generation, self.log.synced.offset))
        if self.machine.follower is not None:
            self._node.neighbours.may_fetch(self)

    def when_committed(self, end_offset: int, then: Committed) -> None:
        """Call back when everything below `end_offset` is committed, or it can't be said.

        Errors: NOT_LEADER_OR_FOLLOWER, this broker leads no more; NOT_ENOUGH_REPLICAS_AFTER_APPEND.
        """
        leader = self.machine.leader
        if leader is None:
            then(self.not_leader())
            return
        self._tickets += 1
        self._waiting[self._tickets] = then
        self._perform(leader.wait(self._tickets, end_offset))

    def close(self) -> None:
        """The partition is none of this broker's any more: nobody waits for its commits."""
        self._perform(self.machine.retire())
        self._tell_of_deletions()

    # ---- deleting its head ----

    @property
    def low_watermark(self) -> int:
        """Before this offset no replica that lives has anything any more; -1 if not known."""
        leader = self.machine.leader
        return -1 if leader is None else leader.low_watermark

    def on_deleted(self) -> None:
        """The log begins later now: followers are to hear of it."""
        self.facts.start_offset = self.log.log_start_offset
        self._node.neighbours.on_progress(self.topic, self.index)

    def when_deleted(self, offset: int, then: Committed) -> None:
        """Call back once no replica that lives has anything before `offset`, or with why not.

        Errors: NOT_LEADER_OR_FOLLOWER, this broker leads no more.
        """
        self._deletions.append((offset, then))
        self._tell_of_deletions()

    def _tell_of_deletions(self) -> None:
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
        """Whether enough replicas are in sync for acks=all.

        Raises:
            LogError: NOT_ENOUGH_REPLICAS.
        """
        leader = self.machine.leader
        if leader is not None and leader.is_under_min_isr:
            raise error_for(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic}-{self.index}: {len(leader.isr)} in sync, and acks=all takes"
                f" {leader.min_insync} (min.insync.replicas)",
            )

    def not_leader(self) -> StreamlogError:
        """What is told to who asks a broker that does not lead."""
        leader = self.current_leader
        who = "nobody" if leader is None else f"broker {leader[0]}"
        return not_leader_error(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{self.topic}-{self.index}: not broker {self._node.broker_id} leads it, but {who}",
            leader,
        )

    def on_fetch(self, fetch: ReplicaFetch, now_ms: int) -> FetchAnswer | None:
        """What a follower gets; None from a broker that does not lead."""
        leader = self.machine.leader
        if leader is None:
            return None
        self.facts.start_offset = self.log.log_start_offset
        answer, effects = leader.on_fetch(fetch, now_ms)
        self._perform(effects)
        if self._deletions:
            self._tell_of_deletions()
        return answer

    def on_isr_answer(
        self, number: int, code: int, epochs: tuple[int, int], isr: frozenset[int]
    ) -> None:
        """The controller's answer to a proposal; `epochs` are the leader's and the partition's."""
        if self.machine.leader is not None:
            self._perform(
                self.machine.leader.on_isr_answer(
                    number, code, leader_epoch=epochs[0], partition_epoch=epochs[1], isr=isr
                )
            )

    def proposal(self) -> ProposeIsr | None:
        """What the controller has not answered."""
        return None if self.machine.leader is None else self.machine.leader.proposal()

    def on_tick(self, now_ms: int) -> None:
        """Time has passed."""
        if self._heard is not None and now_ms - self._heard[1] > self._node.lag_max_ms:
            self._heard = None
        self._perform(self.machine.on_tick(now_ms))

    # ---- the follower's log ----

    def next_fetch(self) -> OutstandingFetch | None:
        """What to ask the leader for; None if nothing now."""
        follower = self.machine.follower
        if follower is None:
            return None
        self.facts.start_offset = self.log.log_start_offset
        return follower.next_fetch()

    def append_fetched(self, effects: list[Effect], records: Buffer, now_ms: int) -> None:
        """Perform what the follower has decided of an answer that brought `records`.

        Raises:
            StreamlogError: the log does not take them.
        """
        follower = self.machine.follower
        self._heard = None if follower is None else (follower.epoch, now_ms)
        try:
            for effect in effects:
                if isinstance(effect, AppendBatches):
                    self.log.append(records, now_ms=now_ms, origin=AppendOrigin.COPY)
                    self._flush.add(self._flushed)
                else:
                    self._perform([effect])
        except StreamlogError:
            self._forget()
            raise
        self._node.neighbours.may_fetch(self)

    def _forget(self) -> None:
        """The log has not become what was decided: go on from what it is.

        What was to be cut counts as not on disk already. Nobody is asked for more before it is.
        """
        facts, log = self.facts, self.log
        facts.generation = log.truncation.generation
        facts.high_watermark = log.high_watermark
        self.look(keep=True)
        if facts.flushed_offset < facts.end_offset:
            self._flush.add(self._flushed)

    def mend(self) -> None:
        """Give up what a log has behind a hole, to fetch it anew; only who is out of sync may.

        Of a damaged log nobody knows what else it lacks, and all of it goes.

        Raises:
            LogDirectoryError: the disk refused.
        """
        follower, damage = self.machine.follower, self.log.damage
        start = self.log.log_start_offset
        offset = start if damage else self.log.lost.first_from(start)
        if follower is None or offset is None:
            return
        why = damage[0] if damage else "what was lost there had been mended with empty batches"
        _log.warning(
            "%s-%d is fetched anew from broker %d, from offset %d on: %s",
            *(self.topic, self.index, follower.leader, offset, why),
        )
        try:
            self._perform(follower.begin_anew(offset))
        except StreamlogError:
            self._forget()
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
                    self._waiting.pop(ticket)(self._too_few())
                case LoseLeadership(_, tickets):
                    self._uncommitted.clear()
                    for ticket in tickets:
                        self._waiting.pop(ticket)(self.not_leader())
                    self._node.neighbours.on_progress(self.topic, self.index)
                case ProposeIsr():
                    self._node.neighbours.propose(self, effect)
                case BeginEpoch(epoch):
                    self.log.epochs.begin(epoch)
                case AppendBatches():
                    raise TypeError("only an answer of the leader brings batches")
                case _:
                    self._change_log(effect)

    def _advance(self, offset: int) -> None:
        self.log.high_watermark = offset
        self.log.producers.transactions.settle(offset)
        size_bytes = 0
        while self._uncommitted and self._uncommitted[0][0] <= offset:
            size_bytes += self._uncommitted.popleft()[1]
        self._on_committed(size_bytes)
        if self.is_leader:
            self._node.neighbours.on_progress(self.topic, self.index)

    def _change_log(self, effect: Truncate | StartAt | AdvanceLogStart | StopReplica) -> None:
        match effect:
            case Truncate(offset):
                _log.info("%s-%d is cut to offset %d", self.topic, self.index, offset)
                self.log.high_watermark = self.facts.high_watermark
                self.log.truncation.begin(offset)
                self._node.neighbours.keep_checkpoints()
                self.log.truncation.cut(offset)
                self.facts.end_offset = self.log.log_end_offset
                self.facts.flushed_offset = self.log.synced.offset
            case StartAt(offset):
                _log.warning(
                    "%s-%d begins again at offset %d, where its leader's log begins",
                    *(self.topic, self.index, offset),
                )
                self.log.high_watermark = offset
                self.log.truncation.begin_restart(offset)
                self._node.neighbours.keep_checkpoints()
                self.log.truncation.restart(offset)
            case AdvanceLogStart(offset):
                self.log.advance_start(offset)
            case StopReplica(reason):
                _log.critical("%s-%d is not followed any more: %s", self.topic, self.index, reason)

    def _too_few(self) -> StreamlogError:
        return error_for(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"{self.topic}-{self.index}: appended, and fewer are in sync than acks=all takes",
        )


def not_leader_error(code: int, what: str, leader: tuple[int, int] | None) -> StreamlogError:
    """The error of who asks the wrong broker, or with another leader epoch than the current one."""
    error = error_for(code, what)
    if isinstance(error, NotLeader):
        error.current = leader
    return error
