"""Room: what all clients of a load share: the log, the history, chance, and when to stop."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Unpack

from simulation.history import History, Place
from streamlog.client.admin import Admin
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerOptions
from streamlog.client.producer import Producer, ProducerOptions
from streamlog.record import TopicPartition

PAUSE_S = 0.5
"""After a refusal, before the next attempt."""


class Log(Protocol):
    """Where records are kept: `streamlog.Log`, or the simulation's."""

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """One more."""
        ...

    def consumer(self, **options: Unpack[ConsumerOptions]) -> Consumer:
        """One more."""
        ...

    def admin(self) -> Admin:
        """For topics."""
        ...


@dataclass(slots=True)
class Room:
    """One load."""

    log: Log
    chance: random.Random
    now_ms: Callable[[], int]
    history: History = field(default_factory=History)
    counts: Counter[str] = field(default_factory=Counter)
    """What clients have met, by name: errors, refusals, sessions."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    pace_s: float = 0.05
    """How long a client waits between two things, at most twice as long."""

    @property
    def goes_on(self) -> bool:
        """Whether clients are to go on."""
        return not self.stopping.is_set()

    async def pause(self, most_s: float | None = None) -> None:
        """A moment, by chance; none when the load stops."""
        most_s = 2 * self.pace_s if most_s is None else most_s
        try:
            async with asyncio.timeout(self.chance.uniform(0, most_s)):
                await self.stopping.wait()
        except TimeoutError:
            return

    async def after_error(self, who: str, error: Exception) -> None:
        """A client was refused something: it counts, and waits a little."""
        self.counts[f"{who}: {type(error).__name__}"] += 1
        await self.pause(PAUSE_S)


def partition_of(place: Place) -> TopicPartition:
    """As clients have it."""
    return TopicPartition(*place)
