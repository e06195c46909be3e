"""Responses that are available, and futures of responses."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from streamlog.broker.cluster.forwarding import Forwarding
from streamlog.broker.coordinator.group.group_requests import gather_answers
from streamlog.broker.future_responses import (
    Answer,
    PromptFuture,
    chain_response,
    map_response,
    when_done,
)
from streamlog.broker.turn import Turn
from streamlog.clock import SystemClock
from streamlog.errors import ConnectionLost
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import BrokerHeartbeatRequest
from streamlog.protocol.schema import Message


def test_a_prompt_future_calls_back_as_it_is_settled() -> None:
    async def main() -> None:
        called: list[object] = []
        settled: list[Callable[[PromptFuture[int]], object]] = [
            lambda future: future.set_result(1),
            lambda future: future.set_exception(ConnectionLost("gone")),
            lambda future: future.cancel(),
        ]
        for settle in settled:
            future: PromptFuture[int] = PromptFuture()
            when_done(future, called.append)
            future.add_done_callback(called.append)
            settle(future)
            assert called == [future]  # What the loop calls comes in a later turn.
            await asyncio.sleep(0)
            assert called == [future, future]
            # It is settled: the callback must not run inside of the call that adds it.
            when_done(future, called.append)
            assert called == [future, future]
            await asyncio.sleep(0)
            assert called == [future, future, future]
            future.cancelled() or future.exception()
            called.clear()

    asyncio.run(main())


def test_a_task_can_wait_for_a_prompt_future() -> None:
    async def main() -> None:
        future: PromptFuture[int] = PromptFuture()

        async def wait() -> int:
            return await future

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(wait())
            await asyncio.sleep(0)
            future.set_result(1)
            assert not waiting.done()
        assert waiting.result() == 1

    asyncio.run(main())


def test_a_failing_callback_does_not_reach_what_settles_the_future() -> None:
    async def main() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        future: PromptFuture[int] = PromptFuture()
        called: list[object] = []
        future.when_done(lambda _: 1 / 0)
        future.when_done(called.append)
        future.set_result(1)
        assert called == [future]
        assert [type(each["exception"]) for each in told] == [ZeroDivisionError]

    asyncio.run(main())


def test_what_is_left_to_the_end_of_a_turn_runs_before_the_loop_continues() -> None:
    async def main() -> None:
        turn, order = Turn(), list[str]()

        def last() -> None:
            with turn:
                turn.later(lambda: order.append("last"))
                order.append("first end")

        with turn:
            turn.later(last)
            with turn:
                turn.later(lambda: order.append("second end"))
            order.append("body")
        assert order == ["body", "first end", "second end", "last"]
        turn.later(lambda: order.append("soon"))
        assert order[-1] == "last"
        await asyncio.sleep(0)
        assert order[-1] == "soon"

    asyncio.run(main())


def test_an_error_at_the_end_of_a_turn_keeps_no_other_callback_from_its_call() -> None:
    async def main() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        turn, order = Turn(), list[str]()
        for body in ("first", "second"):
            with turn:
                turn.later(lambda: 1 / 0)
                turn.later(partial(order.append, f"end of the {body}"))
        assert order == ["end of the first", "end of the second"]
        assert [type(each["exception"]) for each in told] == [ZeroDivisionError] * 2

    asyncio.run(main())


def test_available_responses_are_mapped_at_once() -> None:
    assert map_response(1, str) == "1"
    assert chain_response(1, str) == "1"


def test_future_responses_are_mapped_when_they_complete() -> None:
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


def test_errors_are_passed_on_but_not_to_cancelled_futures() -> None:
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


class SlowQuorum:
    """A quorum that answers with the given future."""

    is_active = True
    controller_id = 1

    def __init__(self, answer: asyncio.Future[Message]) -> None:
        self._answer = answer

    def submit(self, request: Message, version: int) -> Answer:
        return self._answer


def decided(first: asyncio.Future[Any]) -> Any:
    forwarding = Forwarding(SlowQuorum(first), node_id=1, clock=SystemClock())
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


COMBINATORS = pytest.mark.parametrize(
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


def lost_errors(
    made: Callable[[asyncio.Future[Any]], asyncio.Future[Any]],
    end: Callable[[asyncio.Future[Any], asyncio.Future[Any]], object],
) -> tuple[list[BaseException], asyncio.Future[Any]]:
    """Return the errors that asyncio reports as lost after `end`, and the answer."""
    lost: list[BaseException] = []

    async def main() -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: lost.append(context["exception"]))
        first: asyncio.Future[Any] = loop.create_future()
        answer = made(first)
        await some_turns()
        end(first, answer)
        async with asyncio.timeout(60):
            await asyncio.wait([first, answer])
        await some_turns()
        return answer

    answer = asyncio.run(main())
    gc.collect()
    return lost, answer


@COMBINATORS
@pytest.mark.parametrize("error", [ConnectionLost("gone"), ZeroDivisionError("a mistake")])
def test_only_an_unexpected_error_of_an_abandoned_request_is_reported(
    made: Callable[[asyncio.Future[Any]], asyncio.Future[Any]], error: Exception
) -> None:
    """A client hangs up and its request fails: asyncio reports only a bug as a lost error."""

    def end(first: asyncio.Future[Any], answer: asyncio.Future[Any]) -> None:
        answer.cancel()
        first.set_exception(error)

    lost, _ = lost_errors(made, end)
    assert lost == ([] if isinstance(error, ConnectionLost) else [error])


@COMBINATORS
def test_cancelling_the_inner_future_ends_the_answer(
    made: Callable[[asyncio.Future[Any]], asyncio.Future[Any]],
) -> None:
    """The broker stops: the wait ends, and asyncio reports nothing."""
    lost, answer = lost_errors(made, lambda first, _: first.cancel())
    if made is decided:
        assert answer.result().error_code == ErrorCode.KAFKA_STORAGE_ERROR
    else:
        assert answer.cancelled()
    assert lost == []


def done(result: object) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future
