"""Answers that are there, and answers that will be."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from streamlog.broker.cluster.forwarding import Forwarding
from streamlog.broker.coordinator.group.group_requests import gather_answers
from streamlog.broker.future_responses import Answer, chain_response, map_response
from streamlog.clock import SystemClock
from streamlog.errors import ConnectionLost
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import BrokerHeartbeatRequest
from streamlog.protocol.schema import Message


def test_what_is_there_goes_on_at_once() -> None:
    assert map_response(1, str) == "1"
    assert chain_response(1, str) == "1"


def test_what_will_be_there_goes_on_then() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        first: asyncio.Future[int] = loop.create_future()
        second: asyncio.Future[str] = loop.create_future()
        answers = [
            map_response(first, str),
            chain_response(first, str),
            chain_response(first, lambda _: second),
        ]
        first.set_result(1)
        second.set_result("2")
        assert [await each for each in answers if isinstance(each, asyncio.Future)] == [
            "1",
            "1",
            "2",
        ]

    asyncio.run(main())


def test_an_error_is_handed_on_and_who_waits_no_more_is_left_alone() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        first: asyncio.Future[int] = loop.create_future()
        second: asyncio.Future[str] = loop.create_future()
        lost = [map_response(first, str), chain_response(first, str)]
        gone = map_response(first, str)
        assert isinstance(gone, asyncio.Future)
        gone.cancel()
        first.set_exception(ConnectionLost("gone"))
        for each in lost:
            assert isinstance(each, asyncio.Future)
            with pytest.raises(ConnectionLost):
                await each
        late = chain_response(asyncio.ensure_future(asyncio.sleep(0, 1)), lambda _: second)
        second.set_exception(ConnectionLost("gone"))
        assert isinstance(late, asyncio.Future)
        with pytest.raises(ConnectionLost):
            await late

    asyncio.run(main())


class Asked:
    """A quorum that answers later."""

    is_active = True
    controller_id = 1

    def __init__(self, answer: asyncio.Future[Message]) -> None:
        self._answer = answer

    def submit(self, request: Message, version: int) -> Answer:
        return self._answer


def decided(first: asyncio.Future[Any]) -> Any:
    forwarding = Forwarding(Asked(first), node_id=1, clock=SystemClock())
    request = BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=1, current_metadata_offset=0, want_fence=False
    )
    return forwarding.decide(request, 1)


def chained_behind(first: asyncio.Future[Any]) -> Any:
    def then(_: int) -> asyncio.Future[Any]:
        return first

    return chain_response(done(1), then)


def gathered_with(first: asyncio.Future[Any]) -> Any:
    return gather_answers([first], lambda _: pytest.fail("it failed"))


WAYS = pytest.mark.parametrize(
    "made",
    [
        lambda first: map_response(first, str),
        lambda first: chain_response(first, str),
        chained_behind,
        gathered_with,
        decided,
    ],
)


async def some_turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def told(
    made: Callable[[asyncio.Future[Any]], asyncio.Future[Any]],
    end: Callable[[asyncio.Future[Any], asyncio.Future[Any]], object],
) -> tuple[list[BaseException], asyncio.Future[Any]]:
    """What asyncio tells as lost when `end` has ended what was asked for, and the answer."""
    lost: list[BaseException] = []

    async def main() -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: lost.append(context["exception"]))
        first: asyncio.Future[Any] = loop.create_future()
        answer = made(first)
        await some_turns()
        end(first, answer)
        async with asyncio.timeout(10):
            await asyncio.wait([first, answer])
        await some_turns()
        return answer

    answer = asyncio.run(main())
    gc.collect()
    return lost, answer


@WAYS
@pytest.mark.parametrize("error", [ConnectionLost("gone"), ZeroDivisionError("a mistake")])
def test_what_was_asked_for_in_vain_is_told_only_if_nobody_expects_it(
    made: Callable[[asyncio.Future[Any]], asyncio.Future[Any]], error: Exception
) -> None:
    """A client hangs up, and what it has asked for fails: no error that got lost (asyncio's)."""

    def end(first: asyncio.Future[Any], answer: asyncio.Future[Any]) -> None:
        answer.cancel()
        first.set_exception(error)

    lost, _ = told(made, end)
    assert lost == ([] if isinstance(error, ConnectionLost) else [error])


@WAYS
def test_who_would_have_answered_is_cancelled(
    made: Callable[[asyncio.Future[Any]], asyncio.Future[Any]],
) -> None:
    """The broker ends: so does the wait, and nothing is told."""
    lost, answer = told(made, lambda first, _: first.cancel())
    if made is decided:
        assert answer.result().error_code == ErrorCode.KAFKA_STORAGE_ERROR
    else:
        assert answer.cancelled()
    assert lost == []


def done(result: object) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future
