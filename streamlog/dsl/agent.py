"""Agent: an async function over the records of a topic.

For work that talks to the outside world. The function gets a stream to iterate over; asking
for the next record says that the one before is done, and its offset may be committed. Rule
of the file: an agent is declared here and run elsewhere; it awaits what it is given and
creates no tasks. Records of one partition come in order. What an agent does is outside of
the promise that the same log gives the same results.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from streamlog.dsl.place import Place
from streamlog.dsl.stream import Stream
from streamlog.dsl.topic import Sent, Topic
from streamlog.errors import TopologyError
from streamlog.record import Record
from streamlog.topology import check_name

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""


class AgentStream(Stream[K, V]):
    """The records of an agent's topic, to be iterated over."""

    def __init__(self, records: AsyncIterator[Record[K, V]]) -> None:
        self._records = records

    async def __aiter__(self) -> AsyncIterator[V]:
        """The values."""
        async for record in self._records:
            yield record.value

    async def items(self) -> AsyncIterator[tuple[K, V]]:
        """Keys and values."""
        async for record in self._records:
            yield record.key, record.value

    def records(self) -> AsyncIterator[Record[K, V]]:
        """The records with their coordinates."""
        return self._records

    @property
    def _place(self) -> Place:
        raise TopologyError(
            "operators such as map, filter and to belong to app.stream(topic), not to the "
            "stream inside an agent: iterate over it with `async for`"
        )


class Agent(Generic[K, V]):
    """A function under `@app.agent(topic)`."""

    def __init__(
        self, name: str, topic: Topic[K, V], fn: Callable[[Stream[K, V]], Awaitable[None]]
    ) -> None:
        """Checks that the function can be run.

        Raises:
            TopologyError: it is not `async def`, or it yields.
        """
        if not inspect.iscoroutinefunction(fn):
            raise TopologyError(
                f"agent {name!r} must be `async def` and iterate over its stream with `async "
                "for`, without `yield`: send results with `await topic.send(...)`"
            )
        self.name = check_name("an agent", name)
        self.topic = topic
        self._fn = fn

    async def run(self, records: AsyncIterator[Record[K, V]]) -> None:
        """Call the function with these records; returns when it does."""
        await self._fn(AgentStream(records))

    async def cast(self, value: V, *, key: K | None = None) -> Sent:
        """Send a record to the agent's topic."""
        return await self.topic.send(value, key=key)
