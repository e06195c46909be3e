"""Pattern watch: which topics of the log match the patterns of an app, now and later.

A worker looks before it joins the group, then every `metadata.max.age.ms` (5 minutes by default),
after each rebalance, and when the log says that a topic is gone. If other topics match than before,
it commits, leaves the group, and begins again with these. Its leaving is a rebalance, after which
the other workers look too, so all of them have the same topics within seconds.

Rule: a worker never runs with topics that it has not found itself, and a topic that is gone is
never created. Not done here: putting the topics into the topology (`blueprints/topic_patterns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.worker.program import Program

logger = repeated.logger(__name__)

MAX_AGE_MS = 300_000
"""The default of `metadata.max.age.ms`."""
LOOK_MS = 500
"""How soon after a rebalance a worker looks, and after a request to stop it ends."""
NONE_LOOK_MS = 1_000
"""How often a worker looks while no topic matches a pattern."""


class PatternWatch:
    """Looks for the topics that match the patterns of one program."""

    def __init__(self, program: Program, log: Log, clock: Clock) -> None:
        self.is_over = False
        """Whether other topics match than those that `resolve` has found."""
        self.program = program
        """The program; after `resolve`, with the topics that match."""
        self._program = program
        self._log = log
        self._clock = clock
        self._matched: Mapping[str, Sequence[str]] = {}

    async def resolve(self, stop: asyncio.Event) -> bool:
        """Put the topics that match into the program; returns whether `stop` was not set before.

        Waits while a pattern matches no topic.

        Raises:
            TopologyError: the topics that match contradict each other.
        """
        if not self._program.patterns:
            return True
        while not stop.is_set():
            self._matched = await self._look()
            empty = [name for name, topics in self._matched.items() if not topics]
            if not empty:
                self.program = self._program.resolved(self._matched)
                return True
            for name in empty:
                logger.warning(
                    "no topic matches %s (%r); this worker waits until one does",
                    self._program.patterns[name].pattern,
                    name,
                )
            await _wait(stop, NONE_LOOK_MS)
        return False

    async def has_changed(self) -> bool:
        """Look, and return whether other topics match than before."""
        if not self._program.patterns or self.is_over:
            return self.is_over
        now = await self._look()
        for name in now:
            before, after = {*self._matched[name]}, {*now[name]}
            if before != after:
                self.is_over = True
                logger.info(
                    "%r: topics that match %s: added %s; deleted %s. This worker begins again with "
                    "them",
                    name,
                    self._program.patterns[name].pattern,
                    ", ".join(sorted(after - before)) or "none",
                    ", ".join(sorted(before - after)) or "none",
                )
        return self.is_over

    async def follow(self, stop: asyncio.Event, rounds: Callable[[], int]) -> None:
        """Look again and again until other topics match, or `stop` is set.

        Args:
            stop: set when the worker stops.
            rounds: returns the number of rebalances that this worker has seen.
        """
        if not self._program.patterns:
            return
        age_ms = self._program.clients.consumer.get("metadata_max_age_ms", MAX_AGE_MS)
        seen, looked_ms = rounds(), self._clock.now_ms()
        while not stop.is_set() and not self.is_over:
            await _wait(stop, min(LOOK_MS, age_ms))
            now_ms = self._clock.now_ms()
            if rounds() == seen and now_ms - looked_ms < age_ms:
                continue
            seen, looked_ms = rounds(), now_ms
            try:
                await self.has_changed()
            except StreamlogError as error:
                # The worker itself ends if the log stays away.
                logger.warning("topics that match patterns can't be looked up: %s", error)

    async def _look(self) -> dict[str, list[str]]:
        topics = await self._log.admin().list_topics()
        return self._program.match(topic.name for topic in topics)


async def _wait(stop: asyncio.Event, ms: int) -> None:
    try:
        async with asyncio.timeout(ms / 1000):
            await stop.wait()
    except TimeoutError:
        return
