"""Rows as columns are the rows, and become the values that msgspec makes of them as dicts."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Optional

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect_tasks.carried import declare_rows
from streamlog.serdes import serde_for
from streamlog.serdes.named_columns import NamedColumns

NAMES = ("id", "note", "rate", "at")
AT = datetime(2026, 1, 2, tzinfo=UTC)
VALUES = st.sampled_from(
    [None, 0, 7, -1, True, False, "", "7", "x", 1.5, 2.0, b"x", AT, AT.isoformat(), Decimal(1)]
)


class Plain(msgspec.Struct):
    id: int
    note: str | None
    rate: Optional[float]  # noqa: UP045 - both ways to write it
    at: datetime | None


class Others(msgspec.Struct, rename={"text": "note"}):
    """Other names, another order, fewer fields."""

    text: str | int
    id: Any


class Renamed(msgspec.Struct, rename={"number": "id"}):
    number: int


class Defaults(msgspec.Struct):
    id: int
    missing: str = "none"


class KeywordOnly(msgspec.Struct, kw_only=True):
    note: str | None
    id: int


class Bounded(msgspec.Struct):
    id: Annotated[int, msgspec.Meta(ge=1)]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    id: int


class Tagged(msgspec.Struct, tag=True):
    id: int


class Checked(msgspec.Struct):
    id: int

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError("id is negative")


class Empty(msgspec.Struct):
    pass


CLASSES = (
    *(Plain, Others, Renamed, Defaults, KeywordOnly, Bounded, Strict, Tagged, Checked, Empty),
)


def converted(rows: list[dict[str, object]], declared: type) -> object:
    try:
        return [msgspec.convert(row, declared) for row in rows]
    except msgspec.ValidationError:
        return "refused"


@given(
    st.lists(st.tuples(*[VALUES] * len(NAMES)), max_size=4)
    | st.lists(st.tuples(st.integers(-1, 2), st.text(max_size=2), st.floats(), st.just(AT)))
)
def test_values_are_those_that_msgspec_makes_of_dicts(rows: list[tuple[object, ...]]) -> None:
    columns = NamedColumns(NAMES, rows)
    for declared in CLASSES:
        wanted = converted([dict(zip(NAMES, row, strict=True)) for row in rows], declared)
        try:
            found: object = declare_rows(serde_for(declared), columns)
        except (msgspec.ValidationError, ValueError):
            found = "refused"
        assert repr(found) == repr(wanted)


def test_plain_structs_are_made_without_dicts() -> None:
    columns = NamedColumns(NAMES, [(1, None, 0.5, AT), (2, "x", None, None)])
    assert columns.structs(Plain) == [Plain(1, None, 0.5, AT), Plain(2, "x", None, None)]
    assert columns.structs(Renamed) == [Renamed(1), Renamed(2)]
    for declared in (Others, Defaults, KeywordOnly, Bounded, Strict, Tagged, Empty, dict, Any):
        assert columns.structs(declared) is None


@given(st.lists(st.tuples(VALUES, VALUES)), st.integers(-3, 3), st.integers(-3, 3))
def test_rows_are_a_sequence_of_dicts(
    rows: list[tuple[object, ...]], start: int, stop: int
) -> None:
    columns = NamedColumns(("a", "b"), rows)
    dicts = [{"a": first, "b": second} for first, second in rows]
    assert [*columns] == dicts
    assert [columns[at] for at in range(len(columns))] == dicts
    assert [*columns[start:stop]] == dicts[start:stop]
    assert [*columns.replaced({"b": range(len(rows))})] == [
        {"a": first, "b": at} for at, (first, _) in enumerate(rows)
    ]


def test_of_two_columns_of_one_name_the_last_counts() -> None:
    columns = NamedColumns(("id", "note", "id"), [(1, "x", 2)])
    assert [*columns] == [dict(zip(("id", "note", "id"), (1, "x", 2), strict=True))]
    assert len(NamedColumns(("id",), [])) == 0
    assert columns.column("none") is None
