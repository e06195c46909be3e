"""Forwarding: a request reaches the controller, or fails with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from streamlog.broker.cluster.forwarding import Forwarding
from streamlog.broker.future_responses import Answer
from streamlog.clock import SystemClock
from streamlog.errors import ConnectionLost, LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from streamlog.protocol.schema import Message

OWN, OTHER = 1, 2


class Quorum:
    """The quorum as this node sees it; the test changes it."""

    def __init__(self) -> None:
        self.is_active = False
        self.controller_id: int | None = None

    def submit(self, request: Message, version: int) -> Answer:
        if not self.is_active:
            raise LogError("it is another one", code=ErrorCode.NOT_CONTROLLER)
        return create_response()


class OtherNodes:
    """The other nodes: they record the calls and return the given answers in order."""

    def __init__(self, *answers: Message | Exception) -> None:
        self.asked: list[int] = []
        self._answers = list(answers)

    async def call(self, node_id: int, request: Message, *, timeout_ms: int) -> Message:
        self.asked.append(node_id)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def create_response(code: int = 0) -> CreateTopicsResponse:
    result = CreatableTopicResult(name="t", error_code=code, error_message=None, configs=None)
    return CreateTopicsResponse(topics=[result])


def create_request(timeout_ms: int = 5_000) -> CreateTopicsRequest:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)


def run_forwarding(
    quorum: Quorum, others: OtherNodes, story: Callable[[Forwarding], Coroutine[Any, Any, None]]
) -> None:
    async def life() -> None:
        forwarding = Forwarding(quorum, node_id=OWN, clock=SystemClock())
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            forwarding.begin(others, tasks.create_task)  # type: ignore[arg-type]
            await story(forwarding)

    asyncio.run(life())


async def code_of(answer: Answer) -> int:
    response = await answer if isinstance(answer, asyncio.Future) else answer
    assert isinstance(response, CreateTopicsResponse)
    return response.topics[0].error_code


def test_the_controller_decides_a_request_itself() -> None:
    quorum, others = Quorum(), OtherNodes()
    quorum.is_active = True

    async def story(forwarding: Forwarding) -> None:
        assert forwarding.submit(create_request(), 7) == create_response()
        assert others.asked == []

    run_forwarding(quorum, others, story)


def test_another_node_forwards_the_request_to_the_controller() -> None:
    quorum, others = Quorum(), OtherNodes(create_response(ErrorCode.TOPIC_ALREADY_EXISTS))
    quorum.controller_id = OTHER

    async def story(forwarding: Forwarding) -> None:
        code = await code_of(forwarding.submit(create_request(), 7))
        assert (code, others.asked) == (ErrorCode.TOPIC_ALREADY_EXISTS, [OTHER])

    run_forwarding(quorum, others, story)


def test_forwarding_retries_after_not_controller_and_lost_connections() -> None:
    others = OtherNodes(
        create_response(ErrorCode.NOT_CONTROLLER), ConnectionLost("gone"), create_response()
    )
    quorum = Quorum()
    quorum.controller_id = OTHER

    async def story(forwarding: Forwarding) -> None:
        assert await code_of(forwarding.submit(create_request(), 7)) == 0
        assert others.asked == [OTHER] * 3

    run_forwarding(quorum, others, story)


def test_a_node_that_becomes_the_controller_decides_a_waiting_request() -> None:
    quorum = Quorum()

    async def story(forwarding: Forwarding) -> None:
        answer = forwarding.submit(create_request(), 7)
        await asyncio.sleep(0)
        quorum.controller_id, quorum.is_active = OWN, True
        assert await code_of(answer) == 0

    run_forwarding(quorum, OtherNodes(), story)


def test_without_a_controller_a_request_times_out() -> None:
    async def story(forwarding: Forwarding) -> None:
        code = await code_of(forwarding.submit(create_request(timeout_ms=120), 7))
        assert code == ErrorCode.REQUEST_TIMED_OUT

    run_forwarding(Quorum(), OtherNodes(), story)


@pytest.mark.parametrize("controller_id", [None, OTHER])
def test_attempt_tries_a_heartbeat_only_once(controller_id: int | None) -> None:
    quorum, others = Quorum(), OtherNodes(ConnectionLost("gone"))
    quorum.controller_id = controller_id

    async def story(forwarding: Forwarding) -> None:
        request = BrokerHeartbeatRequest(
            broker_id=OWN, broker_epoch=1, current_metadata_offset=1, want_shut_down=False
        )
        answer = forwarding.attempt(request, 1)
        assert isinstance(answer, asyncio.Future)
        response = await answer
        assert isinstance(response, BrokerHeartbeatResponse)
        assert response.error_code == ErrorCode.NOT_CONTROLLER

    run_forwarding(quorum, others, story)


def test_a_forwarded_request_is_not_forwarded_again() -> None:
    quorum, others = Quorum(), OtherNodes()
    quorum.controller_id = OTHER

    async def story(forwarding: Forwarding) -> None:
        assert await code_of(forwarding.decide(create_request(), 7)) == ErrorCode.NOT_CONTROLLER
        assert others.asked == []

    run_forwarding(quorum, others, story)
