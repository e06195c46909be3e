"""Types of rows without a schema: what fits is what pyarrow takes, and a misfit is one row's."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.tables import TableFile
from streamlog.connectors.tables.row_types import RowTypes

WHOLE = st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63])
scalars = st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False) | st.sampled_from("aé")
values: Any = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner),
    max_leaves=4,
)
rows = st.lists(st.dictionaries(st.sampled_from("ab"), values), max_size=6)


def taken_one_by_one(given_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that pyarrow takes behind those before, by trying each."""
    found = list[dict[str, Any]]()
    for row in given_rows:
        tried = [*found, row]
        try:
            for name in row:
                pa.array([each.get(name) for each in tried])
        except (pa.ArrowException, OverflowError, TypeError):
            continue
        found = tried
    return found


@given(rows, st.lists(st.integers(0, 6), max_size=3))
def test_a_file_takes_the_rows_that_pyarrow_takes_however_they_are_cut(
    given_rows: list[dict[str, Any]], cuts: list[int]
) -> None:
    types, left = RowTypes(), list[dict[str, Any]]()
    ends = sorted({*(min(cut, len(given_rows)) for cut in cuts), len(given_rows)})
    for begin, end in zip([0, *ends], ends, strict=False):
        part = given_rows[begin:end]
        why = types.take(part)
        left += [row for at, row in enumerate(part) if at not in why]
    assert left == taken_one_by_one(given_rows)


@given(rows)
def test_what_fits_is_in_the_file_as_it_was(given_rows: list[dict[str, Any]]) -> None:
    bad = TableFile("parquet", "none").misfits(given_rows)
    left = [row for at, row in enumerate(given_rows) if at not in bad]
    file = TableFile("parquet", "none")
    assert not file.misfits(left)
    file.add(left)
    if not any(left):
        return
    read = pq.read_table(io.BytesIO(file.finish())).to_pylist()
    assert [without_nothing(row) for row in read] == [without_nothing(row) for row in left]


def without_nothing(value: Any) -> Any:
    """Return a value without null fields, and null for objects that have no other."""
    if isinstance(value, dict):
        fields = {name: without_nothing(each) for name, each in value.items()}
        return {name: each for name, each in fields.items() if each is not None} or None
    return [without_nothing(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("given_rows", "said"),
    [
        ([{"a": 1}, {"a": "x"}], "'a' is text, and an integer in an earlier row"),
        ([{"a": [1, "x"]}], "'a[]' is text, and an integer"),
        ([{"a": {"b": 1}}, {"a": {"b": True}}], "'a.b' is a boolean, and an integer"),
        ([{"a": {"b": 1}}, {"a": [1]}], "'a' is a list, and an object"),
        ([{"a": 0.5}, {"a": 2**53 + 1}], "'a' has floats and the integer 9007199254740993"),
        ([{"a": 2**63}], "'a' is the integer 9223372036854775808, which 64 bits do not hold"),
    ],
)
def test_a_misfit_names_the_field_and_both_types(
    given_rows: list[dict[str, Any]], said: str
) -> None:
    why = RowTypes().take(given_rows)
    assert [*why] == [len(given_rows) - 1]
    assert said in why[len(given_rows) - 1]
    assert 'format="jsonl"' in why[len(given_rows) - 1]
