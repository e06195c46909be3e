"""Columns of plain values as buffers: what pyarrow makes of the values itself, in both builds."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builds.sources import both

NAME = "streamlog.connect.arrow_columns.value_buffers"
INT64 = st.integers(-(2**63), 2**63 - 1)
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "whole_numbers": (pa.int64(), st.sampled_from([-(2**63), 2**63 - 1, 0]) | INT64),
    "floats": (pa.float64(), st.floats()),
    "truths": (pa.bool_(), st.booleans()),
    "texts": (pa.string(), st.text() | st.sampled_from(["é" * 40, "x" * 300])),
    "contents": (pa.binary(), st.binary() | st.just(b"\0" * 300)),
}
OWN = {"whole_numbers": 1, "floats": 2.5, "truths": True, "texts": "text", "contents": b"bytes"}
OUTSIDE = (2**63, -(2**63) - 1)
OTHERS = [True, 1, 2.5, "text", b"bytes", *OUTSIDE, [], {}, object()]


def array_of(module: ModuleType, name: str, column: list[Any]) -> Any:
    made = getattr(module, name)(column)
    if made is None:
        return None
    buffers = [made.valid, made.data] if made.ends is None else [made.valid, made.ends, made.data]
    # As the columnar format of Arrow has them, and not a byte more.
    bits, count = (len(column) + 7) // 8, len(column)
    assert made.valid is None or len(made.valid) == bits
    assert made.ends is None or len(made.ends) == 4 * (count + 1)
    sizes = {"whole_numbers": 8 * count, "floats": 8 * count, "truths": bits}
    assert len(made.data) == sizes.get(name, len(made.data))
    wrapped = [None if each is None else pa.py_buffer(each) for each in buffers]
    found = pa.Array.from_buffers(KINDS[name][0], len(column), wrapped, made.null_count)
    found.validate(full=True)
    return found


@pytest.mark.parametrize("name", KINDS)
@given(st.data())
def test_a_column_is_what_pyarrow_makes_of_it(name: str, data: st.DataObject) -> None:
    kind, values = KINDS[name]
    column = data.draw(st.lists(st.none() | values, max_size=20))
    for module in both(NAME):
        found, expected = array_of(module, name, column), pa.array(column, kind)
        assert found.null_count == expected.null_count
        assert repr(found.to_pylist()) == repr(expected.to_pylist())


@pytest.mark.parametrize("name", KINDS)
def test_a_column_with_any_other_value_is_left_to_others(name: str) -> None:
    own = OWN[name]
    for module in both(NAME):
        read = getattr(module, name)
        assert read([own, None, own]).null_count == 1
        for other in OTHERS:
            if type(other) is not type(own) or other in OUTSIDE:
                assert read([own, None, other]) is None, other


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    for module in both(NAME):
        with pytest.raises(UnicodeEncodeError):
            module.texts(["a", "\ud800"])


@pytest.mark.parametrize(("name", "content"), [("texts", "é"), ("contents", b"ab")])
def test_what_needs_more_than_32_bits_is_left_to_others(
    monkeypatch: pytest.MonkeyPatch, name: str, content: Any
) -> None:
    # The compiled module has the limit as a constant of C, and nothing smaller can be put there.
    for module in both(NAME):
        if str(module.__file__).endswith(".py"):
            assert module._ENDS_MAX == 2**31 - 1
            monkeypatch.setattr(module, "_ENDS_MAX", 4)
            read = getattr(module, name)
            assert read([content, None, content]) is not None, "4 bytes"
            assert read([content, content, content]) is None, "6 bytes"
            assert read([content[:1] * 5]) is None
