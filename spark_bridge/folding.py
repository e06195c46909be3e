"""Folding: counts, sums, minima and maxima of whole numbers by window and key, in Arrow's kernels.

Rows are columns: `window`, `key`, `timestamp` (the largest), `count`, and a `number_<n>` for each
column of the states that is no count. What is folded may be folded again with more of the same, in
any order, so tasks fold before the shuffle and behind it; through it go pieces, each with some
whole windows of one chunk. Rule of the file: a sum that might not fit into 64 bits is none, and
ends in `NotLowered`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamlog.history.lowering import NotLowered
from streamlog.topology import WholeNumbers

PIECE_ROWS = 4_000
"""A piece that has so many rows ends with its window."""
EXPANDED_ROWS = 1_000_000
"""Of windows that overlap, so many rows are made at a time."""
SUM_MAX = float((1 << 63) - (1 << 43))
"""A sum of magnitudes in floating point that is below is right to more than a part in 2^20."""


class Folding:
    """How the rows of one aggregation are folded."""

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
            [("window", pa.int64()), ("key", pa.binary()), *((name, pa.int64()) for name in names)]
        )
        """Of a piece."""

    def into_windows(self, records: pa.Table) -> Iterator[pa.Table]:
        """Records with the `first` and `last` window of each, by `task`, window and key.

        Raises:
            NotLowered: a sum does not fit into 64 bits.
        """
        rows = self.folded(records, ["task", "first", "last", "key"])
        first, last = (rows[name].to_numpy() for name in ("first", "last"))
        counts = last - first + 1
        if not len(first) or counts.max() == 1:
            yield rows.rename_columns(["window" if n == "first" else n for n in rows.column_names])
            return
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
            yield self.folded(expanded.append_column("window", windows), ["task", "window", "key"])
            low = high

    def folded(self, rows: pa.Table, by: Sequence[str]) -> pa.Table:
        """One row for all rows that agree in these columns.

        Raises:
            NotLowered: a sum does not fit into 64 bits.
        """
        kinds = {"timestamp": "max", "count": "sum", **self._kinds}
        for name, kind in self._kinds.items():
            if kind == "sum":
                _check_sums(rows, by, name)
        found = rows.group_by([*by], use_threads=False).aggregate([*kinds.items()])
        return pa.table(
            {name: found[name] for name in by}
            | {name: found[f"{name}_{kind}"] for name, kind in kinds.items()}
        )

    def pieces(self, rows: pa.Table) -> Iterator[tuple[int, int, bytes]]:
        """The rows of a chunk as bytes: for which task, and from which window on."""
        if not rows.num_rows:
            return
        tasks, windows = rows["task"].to_numpy(), rows["window"].to_numpy()
        order = np.lexsort((windows, tasks))
        tasks, windows = tasks[order], windows[order]
        columns = rows.select(self.schema.names).take(pa.array(order)).combine_chunks()
        whole = pa.RecordBatch.from_arrays(
            [pa.concat_arrays(column.chunks) for column in columns.columns], schema=self.schema
        )
        is_new_task = np.diff(tasks) != 0
        borders = np.flatnonzero(is_new_task | (np.diff(windows) != 0)) + 1
        low = 0
        for border in [*borders.tolist(), len(order)]:
            is_last = border == len(order) or is_new_task[border - 1]
            if border > low and (is_last or border - low >= PIECE_ROWS):
                data = whole.slice(low, border - low).serialize().to_pybytes()
                yield int(tasks[low]), int(windows[low]), data
                low = border

    def piece(self, data: bytes) -> pa.RecordBatch:
        """The rows of a piece."""
        return pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)

    def states(self, rows: pa.Table) -> Sequence[Any]:
        """The states that rows stand for."""
        columns = [rows[name].to_numpy().tolist() for name in self._names]
        return list(map(list, zip(*columns, strict=True))) if self._is_row else columns[0]


def _check_sums(rows: pa.Table, by: Sequence[str], name: str) -> None:
    if not rows.num_rows:
        return
    found = pc.min_max(rows[name])
    largest = max(abs(found["min"].as_py()), abs(found["max"].as_py()))
    if largest * rows.num_rows < SUM_MAX:
        return
    magnitudes = pc.abs(pc.cast(rows[name], pa.float64(), safe=False))
    table = pa.table({each: rows[each] for each in by} | {"magnitude": magnitudes})
    sums = table.group_by([*by], use_threads=False).aggregate([("magnitude", "sum")])
    if pc.max(sums["magnitude_sum"]).as_py() >= SUM_MAX:
        raise NotLowered("a sum does not fit into 64 bits")
