"""Results: the values that an agent yields, on their way to its sink.

A value gets the key and the event time of the current record; a value for a list (`take`) gets the
time of the list's last record, and no key. A yielded `Record` has its own key, time and headers.
Results are written in batches: at once if no records wait, otherwise once `RESULTS_MAX` of them
wait or `GATHER_MS` have passed, and always before their records are committed.

Rule: results are written in the order of their records, and an error names the current record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from streamlog.agents.slices import Slice
from streamlog.dsl.agent import Agent
from streamlog.dsl.topic import Topic
from streamlog.durations import when_ms
from streamlog.processing.column_batch import serialize_column
from streamlog.processing.inputs.schema_headers import split_headers
from streamlog.processing.outbox import SinkBatch
from streamlog.record import Record
from streamlog.serdes.erased_types import UserKey, UserValue

RESULTS_MAX = 1_000
"""The most results that wait to be written; calls that yield more wait until they are."""
GATHER_MS = 5
"""While records wait, results wait up to this many milliseconds for others, because a request per
slice costs more than the records of the slice."""

Write = Callable[[Sequence[SinkBatch]], Awaitable[None]]
"""Passes records to the log, which acknowledges them later."""


class Results:
    """The values that the calls of one agent have yielded and that are not written yet."""

    def __init__(
        self,
        agent: Agent[UserKey, UserValue],
        write: Write,
        *,
        has_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_waiting` returns whether records wait for calls."""
        self._agent = agent
        self._write = write
        self._has_waiting = has_waiting
        self._slices: list[Slice] = []
        self._count = 0
        self._news = asyncio.Event()
        self._enough = asyncio.Event()
        """Set when waiting for more results has no use."""
        self._room = asyncio.Event()
        self._writing = asyncio.Lock()
        self._ended = False
        self._letters: list[SinkBatch] = []
        self._failure: Exception | None = None
        """The error of results that are lost; no record after them may be committed."""

    @property
    def is_crowded(self) -> bool:
        """Whether a call must wait for `room` before it yields more."""
        return self._count >= RESULTS_MAX

    def add(self, slice_: Slice, value: object, *, of_list: bool) -> None:
        """Add a value that was yielded for the current record, or for the list ending with it."""
        if self._agent.sink is None:
            return
        if not slice_.results:
            self._slices.append(slice_)
            self._news.set()
        slice_.results.append((slice_.given - 1, not of_list, value))
        self._count += 1
        if self._count == RESULTS_MAX:
            self._enough.set()

    def write_letter(self, letter: SinkBatch) -> None:
        """Add a dead letter, which is written with the next results."""
        self._letters.append(letter)
        self._news.set()

    async def room(self) -> None:
        """Wait until there is room for more results."""
        while self.is_crowded:
            self._room.clear()
            await self._room.wait()

    async def run(self) -> None:
        """Write results as they come, until `end`.

        Raises:
            ProcessingError: a result is not of the sink's types.
        """
        while not self._ended:
            await self._news.wait()
            if self._has_waiting():
                await self._gather()
            # Before the drain: a result that is added while it writes sets the event again.
            self._news.clear()
            await self.drain()

    def end(self) -> None:
        """Let `run` write what is left, and return."""
        self._ended = True
        self._news.set()
        self._enough.set()

    async def drain(self) -> None:
        """Write everything that was yielded before this call.

        Raises:
            ProcessingError: a result, now or in an earlier call, is not of the sink's types.
        """
        # One drain at a time, because two of them could write the results of one key out of order.
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            slices, self._slices = self._slices, []
            self._count = 0
            self._enough.clear()
            # Before the write, so that calls yield the next results while these are on their way.
            self._room.set()
            try:
                await self._write_all(slices)
            except Exception as error:
                self._failure = error
                raise

    async def _gather(self) -> None:
        """Wait for more results, until there are `RESULTS_MAX` or `GATHER_MS` have passed."""
        try:
            async with asyncio.timeout(GATHER_MS / 1000):
                await self._enough.wait()
        except TimeoutError:
            pass

    async def _write_all(self, slices: Sequence[Slice]) -> None:
        batches, self._letters = self._letters, []
        for slice_ in slices:
            results, slice_.results = slice_.results, []
            if results:  # `take_back` drops the results of records that the call gets again.
                batches += self._batches(slice_, results)
        if batches:
            await self._write(batches)

    def _batches(
        self, slice_: Slice, results: Sequence[tuple[int, bool, UserValue]]
    ) -> list[SinkBatch]:
        sink = self._agent.sink
        if sink is None:
            return []
        rows, alone, values = zip(*results, strict=True)
        # Whole columns are written at once, if each result has the key and time of its record. A
        # key is then passed on as bytes, which needs one serde on both topics.
        if Record in set(map(type, values)) or not all(alone):
            return [self._one(sink, slice_, each) for each in results]
        source = slice_.part.topic
        if source.spec.key is not sink.spec.key:
            return [self._one(sink, slice_, each) for each in results]
        try:
            raw_values = serialize_column(sink.spec.value, values)
        except Exception:  # noqa: BLE001 - user code: `_one` finds the result and raises
            return [self._one(sink, slice_, each) for each in results]
        keys = [slice_.raws[row].key for row in rows]
        if source.spec.timestamp is None:
            times = [slice_.raws[row].timestamp_ms for row in rows]
        else:
            times = [slice_.timestamp_ms(row) for row in rows]
        by = sink.spec.partitioner
        written = split_headers(sink.spec, keys, raw_values, None)
        return [SinkBatch(sink.name, None, times, *written, partitioner=by)]

    def _one(
        self, sink: Topic[UserKey, UserValue], slice_: Slice, result: tuple[int, bool, UserValue]
    ) -> SinkBatch:
        row, alone, value = result
        raw, source = slice_.raws[row], slice_.part.topic.spec
        try:
            if isinstance(value, Record):
                key, data = sink.encoded(value.key, value.value)
                time_ms, headers = when_ms(value.timestamp), [value.headers]
            else:
                found = None if raw.key is None or not alone else source.key.loads(raw.key)
                key, data = sink.encoded(found, value)
                time_ms, headers = slice_.timestamp_ms(row), None
        except Exception as error:
            raise slice_.part.failed(self._agent.name, raw, error) from error
        by = sink.spec.partitioner
        written = split_headers(sink.spec, [key], [data], headers)
        return SinkBatch(sink.name, None, [time_ms], *written, partitioner=by)
