"""Replica: one broker's copy of one partition, as its leader, a follower, or neither.

Pure. Which of them it is, committed metadata says; all three share the log's numbers
(`ReplicaLog`), so a high watermark survives a change of leaders.
Rule of the file: nothing that was committed before this life of the broker was registered is
acted upon. A scenario without it: A leads in epoch 3 and serves records that are not synced; A
loses them with its power, comes back, reads in its metadata log that it leads in epoch 3, and
writes others at the same offsets, in the same epoch. Its registration gives A's partitions a new
leader epoch, so from there on metadata is safe to follow.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.broker.replication.decisions import (
    NO_EPOCH,
    BeginEpoch,
    BrokerIdentity,
    Effect,
    LoseLeadership,
    PartitionState,
    ReplicaSettings,
)
from streamlog.broker.replication.follower import Follower
from streamlog.broker.replication.leader import Leader
from streamlog.broker.replication.replica_log import ReplicaLog
from streamlog.broker.replication.replica_rules import CORRECT, Rules


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
        rules: Rules = CORRECT,
    ) -> None:
        self.log = log
        self.state: PartitionState | None = None
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
        self, state: PartitionState, *, metadata_offset: int, now_ms: int
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

    def _is_news(self, state: PartitionState, metadata_offset: int) -> bool:
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

    def _lead(self, state: PartitionState, now_ms: int) -> list[Effect]:
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

    def _follow(self, state: PartitionState) -> list[Effect]:
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
