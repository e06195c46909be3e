"""The result of a call: its value, its error, or its time-out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from streamlog.agents.call import await_call
from streamlog.errors import RequestTimedOut
from streamlog.processing.outbox import CallResult, TaskCall


def result(fn: Callable[[], Awaitable[object]], timeout_ms: int | None = None) -> CallResult:
    return asyncio.run(await_call(TaskCall("node", 3, fn, timeout_ms)))


def test_a_call_returns_the_function_s_value() -> None:
    async def fn() -> int:
        return 7

    assert result(fn) == result(fn, 60_000) == CallResult("node", 3, 7)


def test_an_error_of_a_call_is_distinct_from_its_time_out() -> None:
    async def fails() -> None:
        raise TimeoutError("the other side")

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def gives_up() -> None:
        raise asyncio.CancelledError("enough")

    def wrong() -> Awaitable[None]:
        raise ValueError("no coroutine")

    assert str(result(fails, 60_000).error) == "the other side"
    late = result(hangs, 1).error
    assert isinstance(late, RequestTimedOut)
    assert "no result within 1 ms" in str(late)
    assert "cancelled: enough" in str(result(gives_up).error)
    assert isinstance(result(wrong).error, ValueError)


def test_an_exit_in_the_function_is_the_call_s_failure() -> None:
    async def exits() -> None:
        sys.exit(3)

    async def interrupts() -> None:
        raise KeyboardInterrupt

    for fn, error_text in ((exits, "SystemExit(3)"), (interrupts, "KeyboardInterrupt()")):
        error = result(fn).error
        assert error is not None
        assert f"{fn.__name__} (" in str(error)
        assert f"raised {error_text}" in str(error)


def test_the_awaiting_task_can_be_cancelled() -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    async def main() -> bool:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(await_call(TaskCall("node", 3, hangs)))
            await asyncio.sleep(0)
            task.cancel()
        return task.cancelled()

    assert asyncio.run(main())
