from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Annotated, Any, Generic, NamedTuple, NewType, Required, TypedDict, TypeVar

import msgspec
import pytest

from streamlog.dsl.value_types import field_type, getter, may_be_none
from streamlog.errors import TopologyError

T = TypeVar("T")


class Typed(TypedDict, total=False):
    shop: Required[str]
    price: Price


@dataclass
class Price:
    cents: int
    at: datetime

    @property
    def euros(self) -> float:
        return self.cents / 100


class Fast(msgspec.Struct):
    price: Price | None
    tags: dict[str, int]


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class Box(Generic[T]):
    inside: T
    many: list[T]


class Plain:
    """A class without annotations."""


Named = NewType("Named", Price)
noon = Price(150, datetime(2025, 1, 1, 12))  # noqa: DTZ001 - any datetime will do


@pytest.mark.parametrize(
    ("declared", "path", "wanted"),
    [
        (Price, "cents", int),
        (Named, "cents", int),
        (Annotated[Price | None, "a note"], "at", datetime),
        (Price, "euros", float),
        (Typed, "price.cents", int),
        (Fast, "price.euros", float),
        (Fast, "tags.red", int),
        (Pair, "right", str),
        (Box[int], "inside", int),
        (Box[int], "many", None),
        (Price | Named, "cents", int),
        (None, "anything", None),
        (Any, "any.thing", None),
        (T, "anything", None),
        (Plain, "anything", None),
        (dict, "anything", None),
    ],
)
def test_the_type_of_a_field_is_found_by_its_path(
    declared: object, path: str, wanted: object
) -> None:
    found = field_type(declared, path, "a test")
    assert getattr(found, "__args__", (found,))[-1] == wanted


@pytest.mark.parametrize(
    ("declared", "path", "words"),
    [
        (Price, "cent", "Price has no field 'cent', which a test reads; did you mean 'cents'"),
        (Typed, "price.centss", "Price has no field 'centss'"),
        (Typed, "items", "Typed has no field 'items'"),
        (str, "amount", "str has no field 'amount'"),
        (Price | int, "cents", "int has no field"),
    ],
)
def test_an_unknown_field_is_refused(declared: object, path: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        field_type(declared, path, "a test")


@pytest.mark.parametrize(
    ("declared", "path", "value"),
    [
        (Price, "cents", noon),
        (Typed, "price.cents", {"price": noon}),
        (dict[str, Any], "price.cents", {"price": noon}),
        (Fast, "price.cents", Fast(noon, {})),
        (Fast, "tags.red", Fast(None, {"red": 150})),
        (None, "price.cents", {"price": {"cents": 150}}),
        (None, "price.cents", SimpleNamespace(price=noon)),
    ],
)
def test_a_field_is_read_by_its_path(declared: object, path: str, value: object) -> None:
    found = getter(declared, path)
    if isinstance(found, str):
        assert getattr(value, found) == 150
    else:
        assert found(value) == 150


def test_a_plain_attribute_is_read_by_its_name() -> None:
    assert getter(Price, "cents") == "cents"


def test_none_is_found_behind_annotations() -> None:
    optional = NewType("optional", Any)
    assert may_be_none(Annotated[int | None, "a note"])
    assert not may_be_none(optional)
    assert not may_be_none(int)
