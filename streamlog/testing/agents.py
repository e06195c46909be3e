"""The agents of a driver, on a loop of their own, in real time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from streamlog.dsl.agent import Agent
from streamlog.errors import ProcessingError, StreamlogError, UsageError
from streamlog.processing.columns import failed
from streamlog.record import Record
from streamlog.testing.memory_topic import MemoryTopic

AGENT_WAIT_S = 10
"""Real time an agent may take for the records it has been given."""


class _Feed:
    """The records of one agent, as an async iterator."""

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self.agent = agent
        self.idle = asyncio.Event()
        self.current: Record[Any, Any] | None = None
        self._records: deque[Record[Any, Any]] = deque()
        self._arrived = asyncio.Event()
        self.is_closed = False

    def put(self, records: Sequence[Record[Any, Any]]) -> None:
        """More records."""
        self.idle.clear()
        self._records.extend(records)
        self._arrived.set()

    def close(self) -> None:
        """No more records: the loop over them ends."""
        self.is_closed = True
        self._arrived.set()

    def __aiter__(self) -> AsyncIterator[Record[Any, Any]]:
        return self

    async def __anext__(self) -> Record[Any, Any]:
        self.current = None
        while not self._records:
            if self.is_closed:
                raise StopAsyncIteration
            self._arrived.clear()
            self.idle.set()
            await self._arrived.wait()
        self.current = self._records.popleft()
        return self.current


class Agents:
    """The agents of a driver, on a loop of their own."""

    def __init__(self, agents: Sequence[Agent[Any, Any]], topics: dict[str, MemoryTopic]) -> None:
        self._agents = agents
        self._topics = topics
        self._fed: dict[str, int] = {}
        self._feeds: list[_Feed] = []
        self._runner: asyncio.Runner | None = None
        self._failures: list[StreamlogError] = []
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen; records that were handled before do not come again."""
        self._feeds = [_Feed(agent) for agent in self._agents]
        if self._feeds:
            # Owned by this object: `close` awaits it.
            self._work = self._loop().get_loop().create_task(self._keep())

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run the user's coroutine to its end."""
        self._loop().run(work)

    def _loop(self) -> asyncio.Runner:
        """A loop, from when one is needed: most tests run without."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner

    def handle(self) -> bool:
        """Let the agents handle what is new; whether there was anything."""
        moved = False
        for feed in self._feeds:
            name = feed.agent.topic.name
            arrivals = self._topics[name].arrivals
            fed = self._fed.get(feed.agent.name, 0)
            if fed < len(arrivals):
                self._fed[feed.agent.name] = len(arrivals)
                feed.put([feed.agent.topic.decoded(record, at) for at, record in arrivals[fed:]])
                moved = True
        if moved:
            self.run(self._until_idle())
        return moved

    def close(self) -> None:
        """End the streams of the agents, and wait for the functions to return."""
        if self._runner is None:
            return
        for feed in self._feeds:
            feed.close()
        runner, self._runner = self._runner, None
        work, self._work = self._work, None
        try:
            if work is not None:
                runner.run(_ended(work))
        finally:
            runner.close()

    async def _keep(self) -> None:
        async with asyncio.TaskGroup() as group:
            for feed in self._feeds:
                group.create_task(self._run_agent(feed), name=f"agent {feed.agent.name}")

    async def _run_agent(self, feed: _Feed) -> None:
        name = feed.agent.name
        try:
            await feed.agent.run(feed)
        except Exception as error:  # noqa: BLE001 - the user's code: raised again by the driver
            record = feed.current
            if record is None:
                self._failures.append(ProcessingError(f"agent {name!r} failed: {error!r}"))
            else:
                at = (record.topic, record.partition, record.offset)
                self._failures.append(failed(name, *at, error))
        else:
            if not feed.is_closed:
                text = f"agent {name!r} returned: it must go on iterating over its stream"
                self._failures.append(ProcessingError(text, node=name))
        feed.idle.set()

    async def _until_idle(self) -> None:
        try:
            async with asyncio.timeout(AGENT_WAIT_S):
                for feed in self._feeds:
                    await feed.idle.wait()
        except TimeoutError:
            busy = [feed.agent.name for feed in self._feeds if not feed.idle.is_set()]
            raise UsageError(
                f"agents {busy} have not asked for their next record within {AGENT_WAIT_S} s of "
                "real time: do they wait for something that can't happen in a test?"
            ) from None
        if self._failures:
            raise self._failures[0]


async def _ended(work: asyncio.Task[None]) -> None:
    """Wait for the agents to return; those that do not are cancelled."""
    await asyncio.wait([work], timeout=AGENT_WAIT_S)
    work.cancel()
    await asyncio.wait([work])
