"""Call: one call of an agent's function, and what its stream iterates over.

Asking for the next record or list says that what was given before is handled. Records are
taken by the slice; a list of `take` may be put together of several. Rule of the file: a call
that finds records waiting goes on at once, and lets others run every so often (`pace`). Not done
here: whose turn it is (`feed`), and waking calls up (`run`).
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
    """Await a call; never raises but when it is cancelled from outside."""
    try:
        await asyncio.sleep(call.delay_ms / 1000)
        async with asyncio.timeout(
            None if call.timeout_ms is None else call.timeout_ms / 1000
        ) as limit:
            return CallResult(call.node, call.number, await call.run())
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return CallResult(call.node, call.number, error=RuntimeError(f"it was cancelled: {error}"))
    except Exception as error:  # noqa: BLE001 - the user's code: the task deals with it
        if limit.expired():
            late = RequestTimedOut(f"no result within {call.timeout_ms} ms")
            late.__cause__ = error
            return CallResult(call.node, call.number, error=late)
        return CallResult(call.node, call.number, error=error)
    except (SystemExit, KeyboardInterrupt) as stop:
        return CallResult(call.node, call.number, error=exit_failure(stop))


class Dealer(Protocol):
    """Port: who has the records."""

    results: Results

    @property
    def is_ending(self) -> bool:
        """Whether no record is to be begun any more."""

    @property
    def now_ms(self) -> int:
        """The time that `take` goes by."""

    def handed_out(self, limit: int, lanes: Sequence[Hashable | None]) -> Slice | None:
        """Records for a call that has these lanes, if any are ready."""

    def let_go(self, lane: Hashable | None) -> None:
        """What was handed out with this lane is handled."""

    async def read_on(self, slice_: Slice) -> Slice:
        """What is behind a record that can't be read, if that may be left out; else its error."""

    async def news(self, call: AgentCall, due_ms: int | None) -> None:
        """Wait for records, the end, or until it is time."""


class AgentCall:
    """One call of the function."""

    def __init__(self, dealer: Dealer, agent: Agent[UserKey, UserValue]) -> None:
        self._dealer = dealer
        self._name = agent.name
        self._answers = agent.answers
        self._slice: Slice | None = None
        self._held: list[Slice] = []
        """Those with records of the list in hand, or of the one that is being gathered."""
        self._gathered: list[tuple[SlicePart, AnyRecord]] | None = None
        """The list that is being gathered; nobody has seen it yet."""
        self._again: deque[Slice] = deque()
        """To be given again, before any others."""
        self._pace = Pace()

    @property
    def in_hand(self) -> str:
        """Where the record in hand lies; empty if there is none."""
        slice_ = self._slice
        if slice_ is None or slice_.in_hand is None:
            return ""
        part = slice_.part
        return f"{part.topic.name}-{part.partition} offset {slice_.in_hand.offset}"

    async def ahead(self) -> Slice | None:
        """Records that have not been given yet, at least one; None at the end of the stream."""
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
        """The next records as a list; None at the end of the stream."""
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
            # What had been gathered may have been taken away meanwhile.
            due_ms = (due_ms or self._dealer.now_ms + within_ms) if gathered else None
        self._gathered = None
        return [record for _, record in gathered]

    def finish(self) -> None:
        """Everything that has been given is handled."""
        for slice_ in self._held:
            slice_.settle(slice_.given)
            if slice_ is not self._slice:
                self._dealer.let_go(slice_.lane)
        self._held.clear()
        current = self._slice
        if current is not None:
            current.settle(current.given)
            if current.is_used_up and current.failure is None:
                self._slice = None
                self._dealer.let_go(current.lane)

    def hand(self, error: Exception) -> list[tuple[SlicePart, RawRecord]]:
        """What the function had in hand when it raised."""
        self.settle()
        slice_ = self._slice
        if self._held:
            return [each for held in self._held for each in held.hand()]
        if slice_ is None:
            return []
        following = None if slice_.is_used_up else slice_.raws[slice_.given].offset
        if isinstance(error, ProcessingError) and error.offset == following:
            # It was raised while the next one was being read, so the last one is handled.
            slice_.settle(slice_.given)
            slice_.given += 1
        return slice_.hand()

    def give_again(self) -> None:
        """What is in hand has not been given; nor has it yielded anything."""
        slices = [*self._held]
        if self._slice is not None and self._slice not in slices:
            slices.append(self._slice)
        for slice_ in slices:
            slice_.take_back()
        self._held.clear()
        self._gathered = None
        self._slice = slices[0] if slices else None
        self._again.extendleft(reversed(slices[1:]))

    def leave_out(self) -> None:
        """What is in hand counts as handled, though it has yielded nothing."""
        given = [(slice_, slice_.given) for slice_ in (*self._held, self._slice) if slice_]
        for slice_, until in given:
            slice_.take_back()
            slice_.given = until
        self._gathered = None
        self.finish()

    def settle(self) -> None:
        """Everything before the record in hand is handled; of a list all are in hand."""
        if self._slice is not None and not self._held:
            self._slice.settle(self._slice.given - 1)

    def holds(self) -> list[Slice]:
        """See `Holding`."""
        if self._held:
            return self._held
        slice_ = self._slice
        if slice_ is None or not slice_.given:
            return []
        slice_.settle(slice_.given - 1)
        return [slice_]

    def keep(self, wanted: Callable[[SlicePart], bool]) -> None:
        """Drop what the function has not seen yet of other partitions."""
        gathered = self._gathered
        if gathered is not None:
            gathered[:] = [each for each in gathered if wanted(each[0])]
            for slice_ in self._held:
                if not wanted(slice_.part):
                    slice_.take_back()
        for slice_ in filter(None, (self._slice, *self._again)):
            if not wanted(slice_.part):
                slice_.cut()

    def yielded(self, value: object) -> None:
        """Take what the function has yielded.

        Raises:
            ProcessingError: it has not asked for a record before, or it is an answer that can't
                be written.
        """
        slice_ = self._held[-1] if self._held else self._slice
        if slice_ is None or not slice_.given:
            raise ProcessingError(
                f"agent {self._name!r} yielded before it asked for a record: what it yields is "
                "the result of the record in hand",
                node=self._name,
            )
        for asked in self._held or (slice_,):
            if asked.is_asked:
                self._answer(asked, value)
        self._dealer.results.add(slice_, value, of_list=bool(self._held))

    def failed(self, error: Exception) -> ProcessingError:
        """What has ended the call, with the coordinates of the record in hand."""
        name = self._name
        slice_ = self._slice
        if isinstance(error, ProcessingError):
            return error
        if slice_ is None or slice_.in_hand is None:
            text = f"agent {name!r} failed: {type(error).__name__}: {error}"
            return ProcessingError(text, node=name)
        return slice_.part.failed(name, slice_.in_hand, error)

    def _answer(self, slice_: Slice, value: object) -> None:
        record = slice_.in_hand
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
        slice_.keys()
        while not slice_.is_used_up and len(gathered) < n:
            gathered.append((slice_.part, slice_.record(slice_.given)))
            slice_.given += 1

    async def _read_on(self, slice_: Slice) -> None:
        self._slice = await self._dealer.read_on(slice_)
        self.finish()

    async def _more(self, limit: int | None, due_ms: int | None) -> bool:
        """Get the next slice, as large as the pace has it; not at the end, nor when it is time."""
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
            slice_ = dealer.handed_out(limit or pace.left, lanes)
            if slice_ is not None:
                self._slice = slice_
                pace.left -= len(slice_.raws)
                return True
            if due_ms is not None and dealer.now_ms >= due_ms:
                return False
            await dealer.news(self, due_ms)
            pace.rested(dealer.now_ms)
            if due_ms is not None and not self._gathered:
                return True  # What it was waited for has been taken away.
        return False
