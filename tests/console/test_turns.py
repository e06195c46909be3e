"""Turns: whatever many pages compute at once, others on the event loop come in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from streamlog.clock import ManualClock
from streamlog.console.turns import SLICE_MS, Turns


def test_between_two_pieces_of_work_others_have_their_turn() -> None:
    clock, ticks, seen = ManualClock(), [0], list[int]()

    def work() -> Iterator[int]:
        for number in range(4):
            clock.advance(SLICE_MS)
            seen.append(ticks[0])
            yield number

    async def tick() -> None:
        while True:
            ticks[0] += 1
            await asyncio.sleep(0)

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        turns = Turns(clock)
        results = await asyncio.gather(*(turns.collect(work()) for _ in range(5)))
        assert results == [[0, 1, 2, 3]] * 5
        ticking.cancel()

    asyncio.run(main())
    # No two of the twenty pieces were done in one go, of one page or of two.
    assert len(set(seen)) == 20


def test_a_deadline_ends_work_between_pieces() -> None:
    clock = ManualClock()

    def work() -> Iterator[int]:
        for number in range(100):
            clock.advance(SLICE_MS // 2)
            yield number

    found = asyncio.run(Turns(clock).collect(work(), clock.now_ms() + 2 * SLICE_MS))
    assert found == [0, 1, 2, 3]
