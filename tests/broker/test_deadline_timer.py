"""DeadlineTimer fires when due, but after messages that arrived while the loop was blocked."""

from __future__ import annotations

import asyncio
from time import sleep

from streamlog.broker.deadline_timer import GRACE_MS, LATE_MS, DeadlineTimer
from streamlog.clock import SystemClock

HOLD_S = (LATE_MS + 100) / 1000


def hold() -> None:
    """Block the event loop."""
    sleep(HOLD_S)


async def order_of_events(due_in_ms: int, *, held: bool) -> list[str]:
    """Return the order of the timer and of a message that arrives when the loop resumes."""
    clock, loop, story = SystemClock(), asyncio.get_running_loop(), []
    over = asyncio.Event()

    def fire() -> None:
        story.append("fire")
        over.set()

    timer = DeadlineTimer(clock, fire)
    timer.by(clock.now_ms() + due_in_ms)
    if held:
        hold()
        loop.call_later(GRACE_MS / 10_000, story.append, "heartbeat")
    await over.wait()
    timer.close()
    return story


def test_the_timer_fires_when_it_is_due() -> None:
    assert asyncio.run(order_of_events(20, held=False)) == ["fire"]


def test_messages_from_a_blocked_loop_are_handled_before_the_timer() -> None:
    assert asyncio.run(order_of_events(20, held=True)) == ["heartbeat", "fire"]
