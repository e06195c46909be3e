"""AgentRun: the calls of one agent's function, and what they are fed with.

`concurrency` calls share the records of all partitions that are assigned. A record counts as
handled when its call asks for the next one; `places` says what of each partition is. Rule of
the file: an exception that the agent's policy does not settle (`failures`) ends `run`, with the
record's coordinates, and the record does not count as handled, so nothing is skipped in
silence. No task per record: a call that finds records waiting goes on at once, and lets others
run every so often. Time comes from an `Alarm`, for `take` only. Not done here: reading and
committing (`worker`, `testing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeAlias

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

Hand: TypeAlias = Sequence[tuple[SlicePart, RawRecord]]
"""Records that the function has been given and has not gone beyond."""


class AgentFailures:
    """What becomes of records on which one agent fails."""

    def __init__(
        self,
        agent: str,
        policy: ErrorPolicy,
        *,
        send: Callable[[SinkBatch], None],
        drop: Callable[[Drop], None],
    ) -> None:
        """`send` is for dead letters, `drop` counts what is left out."""
        self._agent = agent
        self._send = send
        self._drop = drop
        self._failures = NodeFailures(agent, policy, "", self)
        self.waits_ms = [each.backoff_ms for each in policy.chain for _ in range(each.times)]
        """Before each attempt after the first."""
        self._attempts: dict[tuple[str, int, int], int] = {}

    def send(self, batch: SinkBatch) -> None:
        """Of `NodeFailures`: to be written."""
        self._send(batch)

    def drop(self, node: str, reason: Reason, count: int = 1, *, told: str = "") -> None:
        """Of `NodeFailures`: left out."""
        self._drop(Drop(node, reason, count, told=told))

    def wait_ms(self, hand: Hand) -> int | None:
        """How long to wait before the next attempt at these records; None: there is none."""
        place = _failure_position(hand)
        attempt = self._attempts[place] = self._attempts.get(place, 0) + 1
        if attempt <= len(self.waits_ms):
            return self.waits_ms[attempt - 1]
        return None

    def give_up(self, hand: Hand, error: Exception) -> None:
        """These go no further.

        Raises:
            ProcessingError: the policy is `FAIL` in the end.
        """
        attempt = self._attempts.pop(_failure_position(hand), 1)
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        for part, raw in hand:
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


def _failure_position(hand: Hand) -> tuple[str, int, int]:
    part, raw = hand[0]
    return part.topic.name, part.partition, raw.offset


logger = logging.getLogger(__name__)


class AgentAlarm(Protocol):
    """Port: what time it is, and when it is time. A worker's, or a test's."""

    @property
    def now_ms(self) -> int:
        """Any clock that does not go back."""

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""

    def at(self, due_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        """Call it then, unless what is returned has been called before."""


class AgentRun:
    """The calls of one agent's function."""

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
        """A run that waits for `run`.

        Args:
            agent: whose function is called.
            write: hands what is yielded over to the log.
            alarm: the time that `take` goes by.
            pause: waits before another attempt.
            drop: counts records that are left out.
            answer: sends an answer to who has asked for it.
            rows: those of tables that the agents have at hand.
        """
        self.agent = agent
        self.results = Results(agent, write, is_more_to_come=lambda: self._feed.ready > 0)
        self.is_ending = False
        self.on_taken: Callable[[], None] = lambda: None
        """Told whenever records have been handed out: there may be room for others."""
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
        """Those that have a part of a list."""
        self._busy: set[AgentCall] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def now_ms(self) -> int:
        """The time that `take` goes by."""
        return self._alarm.now_ms

    @property
    def waiting(self) -> int:
        """How many records wait for their turn."""
        return self._feed.waiting

    @property
    def partitions(self) -> list[TopicPartition]:
        """What it reads."""
        return list(self._parts)

    @property
    def places(self) -> dict[TopicPartition, AgentPosition]:
        """What is handled of every partition."""
        for call in self._calls:
            call.settle()
        return {
            at: AgentPosition(part.progress.position, part.progress.ranges)
            for at, part in self._parts.items()
        }

    @property
    def is_idle(self) -> bool:
        """Whether no call has a record in hand and none is waiting."""
        return self._idle.is_set()

    @property
    def in_hand(self) -> str:
        """Where the records in hand lie, for messages."""
        places = filter(None, (call.in_hand for call in self._busy))
        return ", ".join(places) or "nothing in hand"

    async def run(self) -> None:
        """Call the function until its streams have ended.

        Raises:
            ProcessingError: the agent raised, or returned though its stream goes on.
        """
        try:
            async with asyncio.TaskGroup() as group:
                name = f"results of agent {self.agent.name}"
                writing = group.create_task(self.results.run(), name=name)
                await self._run_calls()
                self.results.end()
                await writing
        except ExceptionGroup as failures:
            # Several may have failed at once; the worker ends with the first, and its cause.
            first, *others = _leaves(failures)
            for other in others:
                logger.warning("agent %s failed elsewhere, too: %s", self.agent.name, other)
            raise first from first.__cause__
        finally:
            self._idle.set()

    def assign(self, places: Mapping[TopicPartition, AgentPosition]) -> None:
        """Read exactly these partitions, as far as they are of the agent's topic, from there on.

        Those that it reads already go on undisturbed, unless it was suspended.
        """
        topic, live = self.agent.topic, {} if self._suspended else self._parts
        former = self._parts
        self._parts = {
            at: live.get(at)
            or SlicePart(topic, at.partition, AgentProgress(place.position, place.ranges))
            for at, place in places.items()
            if at.topic == topic.name
        }
        for at, part in former.items():
            part.is_over = self._parts.get(at) is not part
        self._suspended = False

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """What was handled of these is for others to tell from now on."""
        for at in partitions:
            if at in self._parts:
                self._parts[at].is_over = True
        self._parts = {at: part for at, part in self._parts.items() if at not in partitions}

    def take(self, partition: TopicPartition, records: Sequence[RawRecord]) -> None:
        """Records that follow on those before; those that are handled already are left out."""
        part = self._parts.get(partition)
        if part is None or self._suspended or self.is_ending:
            return
        fresh = part.progress.fresh(records)
        if fresh:
            self._feed.put(part, fresh)
            self._idle.clear()
            self._wake()

    async def suspend(self) -> None:
        """Drop what waits, take no more until `assign`, and wait for what is in hand."""
        self._suspended = True
        self._feed.keep(_nothing)
        for call in self._calls:
            call.keep(_nothing)
        self._rest()
        await self._idle.wait()

    async def until_idle(self) -> None:
        """Wait until no call has a record in hand and none is waiting."""
        await self._idle.wait()

    def end(self) -> None:
        """The streams end after what is in hand."""
        self.is_ending = True
        self._feed.keep(_nothing)
        for call in self._calls:
            call.keep(_nothing)
        self._wake()

    def handed_out(self, limit: int, lanes: Sequence[Hashable | None]) -> Slice | None:
        """Records for a call that has these lanes, if any are ready."""
        turn = self._feed.follow(lanes)
        if turn is None:
            if not self._feed.ready:
                return None
            turn = self._feed.take(limit)
        part, records, lane = turn
        self.on_taken()
        return self._slice(part, records, lane)

    def let_go(self, lane: Hashable | None) -> None:
        """What was handed out with this lane is handled."""
        if lane is not None:
            self._feed.done(lane)
            self._wake()

    async def news(self, call: AgentCall, due_ms: int | None) -> None:
        """Wait for records, the end, or until it is time."""
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
            if waiter in queue:
                queue.remove(waiter)

    def _wake(self) -> None:
        """Wake as many calls as have something to do."""
        # A list that is being gathered may take what waits for the call itself.
        while self._gatherers:
            self._wake_up(self._gatherers.popleft())
        ready = len(self._waiters) if self.is_ending else self._feed.ready
        while self._waiters and ready > 0:
            self._wake_up(self._waiters.popleft())
            ready -= 1

    def _wake_up(self, waiter: _Waiter) -> None:
        if not waiter.woken.done():
            waiter.woken.set_result(None)
            # From now on: who waits for all to be idle must not miss it.
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
            # Of this task alone, and of those that the function begins.
            LOCAL_TABLES.set(CallRows(self.agent, self._rows, call))
        is_called = False
        while not is_called:
            try:
                await self._call(call)
                is_called = True
            except Exception as error:
                # It stays busy, so that nobody takes this for rest before `run` has ended.
                if not await self._goes_on(call, error):
                    raise call.failed(error) from error
            except (SystemExit, KeyboardInterrupt) as stop:
                failure = exit_failure(stop)
                if not await self._goes_on(call, failure):
                    raise call.failed(failure) from failure
        if not self.is_ending:
            raise ProcessingError(
                f"agent {name!r} returned while its topic {self.agent.topic.name!r} goes on: "
                "loop over the stream with `async for` and do not leave the loop",
                node=name,
            )
        call.finish()
        self._busy.discard(call)
        self._rest()

    async def _goes_on(self, call: AgentCall, error: Exception) -> bool:
        """By the policy, after the function has raised: whether it is to be called anew."""
        if self._failures is None or not (hand := call.hand(error)):
            return False
        wait_ms = self._failures.wait_ms(hand)
        if wait_ms is None:
            self._failures.give_up(hand, error)
            call.leave_out()
        else:
            call.give_again()
            await self._pause(wait_ms / 1000)
        return True

    async def read_on(self, slice_: Slice) -> Slice:
        """What is behind a record that can't be read, by the policy.

        Raises:
            ProcessingError: it may not be left out.
        """
        failure, bad = slice_.failure, slice_.bad
        if failure is None or bad is None:
            return slice_
        if self._failures is None:
            raise failure
        hand = [(slice_.part, bad)]
        while (wait_ms := self._failures.wait_ms(hand)) is not None:
            await self._pause(wait_ms / 1000)
            if slice_.bad is None:
                return slice_  # Taken away meanwhile.
            again = self._slice(slice_.part, [bad, *slice_.rest], slice_.lane)
            if again.values:
                return again
        self._failures.give_up(hand, failure)
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
        made = self.agent.called(call)
        if not self.agent.yields:
            await made
            return
        results = self.results
        async with aclosing(made):
            async for value in made:
                call.yielded(value)
                if results.is_crowded:
                    await results.room()


@dataclass(slots=True, eq=False)
class _Waiter:
    """A call that waits."""

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
