"""Watched sinks: a real sink between kills and broken connections, for `sink_check`.

Rule: what happens to a call is decided before it and behind it, never inside: the connector runs
as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from streamlog.connect.connector_errors import Retriable
from streamlog.connect.sink import Batch, Sink, SinkContext, SinkTask
from streamlog.connect_tasks.sink_task import config_of
from streamlog.random_source import Random
from streamlog.record import TopicPartition
from streamlog.testing.connector_lives import Killed

KILL_RATE = 0.02
"""How likely a kill is at each of the points where one may come."""
BREAK_RATE = 0.03
"""How likely a call fails for a while."""
HALF = 0.5

AnySink = Sink[Any, Any]


class StopPoint:
    """A point where a task waits until it is resumed, if that is wanted."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.reached = asyncio.Event()
        self.resumed = asyncio.Event()

    async def pass_through(self) -> None:
        """Wait here, if that is wanted."""
        if self.is_wanted:
            self.reached.set()
            await self.resumed.wait()


@dataclass(slots=True)
class CallPlan:
    """What happens to the calls of one task."""

    random: Random
    may_die: bool
    may_break: bool
    transient: tuple[type[BaseException], ...]
    stop_in_commit: StopPoint = field(default_factory=StopPoint)

    def maybe_die(self) -> None:
        """Raise `Killed` now and then."""
        if self.may_die and self.random.random() < KILL_RATE:
            raise Killed

    def maybe_break(self, call: str) -> None:
        """Fail a call now and then, as a connection would, or as the target may ask for."""
        if self.may_break and self.random.random() < BREAK_RATE:
            # Any transient error of the connector's; `OSError` by default.
            kinds = [each for each in self.transient if issubclass(each, Exception)]
            if kinds and self.random.random() < HALF:
                raise kinds[0](f"broken in {call}, by check_sink")
            raise Retriable(f"not now, in {call}, by check_sink")


class _WatchedTask(SinkTask[Any, Any]):
    """A task of the sink, between kills and broken connections."""

    def __init__(self, inner: SinkTask[Any, Any], plan: CallPlan) -> None:
        self.inner, self._plan = inner, plan

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._plan.maybe_die()
        found = await self.inner.recover(partitions)
        self._plan.maybe_die()
        return found

    async def begin(self) -> None:
        self._plan.maybe_die()
        self._plan.maybe_break("begin")
        await self.inner.begin()
        self._plan.maybe_die()

    async def write(self, batch: Batch[Any, Any]) -> None:
        self._plan.maybe_die()
        self._plan.maybe_break("write")
        await self.inner.write(batch)
        self._plan.maybe_die()
        self._plan.maybe_break("write, behind it")

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._plan.maybe_die()
        self._plan.maybe_break("commit")
        await self._plan.stop_in_commit.pass_through()
        await self.inner.commit(offsets)
        self._plan.maybe_die()
        # Its answer is lost: the target has committed, and the task does not know.
        self._plan.maybe_break("commit, behind it")

    async def abort(self) -> None:
        self._plan.maybe_die()
        await self.inner.abort()
        # It "must work after any error, and twice".
        await self.inner.abort()
        self._plan.maybe_die()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        await self.inner.revoked(partitions)


class WatchedSink:
    """The sink as a runner sees it, which opens watched tasks."""

    __struct_fields__ = ("settings",)

    def __init__(self, inner: AnySink, plan: CallPlan) -> None:
        self._inner, self._plan = inner, plan
        # It is part of a range in the log, which a later life may continue under this name alone.
        self.settings = config_of(inner)
        self.effect, self.streams = inner.effect, inner.streams
        self.transient, self.flush = inner.transient, inner.flush
        self.incidental = inner.incidental

    def open(self, context: SinkContext) -> SinkTask[Any, Any]:
        """Return a watched task, not connected yet."""
        return _WatchedTask(self._inner.open(context), self._plan)
