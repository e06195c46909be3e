"""Proofs: a coordinator answers from memory only with proof that no other one has led since."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from streamlog.broker.coordinator.group.group_runtime import NOTHING
from streamlog.broker.coordinator.led_shards import LedShard
from streamlog.broker.coordinator.pending_requests import (
    COMMIT_TIMEOUT_MS,
    CoordinatorRules,
    PendingRequests,
    Proofs,
)
from streamlog.broker.coordinator.shard import Answer, Instant
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse
from streamlog.protocol.schema import Message
from tests.broker.replication.cluster import Cluster, ReplicatingNode

KNOWN = HeartbeatResponse(throttle_time_ms=1)
NO_ERROR = 0


class LocalCoordinator:
    """A coordinator whose partition this node leads, as far as it knows."""

    def __init__(self, node: ReplicatingNode) -> None:
        self.now_ms = 0
        self.log = node.partition
        self.answering = PendingRequests()
        self.proofs = Proofs(self.answering, NOTHING, lambda: Instant(self.now_ms, 0))

    def ask(self) -> asyncio.Future[Message]:
        """Ask for an answer from memory."""
        ticket, answer = self.answering.take(0, HeartbeatRequest(), 0)
        self.proofs.give(LedShard(0, None, self.log), (Answer(ticket, KNOWN),))
        return answer

    def wait(self) -> None:
        """Let the commit timeout pass."""
        self.now_ms += COMMIT_TIMEOUT_MS
        self.answering.tick(self.now_ms)


async def code_of(answer: asyncio.Future[Message]) -> int:
    async with asyncio.timeout(20):
        response = await answer
    assert isinstance(response, HeartbeatResponse)
    assert response is KNOWN or response.error_code
    return response.error_code


@pytest.fixture
def _from_memory() -> Iterator[None]:
    """Plant the fault that proofs prevent."""
    correct, Proofs.rules = Proofs.rules, CoordinatorRules(tells_from_memory=True)
    yield
    Proofs.rules = correct


async def replace_leader(cluster: Cluster) -> LocalCoordinator:
    """Let node 1 lead without node 0 noticing; return the coordinator of node 0."""
    await cluster.until(lambda: cluster.nodes[0].partition.may_acknowledge(cluster.nodes[0].end))
    cluster.cut_off = {0}
    cluster.elect(1, isr=(1, 2))
    return LocalCoordinator(cluster.nodes[0])


def test_a_replaced_coordinator_answers_nothing_from_memory() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            old = await replace_leader(cluster)
            answer = old.ask()
            assert old.answering.next_deadline_ms() == COMMIT_TIMEOUT_MS
            old.wait()
            assert await code_of(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            # The proof is still pending: a request that comes meanwhile does not wait forever,
            # either.
            waiting, next_one = old.ask(), old.ask()
            old.wait()
            assert await code_of(waiting) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await code_of(next_one) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            last = old.ask()
            cluster.cut_off = set()
            cluster.commit()
            assert await code_of(last) == ErrorCode.NOT_COORDINATOR

    asyncio.run(story())


@pytest.mark.usefixtures("_from_memory")
def test_without_the_rule_a_replaced_coordinator_answers_stale_state() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            old = await replace_leader(cluster)
            assert await code_of(old.ask()) == NO_ERROR

    asyncio.run(story())


def test_one_proof_serves_all_requests_that_came_before_it() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leader = LocalCoordinator(cluster.nodes[0])
            answers = [leader.ask() for _ in range(5)]
            assert cluster.nodes[0].end == 1, "only the first request has appended a proof"
            assert [await code_of(each) for each in answers] == [NO_ERROR] * 5
            assert cluster.nodes[0].end == 2
            assert await code_of(leader.ask()) == NO_ERROR
            assert leader.answering.next_deadline_ms() is None

    asyncio.run(story())


def test_a_proof_of_a_later_epoch_is_not_accepted() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            old = await replace_leader(cluster)
            answers = [old.ask(), old.ask()]
            # Node 0 is elected again before it learns of the leader in between.
            cluster.cut_off = set()
            cluster.elect(0, isr=(0, 1, 2))
            assert [await code_of(each) for each in answers] == [ErrorCode.NOT_COORDINATOR] * 2
            assert await code_of(old.ask()) == NO_ERROR

    asyncio.run(story())


def test_too_few_in_sync_replicas_allow_no_proof() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            cluster.isr = (0,)
            cluster.commit()
            answer = LocalCoordinator(cluster.nodes[0]).ask()
            assert await code_of(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert cluster.nodes[0].end == 0

    asyncio.run(story())


def test_a_request_does_not_wait_behind_a_proof_that_may_never_commit() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leader = LocalCoordinator(cluster.nodes[0])
            first = leader.ask()
            cluster.isr = (0,)
            cluster.commit()
            later = leader.ask()
            assert later.done()
            assert await code_of(later) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            leader.wait()
            await first

    asyncio.run(story())


def test_a_broker_without_followers_needs_no_proof() -> None:
    async def story() -> None:
        async with Cluster(count=1, min_insync=1) as cluster:
            answer = LocalCoordinator(cluster.nodes[0]).ask()
            assert answer.done()
            assert cluster.nodes[0].end == 0

    asyncio.run(story())
