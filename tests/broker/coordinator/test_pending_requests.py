"""PendingRequests: an answer is sent once the records that it depends on are committed."""

from __future__ import annotations

import asyncio

from streamlog.broker.coordinator.pending_requests import (
    COMMIT_TIMEOUT_MS,
    PendingRequests,
    when_all_committed,
)
from streamlog.broker.coordinator.shard import Answer
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse
from streamlog.protocol.schema import Message
from tests.broker.node import batch
from tests.broker.replication.cluster import Cluster, ReplicatingNode

THERE = HeartbeatResponse(throttle_time_ms=1)


def code_of(response: Message) -> int:
    assert isinstance(response, HeartbeatResponse)
    return response.error_code


class LocalCoordinator:
    """A coordinator whose partition one node of a cluster leads."""

    def __init__(self, node: ReplicatingNode) -> None:
        self._partition = node.partition
        self.answering = PendingRequests()

    def ask(self, now_ms: int = 0) -> asyncio.Future[Message]:
        """Take a request that appends a record; return its answer."""
        ticket, answer = self.answering.take(0, HeartbeatRequest(), 3)
        self._partition.append(memoryview(bytearray(batch(b"decided"))), now_ms=now_ms)
        self.answering.give(self._partition, (Answer(ticket, THERE),), now_ms)
        return answer


def test_an_answer_waits_for_the_followers() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leader, *followers = cluster.nodes
            for node in followers:
                node.threads[0].held = True
            local = LocalCoordinator(leader)
            answer = local.ask()
            await cluster.until(lambda: all(node.end == 1 for node in cluster.nodes))
            assert not answer.done()
            for node in followers:
                node.threads[0].release()
            assert await answer is THERE
            assert local.answering.next_deadline_ms() is None

    asyncio.run(story())


def test_an_answer_fails_when_the_followers_are_too_slow() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            cluster.cut_off = {1, 2}
            local = LocalCoordinator(cluster.nodes[0])
            answer = local.ask(now_ms=7)
            assert local.answering.next_deadline_ms() == 7 + COMMIT_TIMEOUT_MS
            local.answering.tick(6 + COMMIT_TIMEOUT_MS)
            assert not answer.done()
            local.answering.tick(7 + COMMIT_TIMEOUT_MS)
            assert code_of(answer.result()) == ErrorCode.COORDINATOR_NOT_AVAILABLE

    asyncio.run(story())


def test_losing_leadership_fails_the_answer_to_an_uncommitted_record() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            cluster.cut_off = {1, 2}
            local = LocalCoordinator(cluster.nodes[0])
            answer = local.ask()
            outcomes: list[StreamlogError | None] = []
            when_all_committed([cluster.nodes[0].partition], outcomes.append)
            cluster.cut_off = set()
            cluster.elect(1)
            assert code_of(await answer) == ErrorCode.NOT_COORDINATOR
            (failure,) = outcomes
            assert isinstance(failure, LogError)
            assert failure.code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(story())


def test_when_all_committed_reports_committed_records_at_once() -> None:
    async def story() -> None:
        async with Cluster(count=1, min_insync=1) as cluster:
            outcomes: list[StreamlogError | None] = []
            when_all_committed([cluster.nodes[0].partition], outcomes.append)
            assert outcomes == [None]

    asyncio.run(story())
