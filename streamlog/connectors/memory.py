"""Memory: what the program holds itself, read into a topic or collected from one; and printing.

`MemorySource` reads lists, other collections, pandas and polars data frames and Arrow tables.
`MemorySink` collects records in a `MemoryRows`, and `Print` writes them to the terminal.

Rule: the offset is the index of the next row, so what is read must be equal each time: an iterator
that can be read once only is refused.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from threading import Lock
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from streamlog.connect import (
    Batch,
    Effect,
    Fenced,
    Flush,
    Read,
    Sink,
    SinkContext,
    SinkTask,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
    TopicPartition,
)
from streamlog.errors import ConfigError
from streamlog.record import K, Record, V
from streamlog.serdes import display_json

READ_ROWS = 1_000
"""The rows of one step, by default."""


class MemorySource(Source[K, V], frozen=True, kw_only=True):
    """Reads a collection that the program holds, once from its beginning to its end.

    Attributes:
        values: a list or another collection of values, or of `Record`s, which have keys and times;
            a data frame of pandas or polars, or an Arrow table, whose rows are read as dicts.
        key: of a data frame or table: the columns of the key; one gives its value, several a dict.
        timestamp: of a data frame or table: the column of the event time, with a time zone.
        read_rows: the rows of one step, which are written in one transaction.
    """

    values: Any
    key: tuple[str, ...] = ()
    timestamp: str | None = None
    read_rows: Annotated[int, msgspec.Meta(ge=1)] = READ_ROWS

    def check(self) -> None:
        """Refuse what can't be read twice, and columns of what has none.

        Raises:
            ConfigError: `values` is an iterator or no collection, or `read_rows` is below 1.
        """
        if self.read_rows < 1:
            raise ConfigError(f"read_rows is {self.read_rows}: set it to 1 or more")
        if _is_table(self.values):
            return
        if isinstance(self.values, Iterator) or not isinstance(self.values, Iterable):
            raise ConfigError(
                "values must be a collection that gives equal rows each time it is read, such as a "
                f"list, and not {type(self.values).__name__}: after a restart it is read again"
            )
        if self.key or self.timestamp is not None:
            raise ConfigError(
                "key and timestamp name columns of a data frame: give a collection of Records "
                "instead, which have keys and times"
            )

    def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> Iterator[Read[K, V]]:
        """Yield the rows behind the offset."""
        del partition
        first = 0 if offset is None else int(str(offset["index"]))
        if _is_table(self.values):
            yield from self._read_table(_arrow_table(self.values), first)
            return
        # Past what was read already; the rows themselves are not kept.
        rows = islice(iter(self.values), first, None)
        while some := [*islice(rows, self.read_rows)]:
            first += len(some)
            records: list[Record[Any, Any]] = [
                row if isinstance(row, Record) else context.record(row) for row in some
            ]
            yield Read(records, {"index": first})

    def _read_table(self, table: Any, first: int) -> Iterator[Read[K, V]]:  # noqa: ANN401 - pyarrow's
        while first < table.num_rows:
            some = table.slice(first, self.read_rows)
            first += some.num_rows
            # A slice may span several chunks, and a Read is one batch.
            for batch in some.combine_chunks().to_batches():
                yield Read.arrow(batch, {"index": first}, key=self.key, timestamp=self.timestamp)


def _is_table(values: object) -> bool:
    return any(hasattr(values, name) for name in ("to_arrow", "num_rows", "iloc"))


def _arrow_table(values: Any) -> Any:  # noqa: ANN401 - a data frame of one of several libraries
    """Return a data frame of pandas or polars, or an Arrow batch or table, as a table."""
    pa = import_module("pyarrow")
    if hasattr(values, "to_arrow"):
        return values.to_arrow()
    if hasattr(values, "iloc"):
        return pa.Table.from_pandas(values, preserve_index=False)
    return pa.Table.from_batches([values]) if isinstance(values, pa.RecordBatch) else values


class MemoryRows:
    """What a `MemorySink` has collected."""

    def __init__(self) -> None:
        self._records: list[Record[Any, Any]] = []
        self._batches: deque[Batch[Any, Any]] = deque()
        """Those whose records no program has asked for yet: making them costs the most."""
        self._making = Lock()
        self._offsets: dict[TopicPartition, int] = {}
        self._owners: dict[TopicPartition, int] = {}
        self._owner = 0

    @property
    def records(self) -> list[Record[Any, Any]]:
        """The records, in the order of their commits."""
        # A test may look at them from its own thread while the app runs in another.
        with self._making:
            while self._batches:
                self._records += self._batches.popleft().records
        return self._records

    @property
    def values(self) -> list[Any]:
        """The values of `records`."""
        return [record.value for record in self.records]

    def take_over(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[int, dict[TopicPartition, int]]:
        """Make a new owner of partitions; return its number, and the offsets that are known."""
        self._owner += 1
        self._owners.update(dict.fromkeys(partitions, self._owner))
        known = {at: self._offsets[at] for at in partitions if at in self._offsets}
        return self._owner, known

    def add(
        self,
        owner: int,
        batches: Sequence[Batch[Any, Any]],
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """Add batches together with the offsets behind them.

        Raises:
            Fenced: a partition has a later owner.
        """
        for at in offsets:
            if self._owners.get(at) != owner:
                raise Fenced(f"another task has {at.topic}-{at.partition}")
        # Of what is kept for as long as the program runs, the bytes in the log are no part.
        self._batches += [batch.decoded() for batch in batches]
        self._offsets.update(offsets)

    def set_offsets(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Set offsets, or forget them where None."""
        for at, offset in offsets.items():
            self._offsets.pop(at, None)
            if offset is not None:
                self._offsets[at] = offset


class MemorySink(Sink[K, V], frozen=True, kw_only=True):
    """Collects records in memory, each once while the process lives.

    Attributes:
        into: where the records are collected.
    """

    effect: ClassVar[Effect] = "transactional"

    into: MemoryRows

    def open(self, context: SinkContext) -> SinkTask[K, V]:
        """Return a task that collects records."""
        del context
        return _MemoryTask(self.into)


class _MemoryTask(SinkTask[Any, Any]):
    def __init__(self, rows: MemoryRows) -> None:
        self._rows, self._owner = rows, 0
        self._written: list[Batch[Any, Any]] = []

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._owner, found = self._rows.take_over(partitions)
        return found

    async def write(self, batch: Batch[Any, Any]) -> None:
        self._written.append(batch)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._rows.add(self._owner, self._written, offsets)
        self._written = []

    async def abort(self) -> None:
        self._written = []

    async def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        self._rows.set_offsets(offsets)


class Print(Sink[object, object], frozen=True, kw_only=True):
    """Writes a line for each record: topic, partition, offset, key and value as JSON.

    Attributes:
        to: where the lines go.
    """

    to: Literal["stdout", "stderr"] = "stdout"
    flush: Flush = Flush(every="100ms")

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that prints."""
        return _PrintTask(self.to, context)


class _PrintTask(SinkTask[object, object]):
    def __init__(self, to: Literal["stdout", "stderr"], context: SinkContext) -> None:
        self._to, self._context = to, context
        self._lines: list[str] = []

    async def write(self, batch: Batch[object, object]) -> None:
        self._lines += map(_line_of, batch.records)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        del offsets
        lines, self._lines = self._lines, []
        # In the thread: a terminal that is paused, or a full pipe, blocks.
        await self._context.in_thread(self._print, "".join(lines))

    async def abort(self) -> None:
        self._lines = []

    def _print(self, text: str) -> None:
        # Looked up at each call: a test or a notebook may have replaced it.
        stream = sys.stdout if self._to == "stdout" else sys.stderr
        stream.write(text)
        stream.flush()


def _line_of(record: Record[object, object]) -> str:
    key, value = (_shown(part) for part in (record.key, record.value))
    return f"{record.topic}-{record.partition}@{record.offset} {key} {value}\n"


def _shown(part: object) -> str:
    if isinstance(part, bytes):
        # On one line, whatever the bytes are.
        return msgspec.json.encode(part.decode("utf-8", "backslashreplace")).decode()
    return display_json(part, repr).decode()
