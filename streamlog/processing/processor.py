"""ProcessorStep: an object of the user's at work, with its stores and its stream time.

Records go through one by one, in the order of the task; what the object forwards is collected
and handed on as a batch. Rules of the file:

1. A record that is forwarded stands where the record in hand stands: it carries its place in
   the source, its source's stream time and its headers. So a task downstream drops what comes
   again after a crash, and judges lateness as if the processor were a `map`.
2. Stream time is the minimum over the inputs, each as far as it had come at this record in the
   order of the task; it is part of the progress, so a restart goes on with the same one.
3. What looks like chance is a function of the task and the place of the record (`chance`).

An error in `process` is that of the record. Not done here: checking the class (`dsl/processor`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from streamlog.chance import UUID, Chance, Random
from streamlog.durations import EPOCH, When, moment, when_ms
from streamlog.errors import ProcessingError, UsageError
from streamlog.processing.columns import Batch, Feed, Origin
from streamlog.processing.processor_store import BoundStore
from streamlog.processing.step import Step
from streamlog.record import Record
from streamlog.tables.store import KeyValueStore
from streamlog.topology import Process
from streamlog.windows.emit import UNKNOWN_MS, StreamTime


class Forwarded:
    """What has been forwarded and not handed on yet: columns, all of one origin."""

    __slots__ = ("keys", "rows", "timestamps", "values")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.timestamps: list[int] = []

    def add(self, row: int, key: object, value: object, timestamp_ms: int) -> None:
        """One more record, made at this row of the origin."""
        self.rows.append(row)
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp_ms)

    def batch(self, origin: Origin) -> Batch:
        """All of it."""
        batch = Batch(origin, self.rows, self.keys, self.values, self.timestamps)
        batch.keys_are_raw = batch.values_are_raw = False
        return batch


class TaskContext:
    """`self.ctx` of a processor."""

    def __init__(self, app_id: str, node: str) -> None:
        self._chance = Chance(f"{app_id}/{node}".encode())
        self._record: Record[Any, Any] | None = None
        self._origin: Origin | None = None
        self._row = self._index = 0
        self._timestamp_ms = 0
        self._is_drawn = False
        self.forwarded = Forwarded()
        self.time_ms = UNKNOWN_MS

    def take(self, batch: Batch, at: int, *, index: int) -> Record[Any, Any]:
        """The record that is in hand from now on; `index` counts those at the same place."""
        record = self._record = batch.record(at)
        self._origin, self._row, self._index = batch.origin, batch.rows[at], index
        self._timestamp_ms = batch.timestamps[at]
        self._is_drawn = False
        return record

    def let_go(self) -> None:
        """There is nothing in hand."""
        self._record = self._origin = None

    @property
    def record(self) -> Record[Any, Any]:
        """The record in hand."""
        if self._record is None:
            raise UsageError("ctx.record is there in process() only: there is no record here")
        return self._record

    @property
    def stream_time(self) -> datetime:
        """How far event time has come in all sources."""
        return moment(self.time_ms) if self.time_ms > UNKNOWN_MS else EPOCH

    @property
    def random(self) -> Random:
        """Random numbers that follow from the place of the record."""
        return self._drawn().random

    def uuid(self) -> UUID:
        """A UUID that follows from the place of the record."""
        return self._drawn().uuid()

    def forward(self, key: object, value: object, *, timestamp: When | None = None) -> None:
        """Hand a record on."""
        if self._origin is None:
            raise UsageError("ctx.forward belongs into process(): there is nothing in hand here")
        timestamp_ms = self._timestamp_ms if timestamp is None else when_ms(timestamp)
        if timestamp_ms < 0:
            raise UsageError(f"a record can't be forwarded with a time before 1970: {timestamp!r}")
        self.forwarded.add(self._row, key, value, timestamp_ms)

    def _drawn(self) -> Chance:
        origin = self._origin
        if origin is None:
            raise UsageError("ctx.random and ctx.uuid() belong into process(): they follow from it")
        if not self._is_drawn:
            self._is_drawn = True
            self._chance.move(origin.place(self._row) + self._index.to_bytes(4))
        return self._chance


class ProcessorStep(Step):
    """An object of the user's at work."""

    def __init__(
        self, node: Process, store: KeyValueStore, *, app_id: str, feeds: Sequence[Feed]
    ) -> None:
        super().__init__(node.name)
        self._feeds = feeds
        self._stream = StreamTime(feed.source for feed in feeds)
        self._context = TaskContext(app_id, node.name)
        self._stores = {each.attribute: BoundStore(each, store) for each in node.stores}
        self._last: tuple[Feed | None, int] = (None, 0)
        self._index = 0
        self._processor = node.make()
        self._processor.ctx = self._context
        for attribute, bound in self._stores.items():
            setattr(self._processor, attribute, bound)

    def init(self) -> None:
        """The state is there.

        Raises:
            ProcessingError: the user's method raised.
        """
        self._call("init", self._processor.init)

    def process(self, batch: Batch) -> None:
        """Hand the object one record after the other; hand on what it forwards."""
        context, process = self._context, self._processor.process
        origin, positions = batch.origin, batch.origin.positions
        self._learn(but=origin.feed)
        at = 0
        try:
            for at, row in enumerate(batch.rows):
                self._advance(origin.feed, origin.watermarks[row])
                place = (origin.feed, positions[row])
                self._index = self._index + 1 if place == self._last else 0
                self._last = place
                process(context.take(batch, at, index=self._index))
        except Exception as error:
            raise batch.failure(self.name, at, error) from error
        context.let_go()
        self._hand_on(origin)

    def settle(self) -> None:
        """All records at hand have been taken: note how far the inputs have come."""
        self._learn()

    def close(self) -> None:
        """The task ends.

        Raises:
            ProcessingError: the user's method raised.
        """
        for bound in self._stores.values():
            bound.close()
        self._call("close", self._processor.close)

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the stores."""
        return {"stream": self._stream.to_data()}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave; the rows are in the stores."""
        self._stream.load(data["stream"])
        self._context.time_ms = self._stream.now_ms

    def _learn(self, *, but: Feed | None = None) -> None:
        """How far the inputs have come by now; of the one in hand each record says it."""
        for feed in self._feeds:
            if feed is not but:
                self._advance(feed, feed.time_ms)

    def _advance(self, feed: Feed, time_ms: int) -> None:
        if time_ms > UNKNOWN_MS:
            self._stream.advance(feed.source, time_ms)
            self._context.time_ms = self._stream.now_ms

    def _hand_on(self, origin: Origin) -> None:
        forwarded, self._context.forwarded = self._context.forwarded, Forwarded()
        self.forward(forwarded.batch(origin))

    def _call(self, name: str, method: Callable[[], object]) -> None:
        try:
            method()
        except Exception as error:
            raise ProcessingError(
                f"{self.name!r} failed in {name}(): {type(error).__name__}: {error}", node=self.name
            ) from error
