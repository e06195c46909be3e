"""Awaiting the call of a task: its value, its error, or that it has taken too long, as a result.

Rule of the file: nothing is raised but the cancellation of who awaits. An error is for the task
to raise, which knows the record.
"""

from __future__ import annotations

import asyncio

from streamlog.errors import RequestTimedOut
from streamlog.processing.column_batch import exit_failure
from streamlog.processing.outbox import CallResult, TaskCall


async def await_call(call: TaskCall) -> CallResult:
    """Await a call; never raises but when it is cancelled from outside."""
    try:
        await asyncio.sleep(call.delay_ms / 1000)
        async with asyncio.timeout(
            None if call.timeout_ms is None else call.timeout_ms / 1000
        ) as limit:
            return CallResult(call.node, call.number, await call.run())
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return CallResult(call.node, call.number, error=RuntimeError(f"it was cancelled: {error}"))
    except Exception as error:  # noqa: BLE001 - the user's code: the task deals with it
        if limit.expired():
            late = RequestTimedOut(f"no result within {call.timeout_ms} ms")
            late.__cause__ = error
            return CallResult(call.node, call.number, error=late)
        return CallResult(call.node, call.number, error=error)
    except (SystemExit, KeyboardInterrupt) as stop:
        return CallResult(call.node, call.number, error=exit_failure(stop))
