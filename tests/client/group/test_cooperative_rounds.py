"""Cooperative members under a model of the coordinator, in random orders of steps.

Slow callbacks and networks are orders of steps: a revocation begins in one step and ends in a later
one, and requests are answered when the coordinator's turn comes.
"""

from __future__ import annotations

from random import Random

import pytest

from streamlog.assignors import CooperativeStickyAssignor
from streamlog.client.group.classic_protocol import (
    CountPartitions,
    GroupMember,
    GroupSettings,
    Heartbeat,
    Join,
    Sync,
)
from streamlog.protocol import codec
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import classic_groups as wire
from streamlog.record import TopicPartition

PARTITIONS = 5
MEMBERS_MAX = 4
SETTINGS = GroupSettings(
    group_id="g",
    session_timeout_ms=300,
    heartbeat_interval_ms=100,
    max_poll_interval_ms=1_000,
    rebalance_timeout_ms=5_000,
    instance_id="i",
)
NOTHING = codec.encode_versioned(wire.ConsumerProtocolAssignment(), 0)


class Client:
    """A member, its open request, and its caller."""

    def __init__(self) -> None:
        self.member = GroupMember(SETTINGS, CooperativeStickyAssignor(), ["t"])
        self.open: Join | Sync | None = None
        self.revoking: frozenset[TopicPartition] | None = None

    def poll(self, now_ms: int) -> None:
        """Begin or end a revocation, or take over an assignment."""
        if self.revoking is not None:
            self.member.on_revoked(self.revoking, now_ms)
            self.revoking = None
        elif self.member.revoking:
            self.revoking = self.member.revoking
        elif self.member.offered is not None:
            self.member.on_assigned(now_ms)


class Group:
    """The members, and a coordinator that runs one round after the other."""

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self._now_ms = 0
        self._generation = 0
        self._is_rebalancing = True
        self._metadata: dict[str, bytes] = {}
        self._plan: dict[str, bytes] | None = None

    def start_member(self) -> None:
        """Add a member, up to the maximum."""
        if len(self.clients) < MEMBERS_MAX:
            self.clients[f"m{len(self.clients)}"] = Client()
            self._is_rebalancing = True

    def restart_member(self, index: int) -> None:
        """Kill a static member; the next one with its instance id takes its place."""
        if self.clients:
            self.clients[[*self.clients][index % len(self.clients)]] = Client()

    def poll(self, index: int) -> None:
        """One caller polls."""
        if self.clients:
            [*self.clients.values()][index % len(self.clients)].poll(self._now_ms)

    def act(self, index: int) -> None:
        """One member performs its next action; the coordinator answers what it can."""
        if not self.clients:
            return
        self._now_ms += SETTINGS.heartbeat_interval_ms
        name = [*self.clients][index % len(self.clients)]
        client = self.clients[name]
        if client.open is None:
            self._perform(client)
        if isinstance(client.open, Join):
            if not self._answer_returned(name, client, client.open):
                self._answer_joins()
        elif isinstance(client.open, Sync):
            self._answer_sync(name, client)

    def _perform(self, client: Client) -> None:
        match client.member.next(self._now_ms):
            case Join() | Sync() as request:
                client.open = request
            case CountPartitions():
                client.member.on_partitions({"t": PARTITIONS}, self._now_ms)
            case Heartbeat():
                code = ErrorCode.REBALANCE_IN_PROGRESS if self._is_rebalancing else ErrorCode.NONE
                response = wire.HeartbeatResponse(error_code=code)
                client.member.on_heartbeat(response, self._now_ms)

    def _answer_returned(self, name: str, client: Client, join: Join) -> bool:
        """Give a static member that has returned the assignment that it had (KIP-345, KIP-814)."""
        if self._is_rebalancing or self._plan is None or join.request.member_id:
            return False
        self._metadata[name] = join.request.protocols[0].metadata
        client.open = None
        self._answer_join(name, client, skip=True)
        return True

    def _answer_joins(self) -> None:
        self._is_rebalancing = True
        joins = {
            name: client.open.request.protocols[0].metadata
            for name, client in self.clients.items()
            if isinstance(client.open, Join)
        }
        if joins.keys() != self.clients.keys():
            return  # The round waits for the other members.
        self._generation += 1
        self._is_rebalancing, self._plan = False, None
        self._metadata = joins
        for name, client in self.clients.items():
            client.open = None
            self._answer_join(name, client, skip=False)

    def _answer_join(self, name: str, client: Client, *, skip: bool) -> None:
        leader = min(self._metadata)
        response = wire.JoinGroupResponse(
            generation_id=self._generation, leader=leader, member_id=name
        )
        if name == leader:
            response.skip_assignment = skip
            response.members = [
                wire.JoinGroupResponseMember(member_id=each, metadata=metadata)
                for each, metadata in self._metadata.items()
            ]
        client.member.on_join(response, self._now_ms)

    def _answer_sync(self, name: str, client: Client) -> None:
        if not isinstance(client.open, Sync):
            return
        response = wire.SyncGroupResponse()
        if self._is_rebalancing:
            response.error_code = ErrorCode.REBALANCE_IN_PROGRESS
        else:
            if client.open.request.assignments:
                sent = client.open.request.assignments
                self._plan = {each.member_id: each.assignment for each in sent}
            if self._plan is None:
                return  # The leader's plan has not arrived.
            response.assignment = self._plan.get(name, NOTHING)
        client.open = None
        client.member.on_sync(response, self._now_ms)

    def owners(self) -> list[TopicPartition]:
        """Return the partitions that members may read, once for each reader."""
        return [each for client in self.clients.values() for each in client.member.assignment]


@pytest.mark.parametrize("seed", range(20))
def test_every_partition_finds_exactly_one_reader(seed: int) -> None:
    rng = Random(seed)
    for _ in range(20):
        group = Group()
        for _ in range(rng.randint(20, 120)):
            index = rng.randrange(MEMBERS_MAX)
            match rng.randrange(20):
                case 0:
                    group.start_member()
                case 1:
                    group.restart_member(index)
                case step if step < 8:
                    group.poll(index)
                case _:
                    group.act(index)
            assert len(group.owners()) == len(set(group.owners()))
        group.start_member()
        for _ in range(60):
            for index in range(MEMBERS_MAX):
                group.act(index)
                group.poll(index)
        assert sorted(group.owners()) == [TopicPartition("t", n) for n in range(PARTITIONS)]
