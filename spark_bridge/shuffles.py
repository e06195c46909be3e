"""Shuffles: the records of repartition topics, as rows of Spark.

A row names its task and its position in the order in which the task processes rows: (stream time,
index of the topic, rank of the source, number). Spark sorts by these columns, so a task reads its
rows from start to end and never waits for a later one. The last row of each source marks its end,
so that the task does not wait for the source until all others are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from spark_bridge.partial_aggregation.foldable_rows import BEFORE_ALL_MS, FoldableRows
from spark_bridge.partial_aggregation.folded_reader import numbers_of
from streamlog.history.plan import Plan, Stage
from streamlog.history.staging import source_in, sources_of
from streamlog.history.task_run import Arrival, Arrivals
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.processing.outbox import SinkBatch, assign_partitions
from streamlog.processing.provenance import MARK, PROVENANCE, ProvenanceMark, identity, pack_mark
from streamlog.record import Headers
from streamlog.records.record_columns import RecordColumns
from streamlog.windows.emit import Source

ROWS_MAX = 10_000
"""Rows of one Arrow batch."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
SEED, RECORD, TIME_MARK, LAST = range(4)
"""Kinds of rows. Each task gets one seed, so that a task without other rows runs as well."""

SCHEMA = pa.schema(
    [
        ("stage", pa.int32()),
        ("task", pa.int32()),
        ("turn", pa.int64()),
        ("input", pa.int32()),
        ("rank", pa.int32()),
        ("number", pa.int64()),
        ("kind", pa.int32()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("own", pa.binary()),
        ("headers", pa.binary()),
    ]
)
COLUMNS = (
    "stage int, task int, turn bigint, input int, rank int, number bigint, kind int, "
    "timestamp bigint, key binary, value binary, own binary, headers binary"
)
ORDER = ("turn", "input", "rank", "number")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]]).decode


@dataclass(slots=True)
class _Route:
    """The way from a task of one stage to the tasks of another, through one topic."""

    stage: int
    input: int
    ranks: Mapping[bytes, int]
    turns: dict[tuple[int, int], int] = field(default_factory=dict)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    foldable: FoldableRows | None = None
    """The folded rows, if the other stage is lowered."""


class ShuffleRows:
    """Turns the records that one task writes to repartition topics into rows."""

    def __init__(self, plan: Plan, stage: Stage, partition: int) -> None:
        sub = stage.subtopology
        self._counts = {topic: plan.counts[topic] for topic in sub.repartition_topics}
        self._ways: dict[str, _Route] = {}
        for other in plan.stages:
            for at, topic in enumerate(other.subtopology.inputs):
                if topic in self._counts:
                    sources = sources_of(other.subtopology, topic, plan.counts)
                    ranks = {identity(source): rank for rank, source in enumerate(sources)}
                    foldable = foldable_rows(plan, other, ranks)
                    self._ways[topic] = _Route(other.number, at, ranks, foldable=foldable)
        feeds = {name for node in sub.nodes for name in node.feeds}
        # The sources that this task ends: its inputs, and the feeds of its own nodes.
        self._own = [identity((name, partition)) for name in sorted({*sub.inputs, *feeds})]
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def write(self, batch: SinkBatch) -> None:
        """Add records of one source, or a mark."""
        way = self._ways[batch.topic]
        if way.foldable is not None:
            way.foldable.write(batch)
            return
        rank = way.ranks[source_in(batch)]
        for (_, partition), columns in assign_partitions([batch], self._counts).items():
            headers: list[Any] = columns.headers or []
            fields = zip(columns.timestamps, columns.keys, columns.values, headers, strict=True)
            for timestamp_ms, key, value, (*more, (name, own)) in fields:
                kind = TIME_MARK if name == MARK else RECORD
                # The value of the last header, a stamp or a mark, begins with the merge key.
                sort_key = self._sort_key(
                    way, partition, rank, int.from_bytes(own[:8], signed=True)
                )
                rest = _encode(more) if more else None
                self._rows.append((*sort_key, kind, timestamp_ms, key, value, own, rest))
                self._bytes += len(own) + len(key or b"") + len(value or b"")

    def tell(self, source: Source, mark: ProvenanceMark) -> None:
        """Add a mark to all partitions of the topics that have this source."""
        own = identity(source)
        data = pack_mark(mark, own)
        for topic, way in self._ways.items():
            if way.foldable is not None:
                way.foldable.tell(own, mark)
                continue
            for partition in range(self._counts[topic] if own in way.ranks else 0):
                sort_key = self._sort_key(way, partition, way.ranks[own], mark.turn_ms)
                at_ms = max(mark.time_ms, 0)
                self._rows.append((*sort_key, TIME_MARK, at_ms, None, None, data, None))

    def finish(self) -> None:
        """Add the last rows: the task's sources have ended."""
        for topic, way in self._ways.items():
            if way.foldable is not None:
                way.foldable.finish(self._own)
                continue
            for rank in [way.ranks[own] for own in self._own if own in way.ranks]:
                for partition in range(self._counts[topic]):
                    sort_key = self._sort_key(way, partition, rank, BEFORE_ALL_MS)
                    self._rows.append((*sort_key, LAST, 0, None, None, None, None))

    def drain(self, *, is_last: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows if they fill a batch; with `is_last`, yield them in any case."""
        for way in self._ways.values():
            for foldable in () if way.foldable is None else way.foldable.drain():
                yield _batch_of(foldable)
        if not (is_last or len(self._rows) >= ROWS_MAX or self._bytes >= BATCH_BYTES_MAX):
            return
        rows, self._rows, self._bytes = self._rows, [], 0
        for start in range(0, len(rows), ROWS_MAX):
            columns = zip(*rows[start : start + ROWS_MAX], strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def _sort_key(self, way: _Route, partition: int, rank: int, turn_ms: int) -> tuple[int, ...]:
        at = (partition, rank)
        # Within a source, rows stay in the order of their writes, whatever time they carry.
        # 1. Rows of turns 100, 90, 120 get the turns 100, 100, 120; `number` tells them apart.
        # 2. The row LAST asks for BEFORE_ALL_MS and gets 120: it follows directly after them.
        # 3. Of a source without rows, LAST gets BEFORE_ALL_MS + 1: after the seed, before records.
        turn_ms = way.turns[at] = max(turn_ms, way.turns.get(at, BEFORE_ALL_MS + 1))
        number = way.numbers[at] = way.numbers.get(at, -1) + 1
        return way.stage, partition, turn_ms, way.input, rank, number


def foldable_rows(plan: Plan, stage: Stage, ranks: Mapping[bytes, int]) -> FoldableRows | None:
    """Return the folder of rows for a stage; None if the stage is not lowered."""
    if stage.lowering is None:
        return None
    topic = stage.lowering.topic
    return FoldableRows(
        stage=stage.number,
        ranks=ranks,
        partitions=plan.counts[topic],
        numbers=numbers_of(stage),
        value=stage.subtopology.topics[topic].value,
        windows=stage.lowering.aggregate(stage.subtopology).windows,
    )


def _batch_of(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch of these columns; other columns are null."""
    count = len(columns["task"])
    arrays = [
        columns[each.name] if each.name in columns else pa.nulls(count, each.type)
        for each in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class ShuffleReader:
    """Turns the rows of one task into arrivals of its inputs."""

    def __init__(self, plan: Plan, stage: Stage, batches: Iterator[pa.RecordBatch]) -> None:
        sub = stage.subtopology
        self._inputs = sub.inputs
        self._sources = {topic: len(sources_of(sub, topic, plan.counts)) for topic in sub.feeders}
        self._batches = iter(batches)
        self._first = next(self._batches)
        self.partition: int = self._first.column("task")[0].as_py()
        """Partition of the task."""
        self._ended = dict.fromkeys(self._sources, 0)
        self._offsets = dict.fromkeys(self._sources, 0)

    def arrivals(self) -> Arrivals:
        """Yield all arrivals, in order.

        Raises:
            RuntimeError: Spark has put rows of two tasks into one partition.
        """
        batch: pa.RecordBatch | None = self._first
        while batch is not None:
            if set(batch.column("task").to_pylist()) - {self.partition}:
                raise RuntimeError(
                    "Spark has put rows of two tasks of a history into one partition: check for a "
                    "plugin or setting that changes how it repartitions"
                )
            found = self._of(batch)
            if found:
                yield found
            batch = next(self._batches, None)

    def _of(self, batch: pa.RecordBatch) -> dict[PartitionKey, Arrival]:
        found: dict[str, RecordColumns] = {}
        ended: set[str] = set()
        names = ("input", "kind", "timestamp", "key", "value", "own", "headers")
        columns = (batch.column(name).to_pylist() for name in names)
        for at, kind, timestamp_ms, key, value, own, more in zip(*columns, strict=True):
            if kind == SEED:
                continue  # It has started the task, and says nothing else.
            topic = self._inputs[at]
            records = found.setdefault(topic, RecordColumns())
            if kind == LAST:
                self._ended[topic] += 1
                # The topic ends with its last source: the others may still have records in it.
                if self._ended[topic] == self._sources[topic]:
                    ended.add(topic)
                continue
            headers = _headers(kind, own, more)
            records.add(self._offsets[topic], timestamp_ms, key, value, headers)
            self._offsets[topic] += 1
        return {
            (topic, self.partition): Arrival(records, is_last=topic in ended)
            for topic, records in found.items()
        }


def _headers(kind: int, own: bytes, more: bytes | None) -> Headers:
    last = (MARK if kind == TIME_MARK else PROVENANCE, own)
    return (last,) if more is None else (*_decode(more), last)
