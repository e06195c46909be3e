"""Folding in columns against plain Python, over random rows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.partial_aggregation import column_folding
from spark_bridge.partial_aggregation.column_folding import Folding, RowGroups
from streamlog.history.lowering import NotLowered
from streamlog.nodes.stream_nodes import Aggregator, WholeNumbers

KINDS = ("sum", "min", "max", "count")
NUMBERS = WholeNumbers(
    tuple(Aggregator(kind) for kind in KINDS), (len, len, len, None), is_row=True
)
INT64 = st.integers(-(2**63), 2**63 - 1)
ROW = st.tuples(
    st.integers(0, 3),
    st.sampled_from([0, 1, 2, 1 << 40]) | st.integers(0, 30),
    st.sampled_from([0, 0, 0, 1, 4]),
    st.sampled_from([b"", b"a", b"b", b"\xff", b"ab"]) | st.binary(max_size=2),
    st.integers(0, 2**50),
    st.integers(-(2**40), 2**40),
    INT64,
    INT64,
)
"""Task, first window, how many follow, key, timestamp, and the numbers of a sum, min and max."""
NAMES = ("task", "first", "more", "key", "timestamp", "number_0", "number_1", "number_2")
Group = tuple[int, int, bytes]


def records(rows: list[Any], chunks: int) -> pa.Table:
    columns = dict(zip(NAMES, zip(*rows, strict=True), strict=True)) | {"count": [1] * len(rows)}
    whole = pa.table(
        {name: pa.array(c, pa.binary() if name == "key" else None) for name, c in columns.items()}
    )
    size = -(-len(rows) // chunks)
    return pa.concat_tables([whole.slice(at, size) for at in range(0, len(rows), size)])


def expected(rows: list[Any]) -> dict[Group, tuple[int, ...]]:
    """Return the largest timestamp, sum, least, largest and count of each group."""
    found: dict[Group, list[Any]] = defaultdict(list)
    for task, first, more, key, *numbers in rows:
        for window in range(first, first + more + 1):
            found[task, window, key].append(numbers)
    return {
        group: (
            max(each[0] for each in of),
            sum(each[1] for each in of),
            min(each[2] for each in of),
            max(each[3] for each in of),
            len(of),
        )
        for group, of in found.items()
    }


def groups_of(table: pa.Table | pa.RecordBatch, task: int) -> list[tuple[Group, tuple[int, ...]]]:
    names = ("timestamp", "number_0", "number_1", "number_2", "count")
    return [
        ((task, row["window"], row["key"]), tuple(row[name] for name in names))
        for row in table.to_pylist()
    ]


@given(st.lists(ROW, min_size=1, max_size=60), st.integers(1, 3), st.sampled_from([1, 5, 4_000]))
def test_pieces_are_what_plain_python_folds(rows: list[Any], chunks: int, piece_rows: int) -> None:
    columns = Folding(NUMBERS)
    found: list[tuple[Group, tuple[int, ...]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_folding, "PIECE_ROWS", piece_rows)
        patch.setattr(column_folding, "EXPANDED_ROWS", 10)
        for whole in columns.into_windows(records(rows, chunks)):
            for task, window, data in columns.pieces(whole):
                piece = columns.piece(data)
                assert piece.schema == columns.schema
                windows = piece["window"].to_pylist()
                assert windows == sorted(windows)
                assert windows[0] == window
                found += groups_of(piece, task)
    # A group may lie in several pieces: the reader folds them again.
    pieces = pa.concat_tables(
        [records([(group[0], group[1], 0, group[2], *n[:4])], 1) for group, n in found]
    )
    counts = pa.array([numbers[4] for _, numbers in found])
    pieces = pieces.set_column(pieces.column_names.index("count"), "count", counts)
    again = columns.folded(pieces.rename_columns({"first": "window"}), ["task", "window"])
    tasks = again["task"].to_pylist()
    folded = [
        ((task, group[1], group[2]), numbers)
        for task, (group, numbers) in zip(tasks, groups_of(again, 0), strict=True)
    ]
    assert dict(folded) == expected(rows)
    assert len(folded) == len(expected(rows))


@given(st.lists(ROW, min_size=1, max_size=60))
def test_sorted_rows_come_by_window_and_key(rows: list[Any]) -> None:
    """The order of rows is that of (window, key), with keys compared as bytes."""
    table = records(rows, 2).rename_columns({"first": "window"})
    columns = Folding(NUMBERS).folded(table, ["window"], sorts=True)
    found = [(row["window"], row["key"]) for row in columns.to_pylist()]
    assert found == sorted({(row[1], row[3]) for row in rows})


@given(st.lists(st.tuples(INT64, INT64, st.integers(0, 2)), min_size=1, max_size=40))
def test_groups_come_in_the_order_of_their_numbers(rows: list[tuple[int, int, int]]) -> None:
    table = pa.table(list(map(pa.array, zip(*rows, strict=True))), names=["a", "b", "c"])
    groups = RowGroups([table[name].to_numpy() for name in ("a", "b", "c")])
    assert [rows[at] for at in groups.rows.tolist()] == sorted(set(rows))


@pytest.mark.parametrize("number", [2**62, -(2**63)])
def test_a_sum_beyond_64_bits_is_refused(number: int) -> None:
    rows = [(0, 0, 0, b"k", 0, number, 0, 0)] * 2
    with pytest.raises(NotLowered, match="64 bits"):
        next(Folding(NUMBERS).into_windows(records(rows, 1)))


def test_large_numbers_of_different_keys_are_no_sum_beyond_64_bits() -> None:
    rows = [(0, 0, 0, b"%d" % at, 0, 2**61, 0, 0) for at in range(8)] * 2
    (found,) = Folding(NUMBERS).into_windows(records(rows, 1))
    assert found["number_0"].to_pylist() == [2**62] * 8
