"""Values of columns: what `to_pylist` returns, for any type, with nulls, of any slice."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.tables.array_values import texts_of, values_of

KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text()),
    (pa.string(), st.text("abc")),
    (pa.binary(), st.binary()),
    (pa.large_string(), st.text()),
    (pa.date32(), st.dates()),
    (pa.list_(pa.int8()), st.lists(st.integers(0, 9), max_size=2)),
]
columns: Any = st.one_of(
    *(st.tuples(st.just(kind), st.lists(st.none() | each, max_size=20)) for kind, each in KINDS)
)


@given(columns, st.integers(0, 9), st.integers(0, 20))
def test_values_are_those_of_arrow(made: tuple[Any, list[Any]], start: int, count: int) -> None:
    kind, given_values = made
    column = pa.array(given_values, kind).slice(start, count)
    found = values_of(column)
    assert repr(found) == repr(column.to_pylist())
    assert [*map(type, found)] == [*map(type, column.to_pylist())]


def test_a_column_of_nulls_alone_has_no_contents() -> None:
    for kind, _ in KINDS:
        assert values_of(pa.nulls(3, kind)) == [None] * 3
        assert values_of(pa.nulls(0, kind)) == []


@given(
    st.lists(st.none() | st.binary() | st.text().map(str.encode), max_size=20), st.integers(0, 9)
)
def test_bytes_are_text_if_they_are_utf8_and_else_base64(given_values: list[Any], at: int) -> None:
    column = pa.array(given_values, pa.binary()).slice(at)
    for value, text in zip(given_values[at:], texts_of(column), strict=True):
        if value is None:
            assert text is None
        elif value.decode(errors="replace").encode() == value:
            assert text.encode() == value
        else:
            assert base64.b64decode(text, validate=True) == value
