"""FoldableRows: folds the records that a task writes to the repartition topic of a lowered stage.

They are not shuffled as records, but as pieces: rows that are folded by window and key.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from spark_bridge.partial_aggregation.column_folding import Folding
from spark_bridge.partial_aggregation.window_grid import WindowGrid
from streamlog.history.lowering import NotLowered
from streamlog.history.stage_task import SourceEnd
from streamlog.nodes.stream_nodes import WholeNumbers
from streamlog.processing.column_batch import deserialize_column
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.provenance import (
    BUSY_MS,
    MARK,
    ProvenanceMark,
    Stamps,
    mark_sent_ms,
    unpack_mark,
)
from streamlog.records.record_columns import has_none
from streamlog.serdes import Serde
from streamlog.windows.definitions import Windows
from streamlog.windows.emit import UNKNOWN_MS

PIECE, SOURCE = 1, 4
"""Kinds of rows; see `shuffles`."""
TOGETHER_ROWS = 20_000
"""Records that are made columns of at a time, at most."""
CHUNK_ROWS = 200_000
"""Records folded at a time."""
BEFORE_ALL_MS = -(1 << 62)
TIME_MS_MAX = 1 << 50
"""The latest time that is folded, far beyond the year 9999. The sum of two such times fits into 64
bits."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _Source:
    """How far one source has come in one partition; see `SourceEnd`."""

    records: int = 0
    marks: int = 0
    position: int = -1
    index: int = 0
    record_ms: int = UNKNOWN_MS
    time_ms: int = UNKNOWN_MS
    turn_ms: int = UNKNOWN_MS
    quiet_ms: int = BUSY_MS
    marked_ms: int = UNKNOWN_MS
    nulls: int = 0
    late: int = 0

    def hear(self, mark: ProvenanceMark, marked_ms: int) -> None:
        self.marks += 1
        self.turn_ms = max(self.turn_ms, mark.turn_ms)
        self.time_ms = max(self.time_ms, mark.time_ms)
        self.quiet_ms = mark.quiet_ms
        self.marked_ms = max(self.marked_ms, marked_ms)

    def end(self) -> SourceEnd:
        return SourceEnd(
            self.records,
            self.marks,
            self.position,
            self.index,
            self.record_ms,
            self.time_ms,
            self.turn_ms,
            self.quiet_ms,
            self.marked_ms,
            self.nulls,
            self.late,
        )


class _Records:
    """Records of one source as columns, of several batches: columns cost less the longer they are.

    A batch of a task has a thousand records, and NumPy and Arrow take as long to begin as they take
    for hundreds.
    """

    def __init__(self) -> None:
        self.source = b""
        self.timestamps, self.times, self.tasks = array("q"), array("q"), array("q")
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        """Without numbers to fold, something else than None stands for each value."""
        self._starts: list[int] = []
        self._stamps: list[Stamps] = []

    def add(
        self, batch: SinkBatch, stamps: Stamps, tasks: Sequence[int], *, has_numbers: bool
    ) -> None:
        """Add a batch of the source that the others have.

        Raises:
            NotLowered: its records are not in the order of their stream time.
        """
        times = array("q", stamps.times)
        if stamps.turns is not stamps.times and array("q", stamps.turns) != times:
            raise NotLowered("records are not in the order of their stream time")
        self.source = stamps.source
        self._starts.append(len(self.keys))
        self._stamps.append(stamps)
        self.times += times
        self.timestamps += array("q", batch.timestamps)
        self.tasks += array("q", tasks)
        self.keys += batch.keys
        # The values of a batch are freed before the next one is decoded: held for nothing, they
        # would make it fill memory that is in no cache.
        if has_numbers or has_none(batch.values):
            self.values += batch.values
        else:
            self.values += [b""] * len(batch.values)

    def position_of(self, at: int) -> tuple[int, int]:
        """Return a record's position in its source, and its index among those of the position."""
        batch = bisect_right(self._starts, at) - 1
        stamps, at = self._stamps[batch], at - self._starts[batch]
        return stamps.positions[at], stamps.indexes[at]


class FoldableRows:
    """Folds the records that one task writes to the repartition topic of a lowered stage."""

    def __init__(
        self,
        *,
        stage: int,
        ranks: Mapping[bytes, int],
        partitions: int,
        numbers: WholeNumbers,
        value: Serde[Any],
        windows: Windows,
    ) -> None:
        """Begin with nothing written.

        Args:
            stage: number of the lowered stage.
            ranks: rank of each source of the topic, by identity.
            partitions: number of partitions of the topic.
            numbers: the columns to fold.
            value: serde of the topic's values.
            windows: windows of the aggregation.
        """
        self._stage = stage
        self._ranks = ranks
        self._partitions = partitions
        self._value = value
        self._takes = [None if f is None else _function(f) for f in numbers.fields]
        self._has_numbers = any(take is not None for take in self._takes)
        self._grid = WindowGrid(windows)
        self._folding = Folding(numbers)
        self._sources: dict[int, list[_Source]] = {}
        self._records = _Records()
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._batches: list[dict[str, Any]] = []

    def write(self, batch: SinkBatch) -> None:
        """Add records of one source, or a mark.

        Raises:
            NotLowered: the records don't meet the conditions of the lowering.
        """
        if batch.stamps is not None:
            if batch.stamps.source != self._records.source:
                self._take()
            tasks = batch.partitions(self._partitions)
            self._records.add(batch, batch.stamps, tasks, has_numbers=self._has_numbers)
            if len(self._records.keys) >= TOGETHER_ROWS:
                self._take()
            return
        self._take()
        for headers in batch.headers or []:
            name, data = headers[-1]
            if name != MARK:
                raise NotLowered(f"records of {batch.topic} have no stamps")
            mark, source = unpack_mark(data or b"")
            partitions = range(self._partitions) if batch.partition is None else [batch.partition]
            for partition in partitions:
                self._of(source)[partition].hear(mark, mark_sent_ms(headers))

    def tell(self, source: bytes, mark: ProvenanceMark) -> None:
        """Add a mark to all partitions, if the topic has this source."""
        self._take()
        if source in self._ranks:
            for each in self._of(source):
                each.hear(mark, UNKNOWN_MS)

    def drain(self) -> Iterator[dict[str, Any]]:
        """Yield the finished batches, as columns by name."""
        batches, self._batches = self._batches, []
        yield from batches

    def finish(self, sources: Sequence[bytes]) -> None:
        """Fold the rest, and add how far each source has come."""
        self._take()
        self._fold()
        rows = [
            (partition, rank, _encode(tuple(each.end())))
            for source in sources
            if (rank := self._ranks.get(source)) is not None
            for partition, each in enumerate(self._of(source))
        ]
        if rows:
            tasks, ranks, ends = zip(*rows, strict=True)
            self._send(SOURCE, tasks, [BEFORE_ALL_MS] * len(rows), ranks, ends)

    def _send(
        self,
        kind: int,
        tasks: Sequence[int],
        turns: Sequence[int],
        ranks: Sequence[int],
        values: Sequence[bytes],
    ) -> None:
        count = len(tasks)
        self._batches.append(
            {
                "stage": pa.repeat(pa.scalar(self._stage, pa.int32()), count),
                "task": pa.array(tasks, pa.int32()),
                "turn": pa.array(turns, pa.int64()),
                "rank": pa.array(ranks, pa.int32()),
                "kind": pa.repeat(pa.scalar(kind, pa.int32()), count),
                "value": pa.array(values, pa.binary()),
            }
        )

    def _of(self, source: bytes) -> list[_Source]:
        rank = self._ranks[source]
        if rank not in self._sources:
            self._sources[rank] = [_Source() for _ in range(self._partitions)]
        return self._sources[rank]

    def _take(self) -> None:
        """Assign windows to the records of one source that were written since the last mark."""
        records, self._records = self._records, _Records()
        if not records.keys:
            return
        times, tasks = np.asarray(records.timestamps), np.asarray(records.tasks)
        if times.min() < 0 or times.max() > TIME_MS_MAX:
            raise NotLowered("a timestamp is before 1970, or after the end of the calendar")
        if (np.diff(records.times) < 0).any():
            raise NotLowered("the time of a source falls")
        own = self._of(records.source)
        # Time marks advance a source in partitions that get none of its records. Between marks, its
        # time never falls: what was heard before the first record counts for all of them.
        heard = np.array([each.time_ms for each in own], np.int64)
        stream_times = np.maximum(np.asarray(records.times), heard[tasks])
        self._note(own, tasks, records, stream_times)
        columns = {"task": tasks, "timestamp": times, "key": pa.array(records.keys, pa.binary())}
        values: Sequence[Any] = records.values
        if has_none(values):
            # Aggregations leave out records without a value, and count them.
            kept = np.array([value is not None for value in values])
            for partition in tasks[~kept].tolist():
                own[partition].nulls += 1
            mask = pa.array(kept)
            columns = {name: pa.array(c).filter(mask) for name, c in columns.items()}
            tasks, times, stream_times = tasks[kept], times[kept], stream_times[kept]
            values = [value for value in values if value is not None]
        first, last, late = self._grid.numbers(times, stream_times)
        if late.any():
            for partition, each in enumerate(own):
                each.late += int(late[tasks == partition].sum())
        columns |= {"first": first, "more": last - first, "count": np.ones(len(times), np.int64)}
        table = pa.table(columns | self._numbers(values))
        # Too late for all of its windows.
        self._tables.append(table.filter(pa.array(first <= last)) if late.any() else table)
        self._rows += len(times)
        if self._rows >= CHUNK_ROWS:
            self._fold()

    def _fold(self) -> None:
        tables, self._tables, self._rows = self._tables, [], 0
        if not tables:
            return
        for whole in self._folding.into_windows(pa.concat_tables(tables)):
            pieces = [
                (task, self._grid.bounds(number)[1], data)
                for task, number, data in self._folding.pieces(whole)
            ]
            if pieces:
                tasks, turns, values = zip(*pieces, strict=True)
                self._send(PIECE, tasks, turns, [0] * len(pieces), values)

    def _note(self, own: list[_Source], tasks: Any, records: _Records, times: Any) -> None:  # noqa: ANN401 - NumPy's
        """Note how far the source has come in each partition with these records."""
        # NumPy assigns in order and the last one wins: per partition, the index of its last record.
        last = np.full(self._partitions, -1, np.int64)
        last[tasks] = np.arange(len(tasks))
        counts = np.bincount(tasks, minlength=self._partitions)
        for partition, at in enumerate(last.tolist()):
            if at < 0:
                continue
            each = own[partition]
            each.records += int(counts[partition])
            each.position, each.index = records.position_of(at)
            each.record_ms = each.time_ms = int(times[at])
            each.turn_ms = max(each.turn_ms, each.time_ms)
            each.quiet_ms = min(each.quiet_ms, 0)

    def _numbers(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the numbers to fold, a column for each column of the aggregation but counts."""
        if not self._has_numbers:
            return {}
        # A serde and a field are the user's code, which may raise anything. No error is hidden: the
        # task meets it again at its record, where the policy of the node decides.
        try:
            found = deserialize_column(self._value, values)
            taken = [None if take is None else list(map(take, found)) for take in self._takes]
        except Exception as error:
            raise NotLowered(f"a value can't be read, or has no such field: {error}") from error
        return {
            f"number_{at}": _whole(column) for at, column in enumerate(taken) if column is not None
        }


def _whole(found: list[Any]) -> Any:  # noqa: ANN401 - Arrow's, untyped
    # Exactly int: a bool, which is an int too, is not folded here.
    if not {int}.issuperset(map(type, found)):
        raise NotLowered("a number that is folded is not a whole number")
    try:
        return pa.array(found, pa.int64())
    except OverflowError as error:
        raise NotLowered("a number that is folded does not fit into 64 bits") from error


def _function(field: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    return attrgetter(field) if isinstance(field, str) else field
