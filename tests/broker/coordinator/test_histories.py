"""Random histories of groups, with restarts and power cuts, against a model.

The model knows what a client may rely on. An acknowledged commit, or one that was sent later, is
there afterwards. A partition has one owner per generation among the members whose session cannot
have expired (a group that all members have left may start at generation 1 again). Clients that
follow the protocol become a stable group again, whatever the broker went through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from streamlog.broker.broker import Broker
from streamlog.clock import ManualClock
from streamlog.errors import LogDirectoryError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from streamlog.protocol.schema import Message
from tests.broker.coordinator.driving import committed, joining
from tests.broker.node import Node, ask, context, create

PARTITIONS = 4
CLIENTS = 3
LIVES = 4
SEEDS = 60
ODDS = (60, 25, 12, 2, 1)
ROUNDS_TO_SETTLE = 300
SESSION_TIMEOUT_MS = 10_000
"""The session timeout of `joining`."""


@dataclass
class Client:
    """A consumer that follows the protocol, in the state that its responses have set."""

    member_id: str = ""
    generation: int = -1
    owns: frozenset[int] = frozenset()
    leads: Sequence[str] = ()
    to_sync: bool = False
    waits: asyncio.Future[Message] | None = None
    asked_ms: int = 0
    heard_ms: int = -SESSION_TIMEOUT_MS
    """When the last request with a successful response was sent."""

    def lose(self, code: int) -> None:
        """Handle an error: an unknown member joins as a new one."""
        self.owns, self.to_sync = frozenset(), False
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""


@dataclass
class History:
    """The clients, and what they may rely on."""

    chance: Random
    clock: ManualClock
    clients: list[Client] = field(default_factory=lambda: [Client() for _ in range(CLIENTS)])
    acknowledged: dict[int, int] = field(default_factory=dict)
    sent: dict[int, set[int]] = field(default_factory=dict)
    """Offsets that were sent after the last acknowledged commit, by partition."""
    offset: int = 0
    lost: list[asyncio.Future[Message]] = field(default_factory=list)
    """Responses that no client waits for."""

    async def step(self, broker: Broker, client: Client) -> None:
        """Send the client's next request, or take its response if it has arrived."""
        if client.waits is not None:
            if client.waits.done():
                self.take(client, client.waits.result())
            return
        client.asked_ms = self.clock.now_ms()
        if client.to_sync:
            answer = broker.begin(self.syncing(client), context(self.syncing(client)))
        elif client.owns:
            await self.beat(broker, client)
            return
        else:
            request = joining(client.member_id)
            answer = broker.begin(request, context(request))
        if isinstance(answer, asyncio.Future):
            client.waits = answer
        elif answer is not None:
            self.take(client, answer)

    def syncing(self, client: Client) -> SyncGroupRequest:
        shares = {
            name: bytes(range(index, PARTITIONS, len(client.leads)))
            for index, name in enumerate(client.leads)
        }
        return SyncGroupRequest(
            group_id="g",
            generation_id=client.generation,
            member_id=client.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=share)
                for name, share in shares.items()
            ],
        )

    def take(self, client: Client, answer: Message) -> None:
        client.waits = None
        assert isinstance(answer, JoinGroupResponse | SyncGroupResponse)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            assert isinstance(answer, JoinGroupResponse)
            client.member_id = answer.member_id
        elif answer.error_code:
            client.lose(answer.error_code)
        elif isinstance(answer, JoinGroupResponse):
            client.heard_ms = client.asked_ms
            client.member_id, client.generation = answer.member_id, answer.generation_id
            client.leads = [member.member_id for member in answer.members]
            client.owns, client.to_sync = frozenset(), True
        else:
            client.heard_ms = client.asked_ms
            client.owns, client.to_sync = frozenset(answer.assignment), False

    async def beat(self, broker: Broker, client: Client) -> None:
        request = HeartbeatRequest(
            group_id="g", generation_id=client.generation, member_id=client.member_id
        )
        code = (await ask(broker, request, HeartbeatResponse)).error_code
        if code != ErrorCode.NONE:
            client.lose(code)
        else:
            client.heard_ms = client.asked_ms

    async def commit(self, broker: Broker, client: Client, *, lose_answer: bool) -> None:
        """Commit a new offset for a partition of the client; the response may be lost."""
        if not client.owns:
            return
        partition = self.chance.choice(sorted(client.owns))
        self.offset += 1
        self.sent.setdefault(partition, set()).add(self.offset)
        position = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=self.offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=client.generation,
            member_id=client.member_id,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[position])],
        )
        answer = broker.begin(request, context(request))
        if lose_answer:
            if isinstance(answer, asyncio.Future):
                self.lost.append(answer)
            return
        response = await answer if isinstance(answer, asyncio.Future) else answer
        assert isinstance(response, OffsetCommitResponse)
        code = response.topics[0].partitions[0].error_code
        if code == ErrorCode.NONE:
            self.acknowledged[partition] = self.offset
            self.sent[partition] = set()
        else:
            # A refused commit must not appear later.
            self.sent[partition].discard(self.offset)
            client.lose(code)

    async def leave(self, broker: Broker, client: Client) -> None:
        if client.member_id:
            leaving = [MemberIdentity(member_id=client.member_id)]
            request = LeaveGroupRequest(group_id="g", members=leaving)
            await ask(broker, request, LeaveGroupResponse)
            self.replace(client)

    def replace(self, client: Client) -> None:
        if client.waits is not None:
            self.lost.append(client.waits)
        self.clients[self.clients.index(client)] = Client()

    async def check(self, broker: Broker) -> None:
        there = await committed(broker)
        for partition, offset in self.acknowledged.items():
            found = there.get(("t", partition))
            assert found == offset or found in self.sent[partition], (partition, offset, found)
        self.check_owners()

    def check_owners(self) -> None:
        oldest_ms = self.clock.now_ms() - SESSION_TIMEOUT_MS
        members = [client for client in self.clients if client.heard_ms > oldest_ms]
        newest = max((client.generation for client in members), default=0)
        owned = [p for c in members if c.generation == newest for p in c.owns]
        assert len(owned) == len(set(owned)), "owned twice in one generation"

    async def live(self, broker: Broker, node: Node) -> None:
        """Let a random number of random events happen."""
        for _ in range(self.chance.randint(10, 150)):
            client = self.chance.choice(self.clients)
            match self.chance.choices(["step", "commit", "wait", "leave", "vanish"], ODDS)[0]:
                case "wait":
                    node.pass_time(broker, self.chance.choice([1, 100, 500, 2_000, 11_000]))
                case "leave":
                    await self.leave(broker, client)
                case "vanish":
                    self.replace(client)
                case "commit":
                    await self.commit(broker, client, lose_answer=self.chance.random() < 0.2)
                case _:
                    await self.step(broker, client)
            await asyncio.sleep(0)
            self.check_owners()

    def interrupt(self) -> None:
        """The broker has stopped; drop all pending responses."""
        for client in self.clients:
            if client.waits is not None:
                self.lost.append(client.waits)
                client.waits = None
        for answer in self.lost:
            if answer.done() and not answer.cancelled():
                answer.exception()  # marks it as retrieved
        self.lost.clear()

    async def settle(self, broker: Broker, node: Node) -> None:
        """Without faults, the clients form a stable group that owns all partitions."""
        for _ in range(ROUNDS_TO_SETTLE):
            for client in self.clients:
                await self.step(broker, client)
                await wait_for_disk(broker)  # simulated time must not outrun the disk
            node.pass_time(broker, 500)
            owned = sorted(p for client in self.clients for p in client.owns)
            same = len({client.generation for client in self.clients}) == 1
            if same and owned == list(range(PARTITIONS)):
                return
        raise AssertionError(f"not stable: {self.clients}")


async def wait_for_disk(broker: Broker) -> None:
    """Wait until all pending writes are on disk."""
    done = asyncio.get_running_loop().create_future()
    broker._flush.then(lambda _: done.set_result(None))
    await done


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_acknowledged_commit_is_lost_and_every_group_recovers(seed: int) -> None:
    node = Node()
    history = History(Random(seed), node.clock)

    async def life(broker: Broker) -> None:
        if "t" not in broker.directory.topics:
            create(broker, partitions=PARTITIONS)
        await history.check(broker)
        await history.live(broker, node)
        if history.chance.random() < 0.5:
            node.files.crash()

    async def peace(broker: Broker) -> None:
        await history.check(broker)
        await history.settle(broker, node)
        await history.check(broker)

    for _ in range(LIVES):
        with suppress(OSError, LogDirectoryError):
            node.run(life)
        history.interrupt()
    node.run(peace)
    history.interrupt()
