"""Agent: an async function over the records of a topic.

For work that talks to the outside world. The function gets a stream to iterate over; asking
for the next record says that the one before is done, and its offset may be committed. What it
yields goes to its sink. Rule of the file: an agent is declared here and run elsewhere
(`agents`); it awaits what it is given and creates no tasks. Records come in ahead, by the
slice, so that the loop costs little. What an agent does is outside of the promise that the
same log gives the same results.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

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
from streamlog.nodes.topic_spec import check_name
from streamlog.record import Record
from streamlog.serdes import Serde

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""


class AgentSlice(Protocol):
    """Records that have been decoded ahead. Whoever hands one out counts it in `given`."""

    given: int
    values: list[Any]

    def keys(self) -> Sequence[Any]:
        """The keys, as far as they can be read."""

    def record(self, row: int) -> Record[Any, Any]:
        """One of them with its coordinates."""


class AgentFeed(Protocol):
    """Port: what a stream inside an agent iterates over."""

    def ahead(self) -> Awaitable[AgentSlice | None]:
        """Records that have not been given yet, at least one; all that were given are done.

        None: the stream has ended.
        """

    def gather(self, n: int, within_ms: int) -> Awaitable[list[Record[Any, Any]] | None]:
        """The next records as a list; all that were given before are done."""


class AgentStream(Stream[K, V]):
    """The records of an agent's topic, to be iterated over."""

    def __init__(self, feed: AgentFeed) -> None:
        self._feed = feed

    async def __aiter__(self) -> AsyncIterator[V]:
        """The values."""
        while (ahead := await self._feed.ahead()) is not None:
            # A list that gets shorter, as a rebalance does it, ends the loop over it.
            for value in islice(ahead.values, ahead.given, None):
                ahead.given += 1
                yield value

    async def items(self) -> AsyncIterator[tuple[K, V]]:
        """Keys and values."""
        while (ahead := await self._feed.ahead()) is not None:
            first = ahead.given
            keys = ahead.keys()
            for item in zip(
                islice(keys, first, None), islice(ahead.values, first, None), strict=False
            ):
                ahead.given += 1
                yield item

    async def records(self) -> AsyncIterator[Record[K, V]]:
        """The records with their coordinates."""
        while (ahead := await self._feed.ahead()) is not None:
            ahead.keys()
            while ahead.given < len(ahead.values):
                record = ahead.record(ahead.given)
                ahead.given += 1
                yield record

    async def take(self, n: int, within: Dur) -> AsyncIterator[list[Record[K, V]]]:
        """Lists of `n` records; fewer if they have not come `within` that time of the first."""
        within_ms = duration_ms(within)
        if n < 1:
            raise UsageError(f"take needs room for 1 record or more, not {n}")
        while (records := await self._feed.gather(n, within_ms)) is not None:
            yield records

    @property
    def _place(self) -> StreamPosition:
        raise TopologyError(
            "operators such as map, filter and to belong to app.stream(topic), not to the "
            "stream inside an agent: iterate over it with `async for`"
        )


class Agent(Generic[K, V]):
    """A function under `@app.agent(topic)`, and how it is to be run."""

    def __init__(
        self,
        name: str,
        topic: Topic[K, V],
        fn: Callable[[Stream[K, V]], Any],
        *,
        concurrency: int = 1,
        ordered: Order = "key",
        sink: Topic[Any, Any] | None = None,
        on_error: ErrorPolicy = on_error.FAIL,
        tables: Sequence[Table[Any, Any]] | None = None,
    ) -> None:
        """Checks that the function can be run.

        Raises:
            TopologyError: it is not `async def`, or a setting is out of range.
        """
        self.name = check_name("an agent", name)
        self.yields = inspect.isasyncgenfunction(fn)
        """It yields results, which go to the sink."""
        if not self.yields and not inspect.iscoroutinefunction(fn):
            raise TopologyError(
                f"agent {name!r} must be `async def` and iterate over its stream with `async for`"
            )
        if sink is not None and not self.yields:
            raise TopologyError(
                f"agent {name!r} has a sink but does not `yield`: nothing would go there"
            )
        if concurrency < 1:
            raise TopologyError(f"agent {name!r}: concurrency is 1 or more, not {concurrency}")
        if ordered not in ORDERS:
            raise TopologyError(
                f"agent {name!r}: ordered is 'key', 'partition' or 'none', not {ordered!r}"
            )
        self.topic = topic
        self.fn = fn
        self.concurrency = concurrency
        """So many calls of the function are at work in each worker."""
        self.ordered = ordered
        self.sink = sink
        self.on_error = on_error
        self.tables = tables
        """Those whose rows it works on, if that is said; else it is read from its code."""
        self.answers: Serde[Any] = _yield_shape(fn).serde if sink is None else sink.spec.value
        """How what it yields is written for those who ask."""

    def called(self, feed: AgentFeed) -> Any:  # noqa: ANN401 - a coroutine, or what yields
        """Call the function with a stream of these records."""
        return self.fn(AgentStream(feed))


class AgentRef(Generic[K, V]):
    """What `@app.agent(topic)` makes of a function: the name by which others reach the agent."""

    def __init__(self, agent: Agent[K, V], outlet: AppRuntime) -> None:
        self.agent = agent
        """How it is run."""
        self._outlet = outlet

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.agent.name

    async def cast(self, value: V, *, key: K | None = None) -> Sent:
        """Send a record to the agent's topic.

        Raises:
            UsageError: nobody runs the app: neither a worker nor a test.
            SerdeError: key or value are not of the topic's types.
        """
        return await self.agent.topic.send(value, key=key)

    async def ask(self, value: V, *, key: K | None = None, timeout: Dur = "30s") -> Any:  # noqa: ASYNC109, ANN401 - the public names; an answer is what the function yields
        """Send a record to the agent's topic and wait for the answer, wherever the agent runs.

        The answer is the first thing that the agent yields for the record, None if it yields
        nothing for it. An agent that asks itself waits for ever, unless another call is free.

        Args:
            value: as for `cast`.
            key: decides the partition.
            timeout: how long to wait.

        Raises:
            UsageError: nobody runs the app: neither a worker nor a test; or the agent never yields.
            SerdeError: key or value are not of the topic's types.
            RequestTimedOut: the answer has not come in time; the record may still be handled.
        """
        agent = self.agent
        if not agent.yields:
            raise UsageError(
                f"agent {agent.name!r} never yields, so it answers nothing: use cast, or let it "
                "yield the answer"
            )
        asker = self._outlet.asker
        if asker is None:
            raise UsageError(
                f"nobody runs the app, so agent {agent.name!r} answers nothing: ask from an "
                "agent, timer or crontab of a running worker, or in `with app.test()`"
            )
        topic, timeout_ms = agent.topic, duration_ms(timeout)
        raw_key, raw_value = topic.encoded(key, value)
        try:
            data = await asker.ask(topic.name, raw_value, key=raw_key, timeout_ms=timeout_ms)
        except RequestTimedOut as error:
            raise RequestTimedOut(f"agent {agent.name!r} was asked: {error}") from error
        return None if data is None else agent.answers.loads(data)


def _yield_shape(fn: Callable[..., Any]) -> Shape:
    """What an async generator is annotated to yield."""
    return return_shape(fn, of=lambda declared: next(iter(typing.get_args(declared)), None))
