"""IdealController: a controller that never fails, so that what breaks is replication's.

What it decides is committed at once, in one order; see `simulation` of the quorum and of the real
controller for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from simulation.isr.messages import Alter, Altered, Heartbeat, Metadata, Registered
from simulation.isr.plan import Plan
from streamlog.broker.replication.replica_state import NO_EPOCH, NO_LEADER, ReplicaState
from streamlog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from simulation.isr.world import World


class IdealController:
    """Who leads, who is in sync, and who is alive."""

    def __init__(self, world: World, replicas: tuple[int, ...], plan: Plan) -> None:
        self.state = ReplicaState(
            leader=0, leader_epoch=0, partition_epoch=0, replicas=replicas, isr=replicas
        )
        self.epochs: dict[int, int] = {}
        self.fenced = dict.fromkeys(replicas, True)
        self._world = world
        self._plan = plan
        self._incarnations: dict[int, int] = {}
        self._registered: dict[int, int] = {}
        self._seen_ms: dict[int, int] = {}
        self._deaf_until_ms: dict[int, int] = {}
        self._offset = 0

    def metadata(self) -> Metadata:
        """What is committed by now."""
        alive = {broker: e for broker, e in self.epochs.items() if not self.fenced[broker]}
        return Metadata(self._offset, self.state, alive)

    def on_heartbeat(self, beat: Heartbeat) -> None:
        """A broker lives; one with a new incarnation is registered."""
        broker = beat.broker
        known = self._incarnations.get(broker, 0)
        deaf = self._world.now_ms < self._deaf_until_ms.get(broker, 0)
        if known > beat.incarnation or deaf:
            return
        if known != beat.incarnation:
            self._register(beat)
        self._seen_ms[broker] = self._world.now_ms
        answer = Registered(self.epochs[broker], beat.incarnation, self._registered[broker])
        self._world.send_to_broker(broker, answer)
        if beat.epoch == self.epochs[broker] and self.fenced[broker]:
            self.fenced[broker] = False
            self._change(self.state.isr)  # One without a leader may have one now.
        else:
            self._world.send_to_broker(broker, self.metadata())

    def on_alter(self, alter: Alter) -> None:
        """A leader asks for another in-sync set."""
        if alter.broker_epoch != self.epochs.get(alter.broker):
            return
        isr = tuple(broker for broker, _ in alter.proposal.isr)
        code = self._judge(alter)
        if code == ErrorCode.NONE:
            self._change(isr)
        if code == ErrorCode.INELIGIBLE_REPLICA and not self._plan.accepts_late_proposals:
            self._change(self.state.isr, voids=True)
        answer = Altered(
            alter.proposal.number,
            code,
            self.state.leader_epoch,
            self.state.partition_epoch,
            frozenset(self.state.isr),
        )
        self._world.send_to_broker(alter.broker, answer)

    def on_tick(self, session_ms: int) -> None:
        """Time has passed: one broker that was not heard of is fenced."""
        for broker, fenced in self.fenced.items():
            if not fenced and self._world.now_ms - self._seen_ms.get(broker, 0) > session_ms:
                return self._fence(broker)
        return None

    def overhear(self, broker: int, for_ms: int) -> None:
        """Hear nothing of a broker for a while, whose session ends by that."""
        self._deaf_until_ms[broker] = self._world.now_ms + for_ms
        if not self.fenced[broker]:
            self._fence(broker)

    def _fence(self, broker: int) -> None:
        self.fenced[broker] = True
        self._change(each for each in self.state.isr if each != broker)

    def _register(self, beat: Heartbeat) -> None:
        broker = beat.broker
        self._incarnations[broker] = beat.incarnation
        self.epochs[broker] = max(self.epochs.values(), default=0) + 1
        self.fenced[broker] = True
        trusted = beat.clean or self._plan.keeps_unclean_in_sync
        isr = [each for each in self.state.isr if trusted or each != broker]
        self._change(isr, again=self.state.leader == broker)
        self._registered[broker] = self._offset

    def _judge(self, alter: Alter) -> int:
        proposal, state = alter.proposal, self.state
        if proposal.leader_epoch != state.leader_epoch or state.leader != alter.broker:
            return ErrorCode.FENCED_LEADER_EPOCH
        old = proposal.partition_epoch != state.partition_epoch
        if old and not self._plan.accepts_old_partition_epochs:
            return ErrorCode.INVALID_UPDATE_VERSION
        for broker, epoch in proposal.isr:
            other = epoch not in (NO_EPOCH, self.epochs[broker])
            if self.fenced[broker] or (other and not self._plan.accepts_old_broker_epochs):
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def _change(self, isr: Iterable[int], *, again: bool = False, voids: bool = False) -> None:
        """Commit an in-sync set, and elect a leader if the one there is may not lead it.

        What changes nothing of the partition leaves its epoch as it is, unless it `voids` what was
        proposed.
        """
        state = self.state
        chosen = tuple(isr) or state.isr[:1]
        leader = state.leader
        if again or leader not in chosen or self.fenced[leader]:
            alive = [broker for broker in state.replicas if not self.fenced[broker]]
            candidates = [broker for broker in alive if broker in chosen]
            if not candidates and self._plan.elects_anybody:
                candidates = alive
                chosen = (alive[0],) if alive else chosen
            leader = candidates[0] if candidates else NO_LEADER
        elected = again or leader != state.leader
        self._offset += 1
        if not elected and not voids and {*chosen} == {*state.isr}:
            return self._world.tell_brokers()
        self.state = ReplicaState(
            leader=leader,
            leader_epoch=state.leader_epoch + elected,
            partition_epoch=state.partition_epoch + 1,
            replicas=state.replicas,
            isr=chosen,
        )
        return self._world.on_committed(elected=elected)
