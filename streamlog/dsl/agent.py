"""Agent: an async function over the records of a topic, for work with the outside world.

The function iterates over a stream. When it asks for the next record, the one before is handled,
and its offset may be committed. Values that it yields go to its sink. Rule of the file: this module
declares agents, and the package `agents` runs them; an agent awaits its feed and creates no tasks.
Records arrive in slices, ahead of the loop, so that the loop costs little. The guarantee that a log
always produces equal results does not cover effects of agents.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Generic, Protocol, TypeVar

from streamlog.dsl.app_runtime import AppRuntime
from streamlog.dsl.stream import Stream
from streamlog.dsl.stream_position import StreamPosition
from streamlog.dsl.table import Table
from streamlog.dsl.topic import Sent, Topic
from streamlog.dsl.value_types import Shape, return_shape
from streamlog.durations import Dur, duration_ms
from streamlog.errors import RequestTimedOut, TopologyError, UsageError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.stream_nodes import ORDERS, Order
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.record import Record
from streamlog.serdes.erased_types import (
    AnyRecord,
    AnySerde,
    UserFunction,
    UserKey,
    UserObject,
    UserValue,
)

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""


class AgentSlice(Protocol):
    """Records that are decoded ahead; the stream counts those that it has delivered in `given`."""

    given: int
    values: list[UserValue]

    def keys(self) -> Sequence[UserKey]:
        """Return the keys, up to the first that can't be read."""

    def record(self, row: int) -> AnyRecord:
        """Return the record of this row with its coordinates."""


class AgentFeed(Protocol):
    """Port: the source of the records that a stream inside an agent iterates over."""

    def ahead(self) -> Awaitable[AgentSlice | None]:
        """Return a slice with at least one undelivered record; all delivered ones are handled.

        None means that the stream has ended.
        """

    def gather(self, n: int, within_ms: int) -> Awaitable[list[AnyRecord] | None]:
        """Return the next records as a list; all records delivered before are handled."""


class AgentStream(Stream[K, V]):
    """The stream inside an agent: an async iterator over the records of the agent's topic."""

    def __init__(self, feed: AgentFeed) -> None:
        self._feed = feed

    async def __aiter__(self) -> AsyncIterator[V]:
        """Iterate over the values."""
        while (ahead := await self._feed.ahead()) is not None:
            # A rebalance shortens the list, which ends the loop over it.
            for value in islice(ahead.values, ahead.given, None):
                # Before the yield: while the function handles the value, its record is the current
                # one.
                ahead.given += 1
                yield value

    async def items(self) -> AsyncIterator[tuple[K, V]]:
        """Iterate over keys and values."""
        while (ahead := await self._feed.ahead()) is not None:
            first = ahead.given
            # A key that can't be deserialized shortens the slice, so the values are read after it.
            keys = ahead.keys()
            for item in zip(
                islice(keys, first, None), islice(ahead.values, first, None), strict=False
            ):
                ahead.given += 1
                yield item

    async def records(self) -> AsyncIterator[Record[K, V]]:
        """Iterate over the records with their coordinates."""
        while (ahead := await self._feed.ahead()) is not None:
            # Called for its effect: a key that can't be deserialized shortens the slice. The length
            # is read again for each record, because a rebalance shortens it too.
            ahead.keys()
            while ahead.given < len(ahead.values):
                record = ahead.record(ahead.given)
                ahead.given += 1
                yield record

    async def take(self, n: int, within: Dur) -> AsyncIterator[list[Record[K, V]]]:
        """Iterate over lists of `n` records, or fewer if `within` has passed since the first.

        Raises:
            UsageError: `n` is below 1.
        """
        within_ms = duration_ms(within)
        if n < 1:
            raise UsageError(f"take needs n=1 or more, not {n}")
        while (records := await self._feed.gather(n, within_ms)) is not None:
            yield records

    @property
    def _position(self) -> StreamPosition:
        raise TopologyError(
            "the stream inside an agent has no operators such as map, filter and to: iterate over "
            "it with `async for`, or use app.stream(topic)"
        )


class Agent(Generic[K, V]):
    """A function under `@app.agent(topic)` and its settings."""

    def __init__(
        self,
        name: str,
        topic: Topic[K, V],
        fn: Callable[[Stream[K, V]], UserObject],
        *,
        concurrency: int = 1,
        ordered: Order = "key",
        sink: Topic[UserKey, UserValue] | None = None,
        on_error: ErrorPolicy = on_error.FAIL,
        tables: Sequence[Table[UserKey, UserValue]] | None = None,
    ) -> None:
        """Check the function and its settings.

        Raises:
            TopologyError: the function is not `async def`, or a setting is out of range.
        """
        self.name = check_name("an agent", name)
        self.yields = inspect.isasyncgenfunction(fn)
        """Whether the function yields results, which go to the sink."""
        if not self.yields and not inspect.iscoroutinefunction(fn):
            raise TopologyError(
                f"agent {name!r} must be `async def` and iterate over its stream with `async for`"
            )
        if sink is not None and not self.yields:
            raise TopologyError(
                f"agent {name!r} has a sink= but does not `yield`, so the sink would stay empty: "
                "yield the results, or leave sink= out"
            )
        if concurrency < 1:
            raise TopologyError(f"agent {name!r}: concurrency must be 1 or more, not {concurrency}")
        if ordered not in ORDERS:
            raise TopologyError(
                f"agent {name!r}: ordered must be 'key', 'partition' or 'none', not {ordered!r}"
            )
        self.topic = topic
        self.topics: tuple[Topic[K, V], ...] = (topic,)
        """The topics that it reads: one, or those that match the pattern of `topic`."""
        self.fn = fn
        self.concurrency = concurrency
        """The number of calls of the function that run at one time in each worker."""
        self.ordered = ordered
        self.sink = sink
        self.on_error = on_error
        self.tables = tables
        """The tables whose rows the agent reads and writes; None derives them from its code."""
        # With a sink, an answer has the bytes of the record in the sink.
        self.answers: AnySerde = _yield_shape(fn).serde if sink is None else sink.spec.value
        """The serde of yielded values in answers to `ask`."""

    def reading(self, topics: Sequence[Topic[K, V]]) -> Agent[K, V]:
        """Return the agent with these topics in place of its pattern."""
        other = copy(self)
        other.topics = (*topics,)
        return other

    def call(self, feed: AgentFeed) -> UserObject:
        """Call the function with a stream over this feed."""
        return self.fn(AgentStream(feed))


def with_found_topics(
    agents: Iterable[Agent[UserKey, UserValue]],
    matched: Mapping[str, Sequence[str]],
    found: Mapping[str, TopicSpec],
) -> list[Agent[UserKey, UserValue]]:
    """Return agents with the topics that their patterns stand for.

    Args:
        agents: the agents, with patterns or without.
        matched: the names of the topics by the name of the pattern.
        found: those topics by their names.
    """
    return [
        agent.reading([agent.topic.at(found[name]) for name in matched[agent.topic.name]])
        if agent.topic.name in matched
        else agent
        for agent in agents
    ]


class AgentRef(Generic[K, V]):
    """The reference to an agent that `@app.agent(topic)` returns; it sends records to the agent."""

    def __init__(self, agent: Agent[K, V], runtime: AppRuntime) -> None:
        self.agent = agent
        """The function and its settings."""
        self._runtime = runtime

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.agent.name

    async def cast(self, value: V, *, key: K | None = None) -> Sent:
        """Send a record to the agent's topic and wait until the log has acknowledged it.

        Args:
            value: the value.
            key: the key, which decides the partition.

        Returns:
            The coordinates of the record.

        Raises:
            UsageError: the app does not run, neither in a worker nor in a test.
            SerdeError: key or value does not have the topic's type.
        """
        return await self.agent.topic.send(value, key=key)

    async def ask(self, value: V, *, key: K | None = None, timeout: Dur = "30s") -> UserValue:  # noqa: ASYNC109 - the public names; an answer is what the function yields
        """Send a record to the agent's topic and wait for the answer, wherever the agent runs.

        An agent that asks itself waits until another of its calls (`concurrency`) is free, and
        times out if there is none.

        Args:
            value: the value.
            key: the key, which decides the partition.
            timeout: how long to wait for the answer.

        Returns:
            The first value that the agent yields for the record; None if it yields nothing.

        Raises:
            UsageError: the app does not run, neither in a worker nor in a test, or the agent never
                yields.
            SerdeError: key or value does not have the topic's type.
            RequestTimedOut: the answer did not arrive in time; the agent may still handle the
                record.
        """
        agent = self.agent
        if not agent.yields:
            raise UsageError(
                f"agent {agent.name!r} never yields, so it can't answer: use cast, or yield the "
                "answer in the agent"
            )
        if agent.topic.spec.pattern is not None:
            raise UsageError(
                f"agent {agent.name!r} reads the topics that match {agent.topic.spec.pattern}, and "
                f"a question goes to one: send to {agent.topic.name}.topic('NAME') instead"
            )
        requests = self._runtime.requests
        if requests is None:
            raise UsageError(
                f"the app is not running, so agent {agent.name!r} can't answer: ask from an agent, "
                "timer or crontab of a running worker, or in `with app.test()`"
            )
        topic, timeout_ms = agent.topic, duration_ms(timeout)
        raw_key, raw_value = topic.encoded(key, value)
        try:
            data = await requests.ask(topic.name, raw_value, key=raw_key, timeout_ms=timeout_ms)
        except RequestTimedOut as error:
            raise RequestTimedOut(f"agent {agent.name!r} did not answer: {error}") from error
        return None if data is None else agent.answers.loads(data)


def _yield_shape(fn: UserFunction) -> Shape:
    """Return the type that an async generator is annotated to yield."""
    return return_shape(fn, of=lambda declared: next(iter(typing.get_args(declared)), None))
