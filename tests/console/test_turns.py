"""Turns: whatever many pages compute at once, others on the event loop come in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from streamlog.clock import ManualClock, SystemClock
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


def test_pages_that_wait_for_one_look_are_not_made_in_one_go() -> None:
    async def main() -> None:
        turns, rounds, begun = Turns(SystemClock()), [0], list[int]()

        async def count() -> None:
            while True:
                rounds[0] += 1
                await asyncio.sleep(0)

        async def page() -> None:
            await turns.begin_page(is_update=True)
            begun.append(rounds[0])

        counting = asyncio.create_task(count())
        await asyncio.gather(*(page() for _ in range(8)))
        counting.cancel()
        # The loop went round between any two of them.
        assert len({*begun}) == 8

    asyncio.run(main())
