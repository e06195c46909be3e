"""AgentCall: one call of an agent's function, and the records that its stream iterates over.

By asking for the next record or list, the function declares the previous one handled. Records
arrive in slices; a list of `take` may span several slices.

`await_call` awaits the calls of tasks for `amap_values`. It raises nothing but the cancellation of
the awaiting task; the task that made the call raises its error, because it knows the record.

Rule: a call that finds waiting records continues without giving up control, except when its
`Pace` says so. Not done here: the choice of records (`feed`), and waking calls (`run`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from streamlog.agents.feed import Pace
from streamlog.agents.results import Results
from streamlog.agents.slices import Slice, SlicePart
from streamlog.dsl.agent import Agent
from streamlog.errors import ProcessingError, RequestTimedOut
from streamlog.processing.column_batch import exit_failure
from streamlog.processing.outbox import CallResult, TaskCall
from streamlog.record import Record
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.serdes.erased_types import AnyRecord, UserKey, UserValue


async def await_call(call: TaskCall) -> CallResult:
    """Await a call after its delay, and return how it ended; an error is a part of the result.

    Raises:
        CancelledError: this task was cancelled.
    """
    try:
        await asyncio.sleep(call.delay_ms / 1000)
        async with asyncio.timeout(
            None if call.timeout_ms is None else call.timeout_ms / 1000
        ) as limit:
            return CallResult(call.node, call.number, await call.run())
    except asyncio.CancelledError as error:
        # The user's code may raise CancelledError too, for a task of its own. Only a cancellation
        # of this task increments `cancelling()`.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return CallResult(call.node, call.number, error=RuntimeError(f"it was cancelled: {error}"))
    except Exception as error:  # noqa: BLE001 - user code: its task raises it
        if limit.expired():
            late = RequestTimedOut(f"no result within {call.timeout_ms} ms")
            late.__cause__ = error
            return CallResult(call.node, call.number, error=late)
        return CallResult(call.node, call.number, error=error)
    except (SystemExit, KeyboardInterrupt) as stop:
        return CallResult(call.node, call.number, error=exit_failure(stop))


class Dealer(Protocol):
    """Port: the owner of the waiting records, who deals them to calls."""

    results: Results

    @property
    def is_ending(self) -> bool:
        """Whether calls get no more records, because the agent ends."""

    @property
    def now_ms(self) -> int:
        """The time in milliseconds, for the time limit of `take`."""

    def deal(self, limit: int, lanes: Sequence[Hashable | None]) -> Slice | None:
        """Return up to `limit` records for a call with these lanes; None if none are ready."""

    def let_go(self, lane: Hashable | None) -> None:
        """Release a lane: the records that were dealt with it are handled."""

    async def read_on(self, slice_: Slice) -> Slice:
        """Return the records after one that can't be deserialized, if the error policy skips it.

        Raises:
            ProcessingError: the policy does not skip it.
        """

    async def news(self, call: AgentCall, due_ms: int | None) -> None:
        """Wait for records, the end of the agent, or the time `due_ms`."""


class AgentCall:
    """One call of an agent's function: the records that it holds and those that it gets next.

    A record is current from the moment the function gets it until it asks for the next one.
    """

    def __init__(self, dealer: Dealer, agent: Agent[UserKey, UserValue]) -> None:
        self._dealer = dealer
        self._name = agent.name
        self._answers = agent.answers
        self._slice: Slice | None = None
        self._held: list[Slice] = []
        """The slices of the current list, or of the list that is being gathered."""
        self._gathered: list[tuple[SlicePart, AnyRecord]] | None = None
        """The list that is being gathered, which the function has not seen yet."""
        self._again: deque[Slice] = deque()
        """Slices to repeat before any others."""
        self._pace = Pace()

    @property
    def current_position(self) -> str:
        """The coordinates of the current record, as text; "" if there is none."""
        slice_ = self._slice
        if slice_ is None or slice_.current is None:
            return ""
        part = slice_.part
        return f"{part.topic.name}-{part.partition} offset {slice_.current.offset}"

    async def ahead(self) -> Slice | None:
        """Return a slice with at least one record to give next; None at the end of the stream."""
        self.finish()
        while True:
            slice_ = self._slice
            if slice_ is None or slice_.is_used_up:
                if slice_ is not None and slice_.failure is not None:
                    await self._read_on(slice_)
                elif not await self._more(None, None):
                    return None
            else:
                return slice_

    async def gather(self, n: int, within_ms: int) -> list[AnyRecord] | None:
        """Return the next records as a list; None at the end of the stream.

        The list ends after `n` records, `within_ms` milliseconds after its first record, or before
        a record that can't be deserialized.
        """
        self.finish()
        gathered = self._gathered = []
        due_ms = None
        while len(gathered) < n:
            slice_ = self._slice
            if slice_ is not None and not slice_.is_used_up:
                self._gather(slice_, n)
            elif slice_ is not None and slice_.failure is not None:
                if gathered:
                    break
                await self._read_on(slice_)
            elif not await self._more(n - len(gathered), due_ms):
                if self._dealer.is_ending:
                    return None
                break
            # The time limit starts with the first record. A rebalance during the wait may have
            # emptied the list, and then it starts anew.
            due_ms = (due_ms or self._dealer.now_ms + within_ms) if gathered else None
        self._gathered = None
        return [record for _, record in gathered]

    def finish(self) -> None:
        """Declare everything handled that the function has got."""
        for slice_ in self._held:
            slice_.settle(slice_.given)
            if slice_ is not self._slice:
                self._dealer.let_go(slice_.lane)
        self._held.clear()
        current = self._slice
        if current is not None:
            current.settle(current.given)
            # A slice with a failure keeps its lane until `read_on` has dealt with the bad record:
            # the next record of the key must not overtake it.
            if current.is_used_up and current.failure is None:
                self._slice = None
                self._dealer.let_go(current.lane)

    def failed_records(self, error: Exception) -> list[tuple[SlicePart, RawRecord]]:
        """Return the records that were current when the function raised this error."""
        self.settle()
        slice_ = self._slice
        if self._held:
            return [each for held in self._held for each in held.current_records()]
        if slice_ is None:
            return []
        following = None if slice_.is_used_up else slice_.raws[slice_.given].offset
        if isinstance(error, ProcessingError) and error.offset == following:
            # 1. The function asked for the record after 5, so 5 is handled.
            # 2. Record 6 could not be deserialized, and that error ended the function.
            # So 6 is current, not 5.
            slice_.settle(slice_.given)
            slice_.given += 1
        return slice_.current_records()

    def give_again(self) -> None:
        """Take back the current records and what was yielded for them, to give them once more."""
        slices = [*self._held]
        if self._slice is not None and self._slice not in slices:
            slices.append(self._slice)
        for slice_ in slices:
            slice_.take_back()
        self._held.clear()
        self._gathered = None
        self._slice = slices[0] if slices else None
        # `extendleft` inserts one by one, so the reversed list keeps its order.
        self._again.extendleft(reversed(slices[1:]))

    def skip(self) -> None:
        """Declare the current records handled, and drop what was yielded for them."""
        given = [(slice_, slice_.given) for slice_ in (*self._held, self._slice) if slice_]
        for slice_, until in given:
            # `take_back` drops results and rows and resets `given`; with `given` back where it was,
            # `finish` counts the records as handled.
            slice_.take_back()
            slice_.given = until
        self._gathered = None
        self.finish()

    def settle(self) -> None:
        """Declare everything before the current record handled; a list is current as a whole."""
        if self._slice is not None and not self._held:
            self._slice.settle(self._slice.given - 1)

    def holds(self) -> list[Slice]:
        """See `RowsHeld`."""
        if self._held:
            return self._held
        slice_ = self._slice
        if slice_ is None or not slice_.given:
            return []
        slice_.settle(slice_.given - 1)
        return [slice_]

    def keep(self, wanted: Callable[[SlicePart], bool]) -> None:
        """Drop the records of other partitions that the function has not seen."""
        gathered = self._gathered
        if gathered is not None:
            # In place: `gather` waits with the same list.
            gathered[:] = [each for each in gathered if wanted(each[0])]
            for slice_ in self._held:
                if not wanted(slice_.part):
                    slice_.take_back()
        for slice_ in filter(None, (self._slice, *self._again)):
            if not wanted(slice_.part):
                slice_.cut()

    def yielded(self, value: object) -> None:
        """Take a value that the function has yielded.

        Raises:
            ProcessingError: the function had no current record, or the value is an answer that
                can't be serialized.
        """
        slice_ = self._held[-1] if self._held else self._slice
        if slice_ is None or not slice_.given:
            raise ProcessingError(
                f"agent {self._name!r} yielded before it asked for a record: a yielded value is "
                "the result of the current record",
                node=self._name,
            )
        for each in self._held or (slice_,):
            if each.is_asked:
                self._answer(each, value)
        self._dealer.results.add(slice_, value, of_list=bool(self._held))

    def failed(self, error: Exception) -> ProcessingError:
        """Return the error that has ended the call, with the coordinates of the current record."""
        name = self._name
        slice_ = self._slice
        if isinstance(error, ProcessingError):
            return error
        if slice_ is None or slice_.current is None:
            text = f"agent {name!r} failed: {type(error).__name__}: {error}"
            return ProcessingError(text, node=name)
        return slice_.part.failed(name, slice_.current, error)

    def _answer(self, slice_: Slice, value: object) -> None:
        record = slice_.current
        answer = value.value if isinstance(value, Record) else value
        try:
            data = None if answer is None else self._answers.dumps(answer)
        except Exception as error:
            if record is None:
                raise
            raise slice_.part.failed(self._name, record, error) from error
        slice_.answer(data, of_list=bool(self._held))

    def _gather(self, slice_: Slice, n: int) -> None:
        gathered = self._gathered
        if gathered is None:
            return
        if slice_ not in self._held:
            self._held.append(slice_)
        # Before the loop: a key that can't be deserialized ends the slice, so `is_used_up` then
        # holds before that record.
        slice_.keys()
        while not slice_.is_used_up and len(gathered) < n:
            gathered.append((slice_.part, slice_.record(slice_.given)))
            slice_.given += 1

    async def _read_on(self, slice_: Slice) -> None:
        self._slice = await self._dealer.read_on(slice_)
        self.finish()

    async def _more(self, limit: int | None, due_ms: int | None) -> bool:
        """Get the next slice, as large as the pace allows; False at the end or at `due_ms`."""
        dealer = self._dealer
        if self._again:
            self._slice = self._again.popleft()
            return True
        pace = self._pace
        if pace.left <= 0 and (turns := pace.turns(dealer.now_ms)):
            for _ in range(turns):
                await asyncio.sleep(0)
            pace.rested(dealer.now_ms)
        while not dealer.is_ending:
            lanes = [slice_.lane for slice_ in self._held]
            slice_ = dealer.deal(limit or pace.left, lanes)
            if slice_ is not None:
                self._slice = slice_
                pace.left -= len(slice_.raws)
                return True
            if due_ms is not None and dealer.now_ms >= due_ms:
                return False
            await dealer.news(self, due_ms)
            pace.rested(dealer.now_ms)
            if due_ms is not None and not self._gathered:
                return True  # A rebalance has emptied the list, so its time limit is void.
        return False
