"""NaN and infinities, which JSON lacks: refused with the field's path, never null."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from streamlog.errors import SerdeError
from streamlog.processing.column_batch import serialize_column
from streamlog.serdes import display_json, serde_for


@dataclass
class Reading:
    celsius: float
    note: str | None = None
    more: list[float] = field(default_factory=list)


class Fast(msgspec.Struct):
    inner: Reading
    by_name: dict[str, float | None]


class Typed(TypedDict):
    celsius: float


class Model(BaseModel):
    celsius: float
    note: str | None = None


class Texts(Model):
    model_config = ConfigDict(ser_json_inf_nan="strings")


NOT_FINITE = [math.nan, -math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize(
    ("declared", "make", "path"),
    [
        (Reading, Reading, "$.celsius"),
        (Reading, lambda x: Reading(1.0, None, [0.5, x]), "$.more[1]"),
        (Reading, lambda x: Reading(1.0, "null", [x]), "$.more[0]"),
        (Fast, lambda x: Fast(Reading(x), {}), "$.inner.celsius"),
        (Fast, lambda x: Fast(Reading(0), {"a": None, "b": x}), "$.by_name.b"),
        (Typed, lambda x: {"celsius": x}, "$.celsius"),
        (list[float], lambda x: [0.0, x], "$[1]"),
        (tuple[int, float], lambda x: (2**70, x), "$[1]"),
        (dict[str, Any], lambda x: {"a": [{"b": x}]}, "$.a[0].b"),
        (dict[float, int], lambda x: {x: 1}, "key of $"),
        (float | str, lambda x: x, "$"),
        (Model, lambda x: Model(celsius=x), "$.celsius"),
        (list[Model], lambda x: [Model(celsius=1), Model(celsius=x)], "$[1].celsius"),
    ],
)
def test_numbers_that_are_not_finite_are_refused_with_their_path(
    declared: Any, make: Any, path: str, bad: float
) -> None:
    serde = serde_for(declared)
    with pytest.raises(SerdeError) as refused:
        serde.dumps(make(bad))
    assert f"`{path}` is {bad}" in str(refused.value)
    # Columns of many values take a faster path.
    with pytest.raises(SerdeError) as refused:
        serialize_column(serde, [make(1.0), None, make(bad)])
    assert f"`{path}` is {bad}" in str(refused.value)


def test_a_model_that_writes_infinity_as_text_keeps_it() -> None:
    serde = serde_for(Texts)
    assert serde.loads(serde.dumps(Texts(celsius=math.inf))) == Texts(celsius=math.inf)


numbers = st.floats() | st.sampled_from(NOT_FINITE)
readings = st.builds(
    Reading, numbers, st.none() | st.sampled_from(["null", "nan", "x"]), st.lists(numbers)
)


@given(st.lists(st.none() | readings))
def test_a_column_is_written_whole_or_refused(column: list[Reading | None]) -> None:
    serde = serde_for(Reading)
    values = [n for each in column if each is not None for n in (each.celsius, *each.more)]
    if all(map(math.isfinite, values)):
        written = serialize_column(serde, column)
        assert [None if data is None else serde.loads(data) for data in written] == column
    else:
        with pytest.raises(SerdeError, match="JSON has no such number"):
            serialize_column(serde, column)


@given(
    st.recursive(
        numbers | st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_displayed_json_shows_numbers_that_are_not_finite_as_text(value: Any) -> None:
    def as_text(part: Any) -> Any:
        if isinstance(part, float) and not math.isfinite(part):
            return str(part)
        if isinstance(part, list):
            return [as_text(each) for each in part]
        return {k: as_text(each) for k, each in part.items()} if isinstance(part, dict) else part

    assert json.loads(display_json(value, enc_hook=repr)) == as_text(value)
