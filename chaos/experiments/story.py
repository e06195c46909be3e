"""Story: what happens in an experiment, told as it happens, with what must hold."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from chaos.cluster import Cluster, running
from streamlog.clock import SystemClock

Experiment: TypeAlias = Callable[[Cluster, "Story"], Awaitable[None]]


class Story:
    """Lines with the time since the begin; `must` tells what had to hold, and whether it does."""

    def __init__(self) -> None:
        self.broken = 0
        self._clock = SystemClock()
        self._began_ms = self._clock.now_ms()

    def tell(self, line: str) -> None:
        """What has happened."""
        print(f"{(self._clock.now_ms() - self._began_ms) / 1000:6.2f} s  {line}", flush=True)

    def must(self, holds: bool, what: str) -> None:  # noqa: FBT001 - it reads as a sentence
        """What had to hold."""
        self.broken += not holds
        self.tell(f"{'holds' if holds else 'DOES NOT HOLD'}: {what}")


def perform(experiment: Experiment) -> int:
    """Start three brokers, do it, and return 1 if anything did not hold."""
    logging.basicConfig(level=logging.ERROR)

    async def main(directory: Path) -> int:
        story = Story()
        async with running(directory) as cluster:
            await experiment(cluster, story)
        return int(bool(story.broken))

    print(f"# {(sys.modules['__main__'].__doc__ or '').splitlines()[0]}")
    with tempfile.TemporaryDirectory(prefix="streamlog-experiment-") as directory:
        return asyncio.run(main(Path(directory)))
