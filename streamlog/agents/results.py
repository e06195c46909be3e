"""Results: what agents yield, on its way to their sinks.

A value is written with the key and the event time of the record in hand; of a list (`take`)
with the time of its last record and without a key. A `Record` is written as it says. Results
are collected and written by the batch: at once if no more records wait, else when there are many
or soon, and at the latest before their records are committed. Rule of the file: in the order of
the records; an error names the record in hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from streamlog.agents.slices import Slice
from streamlog.dsl.agent import Agent
from streamlog.dsl.topic import Topic
from streamlog.durations import when_ms
from streamlog.processing.column_batch import serialize_column
from streamlog.processing.outbox import SinkBatch
from streamlog.record import Record
from streamlog.serdes.erased_types import UserKey, UserValue

RESULTS_MAX = 1_000
"""Results that wait to be written; the calls that yield more wait too."""
GATHER_MS = 5
"""While records wait for their turn, results wait so long for others to be written with them: a
request for each slice costs more than all its records."""

Write = Callable[[Sequence[SinkBatch]], Awaitable[None]]
"""Hands records over to the log; they are acknowledged some time later."""


class Results:
    """What the calls of one agent have yielded."""

    def __init__(
        self,
        agent: Agent[UserKey, UserValue],
        write: Write,
        *,
        is_more_to_come: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_more_to_come` tells whether records wait for their turn."""
        self._agent = agent
        self._write = write
        self._is_more_to_come = is_more_to_come
        self._slices: list[Slice] = []
        self._count = 0
        self._news = asyncio.Event()
        self._enough = asyncio.Event()
        """There is nothing to wait for before what has been yielded is written."""
        self._room = asyncio.Event()
        self._writing = asyncio.Lock()
        self._ended = False
        self._letters: list[SinkBatch] = []
        self._failure: Exception | None = None
        """Something is lost: nothing behind it may be committed."""

    @property
    def is_crowded(self) -> bool:
        """Whether to wait for `room` before yielding more."""
        return self._count >= RESULTS_MAX

    def add(self, slice_: Slice, value: object, *, of_list: bool) -> None:
        """Yielded for the record in hand, or for the list that ends with it."""
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
        """A dead letter, to be written with what is yielded."""
        self._letters.append(letter)
        self._news.set()

    async def room(self) -> None:
        """Wait until what has been yielded is written."""
        while self.is_crowded:
            self._room.clear()
            await self._room.wait()

    async def run(self) -> None:
        """Write what comes, until `end`.

        Raises:
            ProcessingError: a result is not of the sink's types.
        """
        while not self._ended:
            await self._news.wait()
            if self._is_more_to_come():
                await self._gather()
            self._news.clear()
            await self.drain()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._news.set()
        self._enough.set()

    async def drain(self) -> None:
        """Write everything that has been yielded until now.

        Raises:
            ProcessingError: a result is not of the sink's types; every time from then on.
        """
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            slices, self._slices = self._slices, []
            self._count = 0
            self._enough.clear()
            self._room.set()
            try:
                await self._write_all(slices)
            except Exception as error:
                self._failure = error
                raise

    async def _gather(self) -> None:
        """Let the calls go on until there is much to write, but not for long."""
        try:
            async with asyncio.timeout(GATHER_MS / 1000):
                await self._enough.wait()
        except TimeoutError:
            pass

    async def _write_all(self, slices: Sequence[Slice]) -> None:
        batches, self._letters = self._letters, []
        for slice_ in slices:
            results, slice_.results = slice_.results, []
            if results:  # Not if what it was yielded for is to come again.
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
        if Record in set(map(type, values)) or not all(alone):
            return [self._one(sink, slice_, each) for each in results]
        source = slice_.part.topic
        if source.spec.key is not sink.spec.key:
            return [self._one(sink, slice_, each) for each in results]
        try:
            raw_values = serialize_column(sink.spec.value, values)
        except Exception:  # noqa: BLE001 - a serde of the user: found and raised by `_one`
            return [self._one(sink, slice_, each) for each in results]
        keys = [slice_.raws[row].key for row in rows]
        if source.spec.timestamp is None:
            times = [slice_.raws[row].timestamp_ms for row in rows]
        else:
            times = [slice_.timestamp_ms(row) for row in rows]
        by = sink.spec.partitioner
        return [SinkBatch(sink.name, None, times, keys, raw_values, partitioner=by)]

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
        return SinkBatch(sink.name, None, [time_ms], [key], [data], headers, partitioner=by)
