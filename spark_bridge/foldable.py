"""FoldableRows: what one task sends to a stage that is lowered: its windows, folded so far.

Of each record counts the task it is for, its key, timestamp, its source's stream time and the whole
numbers that are folded; of each source, in the end, how far it has come. All is taken from what the
task gave, whole columns at a time, put into windows (`window_grid`) and folded (`folding`) before
it goes through the shuffle. Rule of the file: whatever is not as it was planned (a number that is
none, or does not fit into 64 bits; a value that can't be read) ends in `NotLowered`, and the stage
is run by its tasks, which take every record and tell what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from spark_bridge.folding import Folding
from spark_bridge.window_grid import WindowGrid
from streamlog.history.folded import SourceEnd
from streamlog.history.lowering import NotLowered
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.provenance import (
    BUSY_MS,
    MARK,
    Mark,
    Stamps,
    marked_ms_of,
    unpack_mark,
)
from streamlog.processing.serialized import loads_all
from streamlog.records.columns import has_none
from streamlog.serdes import Serde
from streamlog.topology import WholeNumbers
from streamlog.windows.definitions import Windows
from streamlog.windows.emit import UNKNOWN_MS

PIECE, SOURCE = 1, 4
"""Kinds of rows; see `shuffles`."""
CHUNK_ROWS = 200_000
"""So many records are folded at a time."""
BEFORE_ALL_MS = -(1 << 62)
TIME_MS_MAX = 1 << 50
"""Far beyond the year 9999: no sum of two overflows. What is beyond is for the task to refuse."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _Source:
    """How far one source has come in one partition; see `SourceEnd`."""

    records: int = 0
    marks: int = 0
    position: int = -1
    index: int = 0
    time_ms: int = UNKNOWN_MS
    turn_ms: int = UNKNOWN_MS
    quiet_ms: int = BUSY_MS
    marked_ms: int = UNKNOWN_MS
    nulls: int = 0
    late: int = 0

    def hear(self, mark: Mark, marked_ms: int) -> None:
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
            self.time_ms,
            self.turn_ms,
            self.quiet_ms,
            self.marked_ms,
            self.nulls,
            self.late,
        )


class FoldableRows:
    """What one task writes into one repartition topic, for a stage that is lowered."""

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
        """Nothing has been written.

        Args:
            stage: that they are for.
            ranks: of the topic's sources, by identity.
            partitions: of the topic.
            numbers: what is folded.
            value: how values are written in the topic.
            windows: that it is folded in.
        """
        self._stage = stage
        self._ranks = ranks
        self._partitions = partitions
        self._value = value
        self._takes = [None if f is None else _function(f) for f in numbers.fields]
        self._grid = WindowGrid(windows)
        self._folding = Folding(numbers)
        self._sources: dict[int, list[_Source]] = {}
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._batches: list[dict[str, Any]] = []

    def write(self, batch: SinkBatch) -> None:
        """Records of one source, or a mark.

        Raises:
            NotLowered: they are not what was planned.
        """
        if batch.stamps is not None:
            self._write(batch, batch.stamps)
            return
        for headers in batch.headers or []:
            name, data = headers[-1]
            if name != MARK:
                raise NotLowered(f"records of {batch.topic} have no stamps")
            mark, source = unpack_mark(data or b"")
            places = range(self._partitions) if batch.partition is None else [batch.partition]
            for partition in places:
                self._of(source)[partition].hear(mark, marked_ms_of(headers))

    def tell(self, source: bytes, mark: Mark) -> None:
        """A mark into all partitions, if the topic has this source."""
        if source in self._ranks:
            for each in self._of(source):
                each.hear(mark, UNKNOWN_MS)

    def drain(self) -> Iterator[dict[str, Any]]:
        """What there is, as columns by name."""
        batches, self._batches = self._batches, []
        yield from batches

    def finish(self, sources: Sequence[bytes]) -> None:
        """All is written by these sources: how far each of them has come."""
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

    def _write(self, batch: SinkBatch, stamps: Stamps) -> None:
        times = np.array(batch.timestamps, np.int64)
        if len(times) and (times.min() < 0 or times.max() > TIME_MS_MAX):
            raise NotLowered("a timestamp lies before 1970, or beyond the calendar")
        if stamps.turns is not stamps.times and [*stamps.turns] != [*stamps.times]:
            raise NotLowered("records come in another order than that of their stream time")
        tasks = np.array(batch.partitions(self._partitions), np.int32)
        own = self._of(stamps.source)
        heard = np.array([each.time_ms for each in own], np.int64)
        stream_times = np.maximum(np.array(stamps.times, np.int64), heard[tasks])
        self._note(own, tasks, stamps, stream_times)
        columns = {"task": tasks, "timestamp": times, "key": pa.array(batch.keys, pa.binary())}
        values = batch.values
        if has_none(values):
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
        columns |= {"first": first, "last": last, "count": np.ones(len(times), np.int64)}
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

    def _note(self, own: list[_Source], tasks: Any, stamps: Stamps, times: Any) -> None:  # noqa: ANN401 - NumPy's
        """How far the source has come in each partition with these records."""
        last = np.full(self._partitions, -1, np.int64)
        last[tasks] = np.arange(len(tasks))
        counts = np.bincount(tasks, minlength=self._partitions)
        for partition, at in enumerate(last.tolist()):
            if at < 0:
                continue
            each = own[partition]
            each.records += int(counts[partition])
            each.position, each.index = stamps.positions[at], stamps.indexes[at]
            each.time_ms = int(times[at])
            each.turn_ms = max(each.turn_ms, each.time_ms)
            each.quiet_ms = min(each.quiet_ms, 0)

    def _numbers(self, values: Sequence[Any]) -> dict[str, Any]:
        """What is folded of each value."""
        if not any(self._takes):
            return {}
        try:
            found = loads_all(self._value, values)
            taken = [None if take is None else list(map(take, found)) for take in self._takes]
        except Exception as error:
            raise NotLowered(f"a value can't be read, or has no such field: {error}") from error
        return {
            f"number_{at}": _whole(column) for at, column in enumerate(taken) if column is not None
        }


def _whole(found: list[Any]) -> Any:  # noqa: ANN401 - Arrow's, untyped
    if not {int}.issuperset(map(type, found)):
        raise NotLowered("a number that is folded is no whole number")
    try:
        return pa.array(found, pa.int64())
    except OverflowError as error:
        raise NotLowered("a number that is folded does not fit into 64 bits") from error


def _function(field: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    return attrgetter(field) if isinstance(field, str) else field
