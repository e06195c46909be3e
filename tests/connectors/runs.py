"""A runtime for tests of connectors against real files and servers: a loop, and the real clock."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, ParamSpec

from streamlog.connect import OwnLog, Read, Sink, SinkTask, Source, SourceOffset, SourcePartition
from streamlog.durations import Dur, When, duration_ms, moment, when_ms
from streamlog.record import Headers, Record

LIMIT_S = 60
P = ParamSpec("P")


def on_loop(body: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Return a test that runs `body` on an event loop."""

    @functools.wraps(body)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(body(*args, **kwargs))

    return test


class RealContext:
    """The context of a source or a sink: real time, and one real thread."""

    def __init__(self, name: str = "test", task: int = 0, own_log: OwnLog | None = None) -> None:
        self.name = name
        self.task = task
        self.own_log = own_log
        self.counts: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}
        # One, as in a worker: a connection is closed behind what still runs on it.
        self._thread = ThreadPoolExecutor(1)

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, time: Dur) -> None:
        await asyncio.sleep(duration_ms(time) / 1000)

    async def in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, functools.partial(fn, *args)
        )

    def record(
        self,
        value: Any,
        *,
        key: Any = None,
        timestamp: When | None = None,
        headers: Headers = (),
        topic: str = "",
    ) -> Record[Any, Any]:
        time = self.now() if timestamp is None else moment(when_ms(timestamp))
        return Record(key, value, time, headers, topic)

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] += by

    def measure(self, what: str, value: float) -> None:
        self.gauges[what] = value


class Life:
    """One life of a reader: what it yields, committed only when the test says so."""

    def __init__(self, reads: AsyncIterator[Read[Any, Any]], context: RealContext) -> None:
        self.context = context
        self.offset: SourceOffset | None = None
        self.records: list[Record[Any, Any]] = []
        self._reads = reads
        self._held: list[Read[Any, Any]] = []

    @property
    def values(self) -> list[Any]:
        return [record.value for record in self.records]

    async def step(self) -> Read[Any, Any]:
        """Return the next Read, not committed yet."""
        async with asyncio.timeout(LIMIT_S):
            read = await anext(self._reads)
        self._held.append(read)
        return read

    def commit(self) -> None:
        """Let everything count that was read."""
        held, self._held = self._held, []
        for read in held:
            self.records += read.records(self.context.now())
            self.offset = read.offset
            if read.committed is not None:
                read.committed()

    async def take(self, count: int) -> list[Any]:
        """Read and commit until there are `count` records; return the values."""
        self.commit()
        while len(self.records) < count:
            await self.step()
            self.commit()
        return self.values


@asynccontextmanager
async def reading(
    source: Source[Any, Any],
    offset: SourceOffset | None = None,
    part: SourcePartition | None = None,
    context: RealContext | None = None,
) -> AsyncIterator[Life]:
    """Read a part (the first by default) from an offset on."""
    source.check()
    used = context or RealContext()
    chosen = (await source.partitions(used))[0] if part is None else part
    reads: Any = source.read(chosen, offset, used)
    async with aclosing(reads):
        yield Life(reads, used)


@asynccontextmanager
async def writing(
    sink: Sink[Any, Any], context: RealContext | None = None
) -> AsyncIterator[SinkTask[Any, Any]]:
    """Open a task of a sink, connected."""
    sink.check()
    async with sink.open(context or RealContext()) as task:
        yield task
