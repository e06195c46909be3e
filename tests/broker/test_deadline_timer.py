"""An alarm rings when it is due, but not before those are heard who spoke while the loop stood."""

from __future__ import annotations

import asyncio
from time import sleep

from streamlog.broker.deadline_timer import GRACE_MS, LATE_MS, DeadlineTimer
from streamlog.clock import SystemClock

HOLD_S = (LATE_MS + 100) / 1000


def hold() -> None:
    """What computes and awaits nothing."""
    sleep(HOLD_S)


async def rung(due_in_ms: int, *, held: bool) -> list[str]:
    """What happens until it has rung, beside a message that comes as the loop goes on."""
    clock, loop, story = SystemClock(), asyncio.get_running_loop(), []
    over = asyncio.Event()

    def ring() -> None:
        story.append("ring")
        over.set()

    alarm = DeadlineTimer(clock, ring)
    alarm.by(clock.now_ms() + due_in_ms)
    if held:
        hold()
        loop.call_later(GRACE_MS / 10_000, story.append, "heartbeat")
    await over.wait()
    alarm.close()
    return story


def test_it_rings_when_it_is_due() -> None:
    assert asyncio.run(rung(20, held=False)) == ["ring"]


def test_who_was_not_heard_because_the_loop_stood_still_is_heard_first() -> None:
    assert asyncio.run(rung(20, held=True)) == ["heartbeat", "ring"]
