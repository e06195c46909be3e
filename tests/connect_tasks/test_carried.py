"""Rows of a source become values of the type that its topic declares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from streamlog.connect_tasks.carried import declare_rows
from streamlog.serdes import serde_for

ROW = {
    "id": 7,
    "price": Decimal("1.50"),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    "ref": UUID(int=5),
    "note": None,
}
VALUES = tuple(ROW.values())


@dataclass
class Item:
    id: int
    price: Decimal
    at: datetime
    ref: UUID
    note: str | None = None


class Struct(msgspec.Struct):
    id: int
    price: float


class Model(BaseModel):
    id: int
    price: Decimal


class Entry(TypedDict):
    id: int


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Item, Item(*VALUES)),  # type: ignore[arg-type]
        (Struct, Struct(7, 1.5)),
        (Model, Model(id=7, price=Decimal("1.50"))),
        (Entry, ROW),
        (dict[str, Any], ROW),
        (dict, ROW),
    ],
)
def test_a_row_becomes_a_value_of_the_declared_type(declared: Any, value: Any) -> None:
    assert declare_rows(serde_for(declared), [ROW, None]) == [value, None]


@pytest.mark.parametrize(("declared", "value"), [(bytes, b"x"), (str, "x"), (int, 3)])
def test_what_is_no_row_is_left_to_the_serde(declared: Any, value: Any) -> None:
    assert declare_rows(serde_for(declared), [value]) == [value]


def test_a_row_that_does_not_fit_names_the_field() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$.id`"):
        declare_rows(serde_for(Item), [{**ROW, "id": "seven"}])
