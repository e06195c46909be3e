"""Turns: work on records in small pieces, and page after page; the broker answers in between.

The console reads, filters and lays out records on the event loop of the broker. Rule of the module:
all pages together do one piece at a time, and rest for `REST_SHARE` times its length after it. So
many pages slow each other down, but not the broker.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from streamlog.clock import Clock

SLICE_MS: Final = 10
"""A piece of work; it is longer if a single record takes longer."""
REST_SHARE: Final = 2
SPACING_S: Final = 0.025
"""Between the beginnings of two pages: one takes a broker about 10 ms."""
T = TypeVar("T")


class Turns:
    """The turns of one process."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._turn = asyncio.Lock()
        self._openings, self._updates = asyncio.Lock(), asyncio.Lock()

    async def begin_page(self, *, is_update: bool = False) -> None:
        """Wait for the turn of a page: all that wait for one look would be made in one go."""
        # 1. Only beginnings wait for each other: a page that waits for the log holds up no other.
        # 2. A page that someone has just opened does not queue behind updates of open ones.
        async with self._updates if is_update else self._openings:
            await asyncio.sleep(SPACING_S)

    async def collect(self, work: Iterable[T], deadline_ms: float = math.inf) -> list[T]:
        """Return what an iterator computes; less of it once the deadline has passed."""
        found, left, is_done = list[T](), iter(work), False
        while not is_done:
            async with self._turn:
                began_ms = self.clock.now_ms()
                is_done = self._do_piece(left, found)
                # Before the turn passes on: a rest in which another page works would be none.
                await asyncio.sleep(REST_SHARE * (self.clock.now_ms() - began_ms) / 1_000)
            is_done = is_done or self.clock.now_ms() >= deadline_ms
        return found

    def _do_piece(self, left: Iterator[T], found: list[T]) -> bool:
        """Do one piece of work; returns whether it was the last."""
        ends_ms = self.clock.now_ms() + SLICE_MS
        for each in left:
            found.append(each)
            if self.clock.now_ms() >= ends_ms:
                return False
        return True
