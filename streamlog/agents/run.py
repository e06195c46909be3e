"""AgentRun: the calls of one agent's function, and the records that they get.

`concurrency` calls share the records of all assigned partitions. A record is handled when its call
asks for the next one; `positions` has the progress of each partition. No asyncio task per record: a
call that finds waiting records continues at once, and lets others run at the `Pace` of `feed`. Only
`take` needs time, which comes from an `AgentAlarm`.

Rule: an exception that the agent's error policy does not settle ends `run` with the record's
coordinates, and the record does not count as handled. So no record is skipped silently. Not done
here: reading and committing (`worker`, `testing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol, TypeAlias

import msgspec

from streamlog.agents.asks import Answer, no_answer
from streamlog.agents.call import AgentCall
from streamlog.agents.feed import InOrder, Shared, WaitingRecords
from streamlog.agents.offsets import AgentPosition, AgentProgress
from streamlog.agents.results import Results, Write
from streamlog.agents.rows import AgentRows, CallRows
from streamlog.agents.slices import Slice, SlicePart
from streamlog.dsl.agent import Agent
from streamlog.errors import ProcessingError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.processing.column_batch import exit_failure
from streamlog.processing.error_handling import DeadLetterRecord, NodeFailures
from streamlog.processing.outbox import Drop, Reason, SinkBatch
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.serdes.erased_types import UserKey, UserValue
from streamlog.tables.local_rows import LOCAL_TABLES

FailedRecords: TypeAlias = Sequence[tuple[SlicePart, RawRecord]]
"""Records on which the function failed, with their partitions."""


class AgentFailures:
    """Applies the error policy of an agent to the records on which it fails."""

    def __init__(
        self,
        agent: str,
        policy: ErrorPolicy,
        *,
        send: Callable[[SinkBatch], None],
        drop: Callable[[Drop], None],
    ) -> None:
        """`send` takes dead letters, `drop` counts the records that are skipped."""
        self._agent = agent
        self._send = send
        self._drop = drop
        self._failures = NodeFailures(agent, policy, "", self)
        self.waits_ms = [each.backoff_ms for each in policy.chain for _ in range(each.times)]
        """The pause before each attempt after the first, in milliseconds."""
        self._attempts: dict[tuple[str, int, int], int] = {}

    def send(self, batch: SinkBatch) -> None:
        """Write dead letters, for `NodeFailures`."""
        self._send(batch)

    def drop(self, node: str, reason: Reason, count: int = 1, *, message: str = "") -> None:
        """Count skipped records, for `NodeFailures`."""
        self._drop(Drop(node, reason, count, message=message))

    def wait_ms(self, records: FailedRecords) -> int | None:
        """Return the pause before the next attempt, in milliseconds; None after the last one."""
        position = _failure_position(records)
        attempt = self._attempts[position] = self._attempts.get(position, 0) + 1
        if attempt <= len(self.waits_ms):
            return self.waits_ms[attempt - 1]
        return None

    def give_up(self, records: FailedRecords, error: Exception) -> None:
        """Skip these records or write them as dead letters, as the policy says.

        Raises:
            ProcessingError: the policy ends with `fail`.
        """
        attempt = self._attempts.pop(_failure_position(records), 1)
        # `read_on` passes a ProcessingError, whose cause is the serde's error: the dead letter
        # reports that cause.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        for part, raw in records:
            self._failures.give_up(
                DeadLetterRecord(
                    topic=part.topic.name,
                    partition=part.partition,
                    offset=raw.offset,
                    timestamp_ms=raw.timestamp_ms,
                    key=raw.key,
                    value=raw.value,
                    headers=raw.headers,
                    node=self._agent,
                    error=cause,
                    attempt=attempt,
                )
            )


def _failure_position(records: FailedRecords) -> tuple[str, int, int]:
    part, raw = records[0]
    return part.topic.name, part.partition, raw.offset


logger = logging.getLogger(__name__)


class AgentAlarm(Protocol):
    """Port: clocks and timers of a worker or of a test driver."""

    @property
    def now_ms(self) -> int:
        """A time in milliseconds that never decreases."""

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""

    def at(self, due_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` at `due_ms` of `now_ms`; the returned function cancels that."""


class AgentRun:
    """Runs the calls of one agent's function."""

    def __init__(
        self,
        agent: Agent[UserKey, UserValue],
        write: Write,
        alarm: AgentAlarm,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        drop: Callable[[Drop], None] = lambda _: None,
        answer: Answer = no_answer,
        rows: AgentRows | None = None,
    ) -> None:
        """Prepare the calls; `run` begins them.

        Args:
            agent: the agent.
            write: passes yielded values to the log.
            alarm: clocks and timers.
            pause: waits before another attempt, in seconds.
            drop: counts records that are skipped.
            answer: sends answers to asks.
            rows: the rows of tables that agents set; None if no agent uses tables.
        """
        self.agent = agent
        self.results = Results(agent, write, has_waiting=lambda: self._feed.ready > 0)
        self.is_ending = False
        self.on_taken: Callable[[], None] = lambda: None
        """Called whenever a call gets records, so that there may be room for more."""
        self._alarm = alarm
        self._pause = pause
        self._failures: AgentFailures | None = None
        if agent.on_error.action != "fail":
            self._failures = AgentFailures(
                agent.name, agent.on_error, send=self.results.write_letter, drop=drop
            )
        self._answer = answer
        self._rows = rows
        self._parts: dict[TopicPartition, SlicePart] = {}
        self._suspended = False
        self._feed: WaitingRecords = InOrder() if agent.concurrency == 1 else Shared(agent.ordered)
        self._calls = [AgentCall(self, agent) for _ in range(agent.concurrency)]
        self._waiters: deque[_Waiter] = deque()
        self._gatherers: deque[_Waiter] = deque()
        """The calls that wait with a part of a list."""
        self._busy: set[AgentCall] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def now_ms(self) -> int:
        """The alarm's time, in milliseconds."""
        return self._alarm.now_ms

    @property
    def waiting(self) -> int:
        """The number of records that no call has got yet."""
        return self._feed.waiting

    @property
    def partitions(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list(self._parts)

    @property
    def positions(self) -> dict[TopicPartition, AgentPosition]:
        """The progress of each assigned partition."""
        for call in self._calls:
            call.settle()
        return {
            at: AgentPosition(part.progress.position, part.progress.ranges)
            for at, part in self._parts.items()
        }

    @property
    def is_idle(self) -> bool:
        """Whether no call has a current record and no record waits."""
        return self._idle.is_set()

    @property
    def current_positions(self) -> str:
        """The coordinates of the current records, for messages."""
        positions = filter(None, (call.current_position for call in self._busy))
        return ", ".join(positions) or "no record"

    async def run(self) -> None:
        """Call the function until its streams have ended.

        Raises:
            ProcessingError: the function raised, or returned before its stream ended.
        """
        try:
            async with asyncio.TaskGroup() as group:
                name = f"results of agent {self.agent.name}"
                writing = group.create_task(self.results.run(), name=name)
                await self._run_calls()
                self.results.end()
                await writing
        except ExceptionGroup as failures:
            # Several calls may have failed; the worker ends with the first error and its cause.
            first, *others = _leaves(failures)
            for other in others:
                logger.warning("agent %s failed in another call too: %s", self.agent.name, other)
            # `from` keeps the user's error as the cause; else the group would be the context.
            raise first from first.__cause__
        finally:
            # No call will set the event any more, and `until_idle` must return.
            self._idle.set()

    def assign(self, positions: Mapping[TopicPartition, AgentPosition]) -> None:
        """Read exactly the partitions of the agent's topics in `positions`, from these on.

        A partition that the agent reads already continues where it is, unless the agent was
        suspended.
        """
        # After `suspend`, records that waited were dropped, so a part that stays would have a gap:
        # every part starts anew at its committed position.
        topics = {topic.name: topic for topic in self.agent.topics}
        live = {} if self._suspended else self._parts
        former = self._parts
        self._parts = {
            at: live.get(at)
            or SlicePart(
                topics[at.topic], at.partition, AgentProgress(position.position, position.ranges)
            )
            for at, position in positions.items()
            if at.topic in topics
        }
        for at, part in former.items():
            part.is_revoked = self._parts.get(at) is not part
        self._suspended = False

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reporting progress of these partitions, which another worker reads now."""
        for at in partitions:
            if at in self._parts:
                self._parts[at].is_revoked = True
        self._parts = {at: part for at, part in self._parts.items() if at not in partitions}

    def take(self, partition: TopicPartition, records: Sequence[RawRecord]) -> None:
        """Add records of a partition, in order; drop records that are handled already."""
        part = self._parts.get(partition)
        if part is None or self._suspended or self.is_ending:
            return
        fresh = part.progress.fresh(records)
        if fresh:
            self._feed.put(part, fresh)
            self._idle.clear()
            self._wake()

    async def suspend(self) -> None:
        """Drop waiting records, take no more until `assign`, and wait until none is current."""
        self._suspended = True
        self._feed.keep(_nothing)
        for call in self._calls:
            call.keep(_nothing)
        self._rest()
        await self._idle.wait()

    async def until_idle(self) -> None:
        """Wait until no call has a current record and no record waits."""
        await self._idle.wait()

    def end(self) -> None:
        """End the streams after the current records."""
        self.is_ending = True
        self._feed.keep(_nothing)
        for call in self._calls:
            call.keep(_nothing)
        self._wake()

    def deal(self, limit: int, lanes: Sequence[Hashable | None]) -> Slice | None:
        """See `Dealer`."""
        # The lanes of the call come first: no other call can get the records that wait for them.
        turn = self._feed.follow(lanes)
        if turn is None:
            if not self._feed.ready:
                return None
            turn = self._feed.take(limit)
        part, records, lane = turn
        self.on_taken()
        return self._slice(part, records, lane)

    def let_go(self, lane: Hashable | None) -> None:
        """See `Dealer`."""
        if lane is not None:
            self._feed.done(lane)
            self._wake()

    async def news(self, call: AgentCall, due_ms: int | None) -> None:
        """See `Dealer`."""
        waiter = _Waiter(call, asyncio.get_running_loop().create_future())
        queue = self._waiters if due_ms is None else self._gatherers
        queue.append(waiter)
        self._busy.discard(call)
        self._rest()
        cancel = None
        if due_ms is not None:
            cancel = self._alarm.at(due_ms, lambda: self._wake_up(waiter))
        try:
            await waiter.woken
        finally:
            if cancel is not None:
                cancel()
            self._busy.add(call)
            # The alarm, or a cancellation, leaves the waiter in its queue; `_wake` removes it.
            if waiter in queue:
                queue.remove(waiter)

    def _wake(self) -> None:
        """Wake as many calls as there are records for."""
        # A call that gathers a list holds lanes, so records may be ready for it alone: `follow`.
        while self._gatherers:
            self._wake_up(self._gatherers.popleft())
        # One call per ready record: any other call would find none, and wait again.
        ready = len(self._waiters) if self.is_ending else self._feed.ready
        while self._waiters and ready > 0:
            self._wake_up(self._waiters.popleft())
            ready -= 1

    def _wake_up(self, waiter: _Waiter) -> None:
        if not waiter.woken.done():
            waiter.woken.set_result(None)
            # Busy at once, not when the task runs: otherwise `until_idle` could return in between.
            self._busy.add(waiter.call)
            self._idle.clear()

    def _rest(self) -> None:
        if not self._busy and not self._feed.ready:
            self._idle.set()

    async def _run_calls(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, call in enumerate(self._calls):
                group.create_task(self._run(call), name=f"agent {self.agent.name} {number}")

    async def _run(self, call: AgentCall) -> None:
        name = self.agent.name
        self._busy.add(call)
        self._idle.clear()
        if self._rows is not None:
            # A context variable: it holds in this task, and in tasks that the function starts.
            LOCAL_TABLES.set(CallRows(self.agent, self._rows, call))
        is_called = False
        while not is_called:
            try:
                await self._call(call)
                is_called = True
            except Exception as error:
                # The call stays busy, so that `until_idle` does not return before `run` has failed.
                if not await self._settle_failure(call, error):
                    raise call.failed(error) from error
            except (SystemExit, KeyboardInterrupt) as stop:
                failure = exit_failure(stop)
                if not await self._settle_failure(call, failure):
                    raise call.failed(failure) from failure
        if not self.is_ending:
            raise ProcessingError(
                f"agent {name!r} returned, but its topic {self.agent.topic.name!r} has no end: "
                "loop over the stream with `async for` and do not leave the loop",
                node=name,
            )
        call.finish()
        self._busy.discard(call)
        self._rest()

    async def _settle_failure(self, call: AgentCall, error: Exception) -> bool:
        """Apply the policy after the function has raised; return whether to call it again."""
        if self._failures is None or not (records := call.failed_records(error)):
            return False
        wait_ms = self._failures.wait_ms(records)
        if wait_ms is None:
            self._failures.give_up(records, error)
            call.skip()
        else:
            call.give_again()
            await self._pause(wait_ms / 1000)
        return True

    async def read_on(self, slice_: Slice) -> Slice:
        """See `Dealer`.

        Raises:
            ProcessingError: the policy does not skip the record.
        """
        failure, bad = slice_.failure, slice_.bad
        if failure is None or bad is None:
            return slice_
        if self._failures is None:
            raise failure
        records = [(slice_.part, bad)]
        while (wait_ms := self._failures.wait_ms(records)) is not None:
            await self._pause(wait_ms / 1000)
            if slice_.bad is None:
                return slice_  # A rebalance has revoked the partition.
            # A serde may succeed at another attempt, if it asks a service such as a registry.
            again = self._slice(slice_.part, [bad, *slice_.rest], slice_.lane)
            if again.values:
                return again
        self._failures.give_up(records, failure)
        slice_.part.progress.done([bad])
        return self._slice(slice_.part, slice_.rest, slice_.lane)

    def _slice(self, part: SlicePart, records: Sequence[RawRecord], lane: Hashable | None) -> Slice:
        return Slice(
            part,
            records,
            self.agent.name,
            lane=lane,
            answer=self._answer,
            now_ms=self._alarm.wall_ms,
        )

    async def _call(self, call: AgentCall) -> None:
        made = self.agent.call(call)
        if not self.agent.yields:
            await made
            return
        results = self.results
        # Closed here, so that the generator's `finally` blocks run before the call ends, not when
        # the garbage collector finds it.
        async with aclosing(made):
            async for value in made:
                call.yielded(value)
                if results.is_crowded:
                    await results.room()


class _Waiter(msgspec.Struct, eq=False):
    """A call that waits, and the future that wakes it."""

    call: AgentCall
    woken: asyncio.Future[None]


def _leaves(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _nothing(_: SlicePart) -> bool:
    return False
