from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC
from enum import Enum
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.dsl.value_types import UNKNOWN, Shape, TypedPackedSerde, element, item, return_shape
from streamlog.errors import SerdeError
from streamlog.serdes import PACKED, serde_for

T = TypeVar("T")


class Color(Enum):
    RED = 1


@dataclass
class Sale:
    shop: str


def typed(_: str) -> Sale:
    return Sale("")


def pair(_k: str, _v: str) -> tuple[int, Sale]:
    return 1, Sale("")


def many(_: str) -> Iterator[Sale]:
    yield Sale("")


def generic(value: T) -> T:
    return value


def anything(_: str) -> Any: ...


def nothing(_: str) -> None: ...


def test_a_return_type_is_read_from_the_annotation() -> None:
    assert return_shape(typed) == Shape(Sale)
    assert return_shape(Sale) == Shape(Sale)
    assert return_shape(pair, of=element(0)) == Shape(int)
    assert return_shape(pair, of=element(1)) == Shape(Sale)
    assert return_shape(many, of=item) == Shape(Sale)
    for fn in (lambda v: v, generic, anything, nothing):
        assert return_shape(fn) == UNKNOWN
    assert return_shape(typed, of=element(0)) == UNKNOWN


def test_a_shape_uses_its_given_serde_or_its_type_s() -> None:
    own = serde_for(str)
    assert Shape(int).serde is serde_for(int)
    assert Shape(int, own).serde is own
    assert UNKNOWN.serde is PACKED


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes(timezones=st.just(UTC))
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.frozensets(st.text() | st.integers(), max_size=3)
)
hashable = st.recursive(scalars, lambda inner: st.tuples(inner, inner), max_leaves=4)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner)
        | st.sets(st.text() | st.integers(), max_size=3)
    ),
    max_leaves=12,
)


@given(values)
def test_plain_values_round_trip(value: Any) -> None:
    decoded = PACKED.loads(PACKED.dumps(value))
    assert decoded == value
    assert type(decoded) is type(value)


@given(hashable)
def test_equal_keys_have_equal_bytes(key: Any) -> None:
    assert PACKED.dumps(key) == PACKED.dumps(PACKED.loads(PACKED.dumps(key)))


@pytest.mark.parametrize("value", [Sale("a"), [Sale("a")], {"a": {Color.RED}}, Color.RED, "\ud800"])
def test_values_that_would_not_round_trip_are_refused(value: Any) -> None:
    with pytest.raises(SerdeError):
        PACKED.dumps(value)
    with pytest.raises(SerdeError, match="annotate what the function before returns"):
        PACKED.dumps(Sale("a"))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xc7\x01\x09x"])
def test_invalid_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(SerdeError):
        PACKED.loads(data)
    with pytest.raises(SerdeError):
        TypedPackedSerde[Any](Sale).loads(data)


def test_states_keep_their_declared_types() -> None:
    serde = TypedPackedSerde[Any](tuple[tuple[int, str], Sale])
    assert serde.loads(serde.dumps(((1, "a"), Sale("x")))) == ((1, "a"), Sale("x"))
    with pytest.raises(SerdeError, match=r"tuple.* can't be written as MessagePack"):
        serde.dumps(object())
