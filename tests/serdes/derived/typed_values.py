"""Random declared types with values of them, for the properties of all three formats."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import count
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from hypothesis import strategies as st

from streamlog.serdes.derived import Digits


class Color(Enum):
    RED = "red"
    DARK_BLUE = "dark blue"


NUMBERS = count()
"""Records get names of their own."""
LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
MONEY = st.decimals("-99999999.99", "99999999.99", places=2, allow_nan=False)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: LONGS,
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: TEXTS,
    bytes: st.binary(max_size=8),
    date: st.dates(),
    time: st.times(),
    datetime: MOMENTS,
    timedelta: st.timedeltas(timedelta(days=-1_000_000), timedelta(days=1_000_000)),
    Annotated[Decimal, Digits(10, 2)]: MONEY.map(lambda value: value + Decimal("0.00")),
    UUID: st.uuids(),
    Color: st.sampled_from(Color),
    Literal["a", "b"]: st.sampled_from(["a", "b"]),
}
"""Types without parts, with their values."""
Typed = tuple[Any, st.SearchStrategy[Any]]
"""A type and its values."""


def record_of(fields: list[Typed], *, is_struct: bool) -> Typed:
    """Return a dataclass or Struct; the last field has a default if it takes None."""
    name = f"Record{next(NUMBERS)}"
    declared: list[Any] = []
    for at, (kind, _) in enumerate(fields):
        is_last = at == len(fields) - 1
        if is_last and type(None) in getattr(kind, "__args__", ()):
            declared.append((f"f{at}", kind, None if is_struct else field(default=None)))
        else:
            declared.append((f"f{at}", kind))
    cls: Any = (
        msgspec.defstruct(name, declared, module=__name__)
        if is_struct
        else make_dataclass(name, declared, namespace={"__module__": __name__})
    )
    values = st.tuples(*(strategy for _, strategy in fields)).map(lambda parts: cls(*parts))
    return cls, values


def leaf() -> st.SearchStrategy[Typed]:
    return st.sampled_from([*LEAVES.items()])


def optional(typed: Typed) -> Typed:
    return typed[0] | None, st.none() | typed[1]


def listed(typed: Typed) -> Typed:
    return list[typed[0]], st.lists(typed[1], max_size=3)  # type: ignore[name-defined]


def mapped(typed: Typed) -> Typed:
    return dict[str, typed[0]], st.dictionaries(TEXTS, typed[1], max_size=3)  # type: ignore[name-defined]


def either(typed: list[Typed]) -> Typed:
    kind: Any = typed[0][0]
    for other, _ in typed[1:]:
        kind = kind | other
    return kind, st.one_of(values for _, values in typed)


ITEM = record_of([(str, TEXTS), (int, LONGS)], is_struct=False)
NOTE = record_of([(str, TEXTS), (int, LONGS)], is_struct=False)
"""Equal fields: only its name tells it from the other one."""
UNIONS = st.lists(
    st.sampled_from(
        [
            (int, LONGS),
            (str, TEXTS),
            (bytes, st.binary(max_size=4)),
            (bool, st.booleans()),
            (Color, st.sampled_from(Color)),
            (type(None), st.none()),
            ITEM,
            NOTE,
        ]
    ),
    min_size=2,
    max_size=5,
    unique_by=lambda typed: typed[0],
).map(either)


def records(*, nests: bool, unions: bool) -> st.SearchStrategy[Typed]:
    """Draw records.

    Args:
        nests: whether lists and dicts contain lists, dicts and None.
        unions: whether fields are unions of several classes.
    """
    flat = st.one_of(leaf(), leaf().map(optional), leaf().map(listed), leaf().map(mapped))
    part = st.one_of(flat, UNIONS) if unions else flat

    def build(fields: st.SearchStrategy[list[Typed]]) -> st.SearchStrategy[Typed]:
        return st.builds(record_of, fields, is_struct=st.booleans())

    inner = build(st.lists(part, min_size=1, max_size=3))
    deeper = st.one_of(part, inner, inner.map(optional), inner.map(listed), inner.map(mapped))
    if nests:
        deeper = st.one_of(deeper, deeper.map(listed).map(mapped), inner.map(optional).map(listed))
    return build(st.lists(deeper, min_size=1, max_size=4))
