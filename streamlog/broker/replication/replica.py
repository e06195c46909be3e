"""Replica: one broker's copy of one partition, as its leader, as a follower, or as neither.

Pure. Committed metadata decides the role; all roles share the log's offsets (`ReplicaLog`), so that
the high watermark survives a change of leader.

Rule: a replica does not act on metadata from before the broker's registration. Without it:

1. Broker 1 leads epoch 3 and appends 8 and 9, not synced, which followers copy.
2. It loses them in a power cut, and restarts.
3. Its own metadata log still says that it leads epoch 3.
4. It appends other records at 8 and 9, in epoch 3: no comparison of epochs shows it.

Rule: a promotion may cut a log (`CutOf`). An elected leader whose log is longer, and has no record
of the era that the promotion began, leads only after `on_kept`: first the shell keeps what is cut.
So each leader of the era has been cut: a record of the era comes from a leader that was cut before,
and once the first such record is committed, a replica without one is not in sync any more.

Not done here: the roles (`leader_replica`, `follower_replica`), all I/O (`partition_replica`).
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.broker.replication.follower_replica import Follower
from streamlog.broker.replication.leader_replica import Leader
from streamlog.broker.replication.mirror_reader import MirrorReader
from streamlog.broker.replication.replica_state import (
    CORRECT,
    NO_EPOCH,
    BeginEpoch,
    BrokerIdentity,
    CutOf,
    Effect,
    LoseLeadership,
    MirrorOf,
    ReplicaLog,
    ReplicaRules,
    ReplicaSettings,
    ReplicaState,
    Truncate,
)


class Replica:
    """This broker's replica of one partition.

    Args:
        broker_id: this broker.
        log: the offsets of its log.
        brokers: the live brokers and their epochs, see `Leader`.
        settings: the settings of the topic and the broker.
        incarnation: a number that no earlier start of this broker had.
        rules: the faults to plant.
        keeps_cut: whether a mirror keeps what it cuts, see `MirrorReader`.
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
        keeps_cut: bool = False,
    ) -> None:
        self.log = log
        self.state: ReplicaState | None = None
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.mirror: MirrorReader | None = None
        """How this leader copies its source; None unless it leads a mirror partition."""
        self.cut_due: int | None = None
        """Where the log has to be cut before this broker leads, as it has been elected to."""
        self._broker = BrokerIdentity(broker_id)
        self._registered_offset = 0
        self._brokers = brokers
        self._settings = settings
        self._rules = rules
        self._keeps_cut = keeps_cut
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
            if self.cut_due is not None and not new_epoch:
                return []
            return self._lead(state, now_ms)
        if self.follower is not None and not new_epoch:
            return []
        return self._follow(state)

    def on_kept(self, offset: int) -> list[Effect]:
        """Note that the records from `offset` on are kept in a file: cut them off."""
        if self.cut_due != offset:
            return []
        self.log.cut(offset)
        return [Truncate(offset)]

    def on_cut(self, now_ms: int) -> list[Effect]:
        """Note that the disk has cut the log, and lead."""
        if self.state is None or self.cut_due is None:
            return []
        return self._lead(self.state, now_ms)

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
        self.cut_due = self._due(state.cut)
        if self.cut_due is not None:
            return effects
        self.leader = Leader(
            self._broker,
            self.log,
            state,
            brokers=self._brokers,
            settings=self._settings,
            now_ms=now_ms,
            rules=self._rules,
        )
        if state.mirror_of is None:
            effects.append(BeginEpoch(state.leader_epoch, self.log.end_offset))
        else:
            self.mirror = self._reader(self.leader, state, state.mirror_of)
        return [*effects, *self.leader.on_flushed()]

    def _due(self, cut: CutOf | None) -> int | None:
        """Return where the log has to be cut before this broker leads; None for nowhere."""
        if cut is None or self.log.end_offset <= cut.offset:
            return None
        is_of_era = self.log.epochs.start_after(cut.leader_epoch - 1) is not None
        return None if is_of_era else max(cut.offset, self.log.start_offset)

    def _reader(self, leader: Leader, state: ReplicaState, source: MirrorOf) -> MirrorReader:
        # Before the first batch of the source's era is copied, there is nothing to protect.
        start, strays = map(self._start_of, (source.floor_epoch, source.ceiling_epoch))
        # 1. `b` is promoted at epoch 10, and `a`, which follows it, at 20. 2. `a` is to follow `b`
        # again, and has no record of 10. 3. Its first record from epoch 10 on is of 20: it is to
        # be cut, and protects nothing.
        if start == strays:
            start = None
        return MirrorReader(
            leader,
            self.log,
            may_cut=state.last_unclean_epoch == state.leader_epoch,
            floor=0 if start is None else start,
            ceiling_epoch=source.ceiling_epoch,
            keeps_cut=self._keeps_cut,
            is_compared=strays is None and (source.floor_epoch == NO_EPOCH or start is not None),
        )

    def _start_of(self, epoch: int) -> int | None:
        """Return where the records of a leader epoch and later ones begin; None without one."""
        return None if epoch == NO_EPOCH else self.log.epochs.start_after(epoch - 1)

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
        leader, self.leader, self.mirror, self.cut_due = self.leader, None, None, None
        if leader is None:
            return []
        return [LoseLeadership(leader.epoch, leader.take_tickets())]
