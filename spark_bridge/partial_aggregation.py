"""Partial aggregation: windows of whole numbers folded in columns, before and after a shuffle.

`FoldableRows` takes whole columns from a task upstream, assigns windows (`WindowGrid`: window `n`
starts `n` steps after the first one) and folds counts, sums, minima and maxima (`Folding`) before
the shuffle. `FoldedReader` folds the pieces again after the shuffle, once no later piece can hold
rows of their windows. Folds can be repeated in any order. Memory holds the unfinished windows of
the pieces that were read, one row per key.

Rule: a number that does not meet the conditions (not whole, beyond 64 bits, unreadable) raises
`NotLowered`. Tasks then run the stage record by record, and report an error of the record.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamlog.history.lowering import NotLowered
from streamlog.history.plan import Plan, Stage
from streamlog.history.stage_task import SourceEnd
from streamlog.history.staging import sources_of
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
from streamlog.processing.windows.windowed_aggregate import FoldedWindow
from streamlog.records.record_columns import has_none
from streamlog.serdes import Serde
from streamlog.windows.definitions import Hopping, Tumbling, Windows
from streamlog.windows.emit import UNKNOWN_MS, Source

PIECE_ROWS = 4_000
"""A piece of at least this many rows ends with its current window."""
EXPANDED_ROWS = 1_000_000
"""The number of rows that are repeated for overlapping windows at a time."""
SUM_MAX = float((1 << 63) - (1 << 43))
"""Below this limit, a floating-point sum of magnitudes has a relative error under 2^-20, so the
exact sum fits into 64 bits."""
KEY = pa.dictionary(pa.int32(), pa.binary())
"""Type of keys: most have rows in many windows."""
CODES_MAX = 1 << 62
ROWS_OF_32_BITS = 1 << 31
CODES_PER_ROW_MAX = 16
"""The most codes per row for which a table of all codes is used, and no sort."""


class Folding:
    """Folds the rows of one aggregation."""

    def __init__(self, numbers: WholeNumbers) -> None:
        self._kinds = {
            f"number_{at}": each.name
            for at, each in enumerate(numbers.columns)
            if each.name != "count"
        }
        self._names = [
            "count" if each.name == "count" else f"number_{at}"
            for at, each in enumerate(numbers.columns)
        ]
        self._is_row = numbers.is_row
        names = ["timestamp", "count", *self._kinds]
        self.schema = pa.schema(
            [("window", pa.int64()), ("key", KEY), *((name, pa.int64()) for name in names)]
        )
        """Schema of a piece."""

    def into_windows(self, records: pa.Table) -> Iterator[pa.Table]:
        """Fold records by `task`, window and key.

        Each has the number of its `first` window, and how many `more` follow it.

        Raises:
            NotLowered: a sum does not fit into 64 bits.
        """
        # Fold before the rows are repeated for each window: records of a key that lie in the same
        # windows become one row, so fewer rows are repeated.
        rows = self.folded(records, ["task", "first", "more"])
        first, counts = rows["first"].to_numpy(), rows["more"].to_numpy() + 1
        if not len(first) or counts.max() == 1:
            yield rows.rename_columns(["window" if n == "first" else n for n in rows.column_names])
            return
        # Rows 0 and 1 lie in 2 and in 3 windows: `counts` is [2, 3], `ends` is [2, 5].
        # 1. Both fit into one part: `part` is [0, 1], and its rows repeat as [0, 0, 1, 1, 1].
        # 2. `nth`, the number of a window within its row, is [0, 1, 0, 1, 2].
        # 3. If row 1 exceeded EXPANDED_ROWS, it would be a part of its own: at least one row.
        ends = np.cumsum(counts)
        low = 0
        while low < len(first):
            before = int(ends[low - 1]) if low else 0
            high = max(int(np.searchsorted(ends, before + EXPANDED_ROWS, "right")), low + 1)
            part = np.arange(low, high)
            repeats = counts[part]
            nth = np.arange(repeats.sum()) - np.repeat(ends[part] - repeats - before, repeats)
            expanded = rows.take(pa.array(np.repeat(part, repeats)))
            windows = pa.array(np.repeat(first[part], repeats) + nth)
            yield self.folded(expanded.append_column("window", windows), ["task", "window"])
            low = high

    def folded(self, rows: pa.Table, by: Sequence[str], *, sorts: bool = False) -> pa.Table:
        """Fold the rows that are equal in the columns `by`, which are numbers, and in `key`.

        The rows that are left come in the order of these numbers. Rows that are equal in all of
        them come in any order or, with `sorts`, by key. Keys are in a dictionary.

        Raises:
            NotLowered: a sum does not fit into 64 bits.
        """
        if not rows.num_rows:
            return rows.select([*by, "key", "timestamp", "count", *self._kinds])
        ids, keys = _numbered(rows["key"])
        if sorts:
            ids, keys = _by_key(ids, keys)
        groups = RowGroups([*(rows[name].to_numpy() for name in by), ids])
        columns = {name: rows[name].to_numpy()[groups.rows] for name in by}
        columns["key"] = pa.DictionaryArray.from_arrays(pa.array(ids[groups.rows]), keys)
        for name, kind in {"timestamp": "max", "count": "sum", **self._kinds}.items():
            columns[name] = groups.fold(rows[name].to_numpy(), kind)
        return pa.table(columns)

    def pieces(self, rows: pa.Table) -> Iterator[tuple[int, int, bytes]]:
        """Yield the rows of a chunk, in the order of `into_windows`, as pieces.

        Each is its task, its first window, and bytes.
        """
        if not rows.num_rows:
            return
        tasks, windows = rows["task"].to_numpy(), rows["window"].to_numpy()
        ids, keys = _numbered(rows["key"])
        names = [name for name in self.schema.names if name != "key"]
        columns = {name: rows[name].to_numpy() for name in names}
        # A piece may end only where the window changes, and must end where the task does. Its rows
        # are in the order of their windows, and it is sorted by the end of its first one.
        is_new_task = np.diff(tasks) != 0
        borders = np.flatnonzero(is_new_task | (np.diff(windows) != 0)) + 1
        low = 0
        for border in [*borders.tolist(), len(tasks)]:
            is_last = border == len(tasks) or is_new_task[border - 1]
            if is_last or border - low >= PIECE_ROWS:
                part = slice(low, border)
                data = _packed({name: columns[name][part] for name in names}, ids[part], keys)
                yield int(tasks[low]), int(windows[low]), data
                low = border

    def piece(self, data: bytes) -> pa.RecordBatch:
        """Decode the rows of a piece."""
        found = pa.ipc.open_stream(data).read_next_batch()
        least: Mapping[bytes, bytes] = found.schema.metadata
        columns = {
            name: pa.array(found[name].to_numpy().astype(np.int64) + int(least[name.encode()]))
            for name in self.schema.names
            if name != "key"
        }
        keys = found["key"]
        ids = pa.array(keys.indices.to_numpy().astype(np.int32))
        columns["key"] = pa.DictionaryArray.from_arrays(ids, keys.dictionary)
        arrays = [columns[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def states(self, rows: pa.Table) -> Sequence[Any]:
        """Return the aggregation states of the rows."""
        columns = [rows[name].to_numpy().tolist() for name in self._names]
        return list(map(list, zip(*columns, strict=True))) if self._is_row else columns[0]


class RowGroups:
    """The groups of rows that are equal in some columns of numbers, in the order of these numbers.

    Every row gets the number of its group, so that NumPy folds columns by it, without a hash table
    of the rows.
    """

    def __init__(self, columns: Sequence[Any]) -> None:
        """Group rows; the columns have at least one, and the first one counts most."""
        count = len(columns[0])
        codes, size = np.zeros(count, np.int64), 1
        for column in columns:
            # 1. Windows 7, 9 and 8 of tasks 0, 1 and 1 lie in spans of 3 and 2 numbers.
            # 2. Counted from the least of each, (task, window) is (0, 0), (1, 2) and (1, 1).
            # 3. Like digits, these make the codes 0, 5 and 4 out of 6.
            digits, span = _digits(column)
            if size * span > CODES_MAX:
                codes, size = _digits(codes)
            codes, size = codes * span + digits, size * span
        if size <= CODES_PER_ROW_MAX * count:
            # A table of all codes costs less than to sort those of the rows.
            table = np.full(size, -1, np.int32 if count < ROWS_OF_32_BITS else np.int64)
            table[codes] = np.arange(count)
            found = np.flatnonzero(np.greater_equal(table, 0))
            self.rows = table[found]
            """A row of each group."""
            if len(found) < count:
                table[found] = np.arange(len(found))
                self._numbers = table[codes].astype(np.intp)
        else:
            found, self._numbers = np.unique(codes, return_inverse=True)
            self.rows = np.empty(len(found), np.int64)
            self.rows[self._numbers] = np.arange(count)

    def fold(self, column: Any, kind: str) -> Any:  # noqa: ANN401 - NumPy's
        """Return the sum, the least or the largest number of each group.

        Raises:
            NotLowered: a sum does not fit into 64 bits.
        """
        found = column[self.rows]
        if len(found) == len(column):
            return found  # Every row is a group of its own, and needs no number.
        if kind == "sum":
            self._check_sums(column)
            found[:] = 0
            np.add.at(found, self._numbers, column)
        else:
            function = np.maximum if kind == "max" else np.minimum
            function.at(found, self._numbers, column)
        return found

    def _check_sums(self, column: Any) -> None:  # noqa: ANN401 - NumPy's
        # 1. The usual case costs one pass: even if every row were the largest, the sum would fit.
        # 2. Otherwise sum the magnitudes of each group as floats, which can't overflow. Their
        #    rounding is what SUM_MAX leaves room for.
        largest = max(abs(int(column.min())), abs(int(column.max())))
        if largest * len(column) < SUM_MAX:
            return
        # As floats first: the absolute value of -2^63 is beyond 64 bits.
        magnitudes = np.abs(column.astype(np.float64))
        if np.bincount(self._numbers, magnitudes).max() >= SUM_MAX:
            raise NotLowered("a sum does not fit into 64 bits")


def _digits(column: Any) -> tuple[Any, int]:  # noqa: ANN401 - NumPy's
    """Return numbers from 0 on in the order of the column's, and how many there may be."""
    least = int(column.min())
    span = int(column.max()) - least + 1
    if span <= len(column):
        return column - least, span
    values, digits = np.unique(column, return_inverse=True)
    return digits, len(values)


def _numbered(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return the number of each row's key, and the keys by number."""
    # Chunks of a column share one dictionary: keys need not lie in one buffer, of 2 GB at most.
    encodes = column.type == pa.binary()
    chunks = (column.dictionary_encode() if encodes else column.unify_dictionaries()).chunks
    return np.concatenate([each.indices.to_numpy() for each in chunks]), chunks[0].dictionary


def _by_key(ids: Any, keys: Any) -> tuple[Any, Any]:  # noqa: ANN401 - NumPy's and Arrow's
    """Return numbers in the order of the keys, and the keys by these."""
    order = pc.sort_indices(keys).to_numpy()
    ranks = np.empty(len(order), ids.dtype)
    ranks[order] = np.arange(len(order))
    return ranks[ids], keys.take(pa.array(order))


def _used(ids: Any, keys: Any) -> tuple[Any, Any]:  # noqa: ANN401 - the same
    """Leave out the keys without a row; return other numbers, in the order of those before."""
    used = np.flatnonzero(np.bincount(ids))
    numbers = np.empty(int(used[-1]) + 1, np.int32)
    numbers[used] = np.arange(len(used))
    return numbers[ids], keys.take(pa.array(used))


def _packed(columns: Mapping[str, Any], ids: Any, keys: Any) -> bytes:  # noqa: ANN401 - the same
    """Return the rows of a piece as bytes: each number in as few as the largest needs.

    Spark copies a piece some times on its way, and most numbers are counts and times of one hour.
    """
    ids, keys = _used(ids, keys)
    arrays = {"key": pa.DictionaryArray.from_arrays(pa.array(ids.astype(_width(len(keys)))), keys)}
    least = {name: int(column.min()) for name, column in columns.items()}
    for name, column in columns.items():
        # Beyond 64 bits the difference wraps around, and so does the sum in `Folding.piece`.
        kind = _width(int(column.max()) - least[name])
        arrays[name] = pa.array((column - least[name]).astype(kind))
    metadata = {name: str(each) for name, each in least.items()}
    batch = pa.record_batch(arrays, metadata=metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _width(largest: int) -> Any:  # noqa: ANN401 - NumPy's
    """Return the narrowest type for the numbers from 0 to `largest`."""
    return np.min_scalar_type(largest)


class WindowGrid:
    """Numbers the windows of one definition."""

    def __init__(self, windows: Windows) -> None:
        """Prepare the grid of tumbling or hopping windows.

        Raises:
            NotLowered: windows of this kind can't be numbered.
        """
        if not isinstance(windows, Tumbling | Hopping):
            raise NotLowered(f"{windows.description} are not lowered")
        self._size_ms = windows.size_ms
        self._grace_ms = windows.grace_ms
        self._step_ms = windows.step_ms if isinstance(windows, Hopping) else windows.size_ms
        self._offset_ms = windows.offset_ms if isinstance(windows, Tumbling) else 0

    def numbers(self, times_ms: Any, stream_times_ms: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - NumPy's
        """Return the first open and the last window of each record, and how many it is late for.

        The first is greater than the last if a record is late for all of its windows.
        """
        # Window n is [n * step + offset, n * step + offset + size).
        # 1. The last window of a time is the largest n that starts at it or before.
        # 2. The first one is the smallest n that ends after it: n > (time - offset - size) / step.
        # 3. A window is open while stream time is before its end and the grace, so the first open
        #    one is found as in 2, with stream time minus the grace.
        last = (times_ms - self._offset_ms) // self._step_ms
        first = (times_ms - self._offset_ms - self._size_ms) // self._step_ms + 1
        # No window starts before 1970; with an offset, the window that contains 1970 is cut there.
        first = np.maximum(first, -1 if self._offset_ms else 0)
        passed_ms = stream_times_ms - self._grace_ms - self._size_ms - self._offset_ms
        first_open = np.maximum(first, passed_ms // self._step_ms + 1)
        return first_open, last, np.minimum(first_open, last + 1) - first

    def ends(self, numbers: Any) -> Any:  # noqa: ANN401 - NumPy's
        """Return the ends of windows, ms since 1970."""
        return numbers * self._step_ms + (self._offset_ms + self._size_ms)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return start and end of a window, ms since 1970."""
        start_ms = number * self._step_ms + self._offset_ms
        return max(start_ms, 0), start_ms + self._size_ms


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
            self._records.add(batch, batch.stamps, tasks, has_numbers=any(self._takes))
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
        if not any(self._takes):
            return {}
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


HELD_ROWS = 200_000
"""The least number of rows from which pieces are folded together."""
PART_ROWS = 20_000
"""The most rows of a window that are yielded at a time."""

_decode = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def numbers_of(stage: Stage) -> WholeNumbers:
    """Return the columns of a lowered stage's states.

    Raises:
        NotLowered: the stage is not lowered.
    """
    if stage.lowering is None:
        raise NotLowered(f"stage {stage.number} is not lowered")
    return stage.lowering.numbers(stage.subtopology)


class FoldedReader:
    """Reads and folds the rows of one task of a lowered stage, in order."""

    def __init__(self, plan: Plan, stage: Stage, batches: Iterator[pa.RecordBatch]) -> None:
        if stage.lowering is None:
            raise NotLowered(f"stage {stage.number} is not lowered")
        self._sources = sources_of(stage.subtopology, stage.lowering.topic, plan.counts)
        self._folding = Folding(numbers_of(stage))
        self._grid = WindowGrid(stage.lowering.aggregate(stage.subtopology).windows)
        self._rows = _rows(batches)
        self._next = next(self._rows, None)
        if self._next is None:
            raise RuntimeError("Spark has started a task of a history without its first row")
        self.partition: int = self._next["task"]
        """Partition of the task."""

    def read_ends(self) -> Mapping[Source, SourceEnd]:
        """Return how far each source has come; call it before `windows`.

        Raises:
            NotLowered: a source has no row.
        """
        # Rows of sources have the turn BEFORE_ALL_MS, so Spark sorts them before all pieces.
        ends: dict[Source, SourceEnd] = {}
        while (row := self._next) is not None and row["kind"] != PIECE:
            if row["kind"] == SOURCE:
                ends[self._sources[row["rank"]]] = SourceEnd(*_decode(row["value"]))
            self._take()
        if missing := [source for source in self._sources if source not in ends]:
            raise NotLowered(f"source {missing[0]} has no row")
        return {source: ends[source] for source in self._sources}

    def windows(self) -> Iterator[FoldedWindow]:
        """Yield all windows in the order of their ends, rows by key; large windows in parts.

        Raises:
            NotLowered: a sum does not fit into 64 bits.
        """
        held = self._folding.schema.empty_table()
        while self._next is not None:
            held = self._more(held)
            below = None if self._next is None else self._next["turn"]
            held = self._folding.folded(held, ["window"], sorts=True)
            if below is None:
                yield from self._whole(held)
                return
            # Pieces are sorted by the end of their first window, here below 300 for the next one.
            # 1. No later piece has rows of a window that ends before 300: such windows are whole.
            # 2. The window that ends at 300 may have rows in both: it is held, hence `<`.
            is_whole = self._ends(held) < below
            yield from self._whole(held.filter(pa.array(is_whole)))
            held = _compacted(held.filter(pa.array(~is_whole)))

    def _more(self, held: pa.Table) -> pa.Table:
        """Add pieces until folding pays: at least until the number of rows has doubled."""
        # Folding costs a pass over the held rows too: by doubling, each row is folded a few times
        # and not once per piece.
        wanted = max(HELD_ROWS, 2 * held.num_rows)
        pieces, count = [*held.to_batches()], held.num_rows
        while self._next is not None and count < wanted:
            pieces.append(self._folding.piece(self._next["value"]))
            count += pieces[-1].num_rows
            self._take()
        return pa.Table.from_batches(pieces, self._folding.schema)

    def _whole(self, rows: pa.Table) -> Iterator[FoldedWindow]:
        """Yield windows; the rows come in the order of (window, key)."""
        if not rows.num_rows:
            return
        windows = rows["window"].to_numpy()
        borders = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(windows)]
        raws, timestamps = _contents(rows["key"]), rows["timestamp"].to_numpy().tolist()
        states = self._folding.states(rows)
        for low, end in pairwise(borders):
            bounds = self._grid.bounds(int(windows[low]))
            for at in range(low, end, PART_ROWS):
                part = slice(at, min(at + PART_ROWS, end))
                yield FoldedWindow(*bounds, raws[part], timestamps[part], states[part])

    def _ends(self, rows: pa.Table) -> Any:  # noqa: ANN401 - NumPy's
        return self._grid.ends(rows["window"].to_numpy())

    def _take(self) -> None:
        self._next = next(self._rows, None)
        if self._next is not None and self._next["task"] != self.partition:
            raise RuntimeError(
                "Spark has put rows of two tasks of a history into one partition: check for a "
                "plugin or setting that changes how it repartitions"
            )


def _compacted(rows: pa.Table) -> pa.Table:
    """Leave out the keys of earlier rows: otherwise all keys that there ever were would stay."""
    if not rows.num_rows:
        return rows
    ids, keys = _used(*_numbered(rows["key"]))
    column = pa.DictionaryArray.from_arrays(pa.array(ids), keys)
    return rows.set_column(rows.column_names.index("key"), "key", column)


def _contents(column: pa.ChunkedArray) -> list[bytes]:
    """Return the keys of rows; rows of one key share an object."""
    ids, keys = _used(*_numbered(column))
    return list(map(keys.to_pylist().__getitem__, ids.tolist()))


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.select(["task", "kind", "turn", "rank", "value"]).to_pylist()
