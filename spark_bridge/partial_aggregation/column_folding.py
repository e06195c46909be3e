"""Folding: folds rows of whole numbers in columns, and packs them as pieces for a shuffle.

Rows with equal windows and keys become one row, with the sum, the least or the largest of each
number. `RowGroups` finds such rows by NumPy, and keys stay in Arrow's dictionaries. Pure.

Rule: a sum that does not fit into 64 bits raises `NotLowered`; no number wraps around unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamlog.history.lowering import NotLowered
from streamlog.nodes.stream_nodes import WholeNumbers

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


def compacted(rows: pa.Table) -> pa.Table:
    """Leave out the keys of earlier rows: otherwise all keys that there ever were would stay."""
    if not rows.num_rows:
        return rows
    ids, keys = _used(*_numbered(rows["key"]))
    column = pa.DictionaryArray.from_arrays(pa.array(ids), keys)
    return rows.set_column(rows.column_names.index("key"), "key", column)


def contents(column: pa.ChunkedArray) -> list[bytes]:
    """Return the keys of rows; rows of one key share an object."""
    ids, keys = _used(*_numbered(column))
    return list(map(keys.to_pylist().__getitem__, ids.tolist()))
