"""Restore progress: what a worker says while it reads changelogs and global tables at its start.

On a terminal it is a bar; elsewhere a line in the log now and then, the first one after
`FIRST_MS`. Rule of the module: `RestoreProgress` decides without I/O, `shown_restores` shows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from streamlog.cli.output.progress_bar import progress_bar
from streamlog.clock import Clock

LOOK_S: Final = 0.5
FIRST_MS: Final = 2_000
"""A shorter restore ends before its words are read."""
LINE_MS: Final = 10_000
RATE_MS: Final = 15_000
"""The time over which the rate is measured: reads come in batches."""
NAMED: Final = 3
"""Partitions that the words name; of the others, they have the number."""

logger = logging.getLogger(__name__)
"""Not a repeated one: each line says something new."""


class RestoreProgress:
    """How far one restore is, by looks at what is left."""

    def __init__(self, now_ms: int) -> None:
        """Begin at a time."""
        self._due_ms = now_ms + FIRST_MS
        self._most: dict[str, int] = {}
        """Partition or topic to the most that was left of it."""
        self._left: Mapping[str, int] = {}
        self._looks = deque[tuple[int, int]]()
        """Times, and how many records were read by then."""

    def look(self, left: Mapping[str, int], now_ms: int) -> None:
        """Take in how many records are left; what is missing has been read."""
        # A changelog may grow meanwhile, and other tasks may come: then there is more to do.
        for name, records in left.items():
            self._most[name] = max(records, self._most.get(name, 0))
        self._left = left
        self._looks.append((now_ms, self.done))
        while len(self._looks) > 2 and self._looks[1][0] <= now_ms - RATE_MS:  # noqa: PLR2004 - the two of a rate
            self._looks.popleft()

    @property
    def total(self) -> int:
        """All records of this restore."""
        return sum(self._most.values())

    @property
    def done(self) -> int:
        """The records that were read."""
        return self.total - sum(self._left.values())

    @property
    def rate(self) -> float:
        """Records per second; 0 if it is not known."""
        if not self._looks:
            return 0.0
        (began_ms, before), (now_ms, now) = self._looks[0], self._looks[-1]
        return 1_000 * max(now - before, 0) / (now_ms - began_ms) if now_ms > began_ms else 0.0

    @property
    def what(self) -> str:
        """What is being restored, as the first words of a bar."""
        return f"restoring {self._names()}{self._rate()}"

    @property
    def words(self) -> str:
        """How far it is, in one line."""
        left = sum(self._left.values())
        time_left = f", about {_span(left / self.rate)} left" if self.rate else ""
        return (
            f"restoring {self._names()}: {left:,} of {self.total:,} records left"
            f"{self._rate()}{time_left}"
        )

    def is_due(self, now_ms: int) -> bool:
        """Return whether a line is due, and count it as said."""
        if now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + LINE_MS
        return True

    def _names(self) -> str:
        # The largest first: they decide how long it takes.
        names = sorted(self._left, key=lambda name: (-self._left[name], name))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return ", ".join(names[:NAMED]) + more

    def _rate(self) -> str:
        return f", {self.rate:,.0f} records/s" if self.rate else ""


def _span(seconds: float) -> str:
    for unit_s, unit in ((3_600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} s"


@asynccontextmanager
async def shown_restores(
    left: Callable[[], Mapping[str, int]], clock: Clock
) -> AsyncIterator[None]:
    """Show each restore in the block.

    Args:
        left: returns the records left, by partition or topic, of what is being restored.
        clock: the time.
    """
    async with asyncio.TaskGroup() as tasks:
        showing = tasks.create_task(_show(left, clock), name="restore progress")
        try:
            yield
        finally:
            showing.cancel()


async def _show(left: Callable[[], Mapping[str, int]], clock: Clock) -> None:
    # Until the worker ends: a rebalance may bring tasks to restore at any time.
    while True:
        if left():
            await _show_one(left, clock)
        await asyncio.sleep(LOOK_S)


async def _show_one(left: Callable[[], Mapping[str, int]], clock: Clock) -> None:
    progress = RestoreProgress(clock.now_ms())
    with progress_bar("restoring", unit="records") as bar:
        while found := left():
            now_ms = clock.now_ms()
            progress.look(found, now_ms)
            bar.what, bar.done, bar.total = progress.what, progress.done, progress.total
            if not bar.is_shown and progress.is_due(now_ms):
                logger.info("%s", progress.words)
            await asyncio.sleep(LOOK_S)
