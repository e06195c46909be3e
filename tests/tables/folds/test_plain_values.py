"""Copies of plain values against round trips through JSON and MessagePack."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.serdes import JsonSerde
from streamlog.tables.folds.plain_values import OTHER, copied

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


@given(VALUES)
def test_a_copy_equals_a_serialization_round_trip(value: object) -> None:
    found = copied(value)
    if found is OTHER:
        return
    serde = JsonSerde(Any)
    assert repr(found) == repr(serde.loads(serde.dumps(value)))
    assert repr(found) == repr(msgspec.msgpack.decode(msgspec.msgpack.encode(value)))


@given(VALUES)
def test_a_copy_shares_nothing_with_the_original(value: object) -> None:
    found = copied(value)
    before = repr(found)
    _spoil(value)
    assert repr(found) == before


class _Text(str):
    __slots__ = ()


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def _in_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "value",
    [
        {1: 2},
        {"a": (1, 2)},
        {"a": 2**63},
        {"a": -(2**63) - 1},
        {"a": float("nan")},
        {"a": float("-inf")},
        {"a": b"bytes"},
        {"ä": 1},
        {"a": "\ud800"},
        {"a": _Text("b")},
        {_Text("a"): 1},
        {"a": {1, 2}},
        {"a": object()},
        _nested(40),
        _in_itself(),
    ],
)
def test_values_that_may_not_round_trip_are_not_copied(value: object) -> None:
    assert copied(value) is OTHER


def test_64_bit_numbers_are_copied() -> None:
    assert copied([2**63 - 1, -(2**63), 1.5, -0.0]) == [2**63 - 1, -(2**63), 1.5, -0.0]


def _spoil(value: object) -> None:
    if isinstance(value, dict):
        for part in list(value.values()):
            _spoil(part)
        value["spoilt"] = True
    elif isinstance(value, list):
        for part in list(value):
            _spoil(part)
        value.append("spoilt")
