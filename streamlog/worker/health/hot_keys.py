"""Hot keys: which keys of the app's inputs come most often, counted for as long as a request asks.

Off, a poll costs one comparison. On, the keys of every polled batch go through `HeavyHitters`, one
per topic, so memory is bounded whatever the number of keys. The worker sees the partitions that it
reads: to see all of a topic, ask each worker.

Not done here: the HTTP query (`web/worker_server`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.metrics.heavy_hitters import HeavyHitters, Hitter
from streamlog.record import TopicPartition

COUNTERS = 1_000
"""Per topic: a key with more than a thousandth of the records is certain to be found."""


class HotKeys:
    """Counts the keys of polled records while at least one listener is there."""

    def __init__(self) -> None:
        self._listeners: list[dict[str, HeavyHitters[bytes | None]]] = []

    @property
    def is_on(self) -> bool:
        """Whether keys are counted at present."""
        return bool(self._listeners)

    @property
    def listeners(self) -> int:
        """The number of calls of `count` under way."""
        return len(self._listeners)

    def look(self, part: TopicPartition, keys: Sequence[bytes | None]) -> None:
        """Count the keys of records that were polled."""
        for found in self._listeners:
            hitters = found.get(part.topic)
            if hitters is None:
                hitters = found[part.topic] = HeavyHitters(COUNTERS)
            hitters.add(keys)

    async def count(
        self, duration_s: float, top: int
    ) -> dict[str, tuple[int, list[Hitter[bytes | None]]]]:
        """Count for `duration_s` seconds.

        Returns:
            Topic to the number of its records and the `top` most frequent keys.
        """
        found: dict[str, HeavyHitters[bytes | None]] = {}
        self._listeners.append(found)
        try:
            await asyncio.sleep(duration_s)
        finally:
            # By identity: two listeners that have seen nothing are equal.
            self._listeners = [each for each in self._listeners if each is not found]
        return {
            topic: (hitters.total, hitters.top(top)) for topic, hitters in sorted(found.items())
        }
