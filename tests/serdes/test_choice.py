"""Each serde's bytes, its refusals, and how a type finds its serde."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, NewType, TypedDict

import msgspec
import pytest

from streamlog.durations import moment
from streamlog.errors import SerdeError
from streamlog.record import Late, Windowed
from streamlog.serdes import (
    BytesSerde,
    FloatSerde,
    IntSerde,
    JsonSerde,
    StrSerde,
    WindowedSerde,
    serde_for,
    windowed_bytes,
)


@dataclass
class Sale:
    shop: str
    amount: float
    sold_at: datetime | None = None


@dataclass
class Tree:
    children: list[Tree]


class Point(TypedDict):
    x: int


class Opened(msgspec.Struct, tag=True):
    by: str


class Closed(msgspec.Struct, tag=True):
    by: str


class Colour(enum.Enum):
    RED = "red"


class Socket:
    """A class that can't be written as JSON."""


NAIVE = datetime(2025, 1, 1)  # noqa: DTZ001 - refused because it is naive
UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("declared", "serde"),
    [
        (str, StrSerde),
        (bytes, BytesSerde),
        (int, IntSerde),
        (float, FloatSerde),
        (bool, JsonSerde),
        (int | None, IntSerde),
        (UserId, IntSerde),
        (Annotated[str, "a note"], StrSerde),
        (Annotated[int, msgspec.Meta(gt=3)], JsonSerde),
        (int | str, JsonSerde),
        (Sale, JsonSerde),
        (Windowed[str], WindowedSerde),
        (Late[Sale], JsonSerde),
    ],
)
def test_a_type_finds_its_serde(declared: Any, serde: type) -> None:
    assert isinstance(serde_for(declared), serde)
    assert serde_for(declared) is serde_for(declared)


@pytest.mark.parametrize(
    ("declared", "value", "data"),
    [
        (str, "grün", b"gr\xc3\xbcn"),
        (bytes, b"\x00\xff", b"\x00\xff"),
        (int, -2, b"\xff\xff\xff\xff\xff\xff\xff\xfe"),
        (float, 1.0, b"\x3f\xf0\x00\x00\x00\x00\x00\x00"),
        (bool, True, b"true"),
        (Sale, Sale("ulm", 3.5), b'{"shop":"ulm","amount":3.5,"sold_at":null}'),
        (Point, {"x": 1}, b'{"x":1}'),
        (Opened | Closed, Closed("me"), b'{"type":"Closed","by":"me"}'),
        (list[int] | None, [1, 2], b"[1,2]"),
        (dict[str, float], {"a": 1.5}, b'{"a":1.5}'),
        (tuple[int, str], (1, "a"), b'[1,"a"]'),
        (Colour, Colour.RED, b'"red"'),
        (Literal["a", 1], 1, b"1"),
        (Any, [None], b"[null]"),
        (datetime, datetime(2025, 1, 1, tzinfo=UTC), b'"2025-01-01T00:00:00Z"'),
        (Tree, Tree([Tree([])]), b'{"children":[{"children":[]}]}'),
        (
            Late[Sale],
            Late(Sale("u", 1.0), timedelta(seconds=2), moment(60_000)),
            (
                b'{"value":{"shop":"u","amount":1.0,"sold_at":null},"late_by":"PT2S",'
                b'"window_end":"1970-01-01T00:01:00Z"}'
            ),
        ),
        (
            Windowed[str],
            Windowed("A", moment(5), moment(15)),
            b"A\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x0f",
        ),
    ],
)
def test_values_are_written_in_their_documented_format(
    declared: Any, value: object, data: bytes
) -> None:
    serde = serde_for(declared)
    assert serde.dumps(value) == data
    assert serde.loads(data) == value


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        (Sale, {"shop": "ulm"}, "^Sale expected, got dict$"),
        (str, b"x", "str expected, got bytes"),
        (bytes, "x", "bytes expected, got str"),
        (int, True, "int expected, got bool"),
        (int, 1.0, "int expected, got float"),
        (int, 1 << 63, "an int of 64 bits does not fit"),
        (float, "1", "float expected, got str"),
        (float, True, "float expected, got bool"),
        (float, 10**400, "does not fit into a float"),
        (str, "\ud800", "can't be written as UTF-8"),
        (Point, Sale("ulm", 1.0), "Point expected, got Sale"),
        (Opened | Closed, {}, "expected, got dict"),
        (list[int], (1,), r"list\[int\] expected, got tuple"),
        (Literal["a"], 1, "expected, got int"),
        (Windowed[str], "A", "Windowed expected, got str"),
        (Windowed[str], Windowed(1, moment(0), moment(5)), "str expected, got int"),
        (Windowed[str], Windowed("A", NAIVE, moment(5)), "has no time zone"),
        (Sale, Sale("\ud800", 1.0), "Sale can't be written as JSON"),
        (dict, {(1, 2): 3}, "dict can't be written as JSON"),
        (list, [Socket()], "list can't be written as JSON"),
    ],
)
def test_values_of_another_type_are_refused(declared: Any, value: object, message: str) -> None:
    with pytest.raises(SerdeError, match=message):
        serde_for(declared).dumps(value)


@pytest.mark.parametrize(
    ("declared", "data", "message"),
    [
        (Sale, b'{"shop":"ulm","amount":"3"}', r"not Sale: Expected `float`.*at `\$.amount`; the"),
        (Sale, b'{"shop":"ulm"}', "missing required field `amount`"),
        (Sale, b'{"shop":"u', r"truncated; the data is b'{\"shop\":\"u'$"),
        (Sale, b"", "not Sale: .*; the data is b''"),
        (list[Sale], b'[{"shop":1,"amount":2}]', r"at `\$\[0\].shop`"),
        (dict, b"[" * 100_000, "not dict"),
        (Any, b"[" * 100_000, "bytes more$"),
        (str, b"\xff", "not str: 'utf-8' codec"),
        (int, b"12", "not int: 8 bytes expected, got 2"),
        (float, b"123456789", "not float: 8 bytes expected, got 9"),
        (Windowed[str], b"1", "not Windowed: at least 16 bytes"),
        (Windowed[str], b"\x7f" * 16, "not Windowed: .*years 1 to 9999"),
        (Windowed[int], bytes(17), "not int: 8 bytes expected, got 1"),
        (Annotated[int, msgspec.Meta(gt=3)], b"2", ">= 4"),
    ],
)
def test_bytes_of_another_type_are_refused(declared: Any, data: bytes, message: str) -> None:
    with pytest.raises(SerdeError, match=message):
        serde_for(declared).loads(data)


def test_an_error_shows_the_beginning_of_the_data_only() -> None:
    with pytest.raises(SerdeError) as caught:
        serde_for(Sale).loads(b"x" * 1_000_000)
    assert len(str(caught.value)) < 250
    assert "999952 bytes more" in str(caught.value)
    with pytest.raises(SerdeError) as caught:
        serde_for(Sale).dumps("x" * 1_000_000)
    assert len(str(caught.value)) < 250


def test_fields_added_by_a_newer_program_are_skipped() -> None:
    assert serde_for(Sale).loads(b'{"shop":"ulm","vat":7,"amount":2}') == Sale("ulm", 2.0)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (Socket, "Socket is neither a JSON type.*your own key_serde= or value_serde="),
        (list[Socket], "Socket is neither a JSON type"),
        (dict[str, Socket | None], "Socket is neither a JSON type"),
        (Late[Socket], "Socket is neither a JSON type"),
        (Windowed[Socket], "Socket is neither a JSON type"),
        (Windowed, r"write Windowed\[str\]"),
        (set[int] | list[int], "more than one array-like"),
    ],
)
def test_types_that_can_not_round_trip_are_refused_when_declared(
    declared: Any, message: str
) -> None:
    with pytest.raises(SerdeError, match=message):
        serde_for(declared)


def test_an_unresolved_field_type_is_reported_with_the_remedy() -> None:
    namespace: dict[str, Any] = {}
    source = "from dataclasses import dataclass\n@dataclass\nclass Order:\n    at: 'Decimal'\n"
    exec(source, namespace)  # noqa: S102 - a class whose annotation does not resolve
    with pytest.raises(SerdeError, match=r"'Decimal' is not defined.*TYPE_CHECKING"):
        serde_for(namespace["Order"])


def test_windowed_keys_can_be_nested_and_made_from_bytes() -> None:
    inner = Windowed(7, moment(0), moment(10))
    serde = serde_for(Windowed[Windowed[int]])
    data = serde.dumps(Windowed(inner, moment(0), moment(100)))
    assert serde.loads(data) == Windowed(inner, moment(0), moment(100))
    assert windowed_bytes(b"A", 5, 15) == serde_for(Windowed[str]).dumps(
        Windowed("A", moment(5), moment(15))
    )
