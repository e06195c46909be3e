from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NotRequired, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import agg
from streamlog.dsl.aggregators import row_aggregation
from streamlog.errors import SerdeError, TopologyError


@dataclass
class Sale:
    amount: int
    at: datetime


@dataclass
class Row:
    count: int
    total: int
    low: int
    high: tuple[int, str]
    mean: float
    last: datetime
    note: str = "none"


def row_columns() -> dict[str, Any]:
    return {
        "count": agg.count(),
        "total": agg.sum("amount"),
        "low": agg.min("amount"),
        "high": agg.max(lambda s: (s.amount, str(s.amount))),
        "mean": agg.mean(lambda s: s.amount),
        "last": agg.max("at"),
    }


sales = st.builds(Sale, st.integers(-99, 99), st.datetimes(timezones=st.just(UTC)))


@given(st.lists(sales, min_size=1, max_size=10), st.data())
def test_columns_are_what_python_says_also_through_their_bytes(
    values: list[Sale], data: st.DataObject
) -> None:
    aggregation = row_aggregation("row", Row, row_columns())
    state = aggregation.initial()
    for value in values:
        state = aggregation.add(state, value)
        if data.draw(st.booleans()):
            state = aggregation.state.loads(aggregation.state.dumps(state))
    amounts = [value.amount for value in values]
    assert aggregation.result(state) == Row(
        len(amounts),
        sum(amounts),
        min(amounts),
        max((amount, str(amount)) for amount in amounts),
        sum(amounts) / len(amounts),
        max(value.at for value in values),
    )


def test_two_states_share_nothing() -> None:
    aggregation = row_aggregation("row", Row, row_columns())
    one, two = aggregation.initial(), aggregation.initial()
    aggregation.add(one, Sale(5, datetime(2025, 1, 1, tzinfo=UTC)))
    assert two == aggregation.initial()


class Typed(TypedDict):
    n: int
    note: NotRequired[str]


class Fast(msgspec.Struct):
    n: int
    note: str = ""


@pytest.mark.parametrize(("into", "wanted"), [(Typed, {"n": 1}), (Fast, Fast(1))])
def test_rows_may_be_typed_dicts_and_structs(into: Any, wanted: object) -> None:
    aggregation = row_aggregation("row", into, {"n": agg.count()})
    assert aggregation.result(aggregation.add(aggregation.initial(), "x")) == wanted


def test_columns_must_be_the_fields() -> None:
    with pytest.raises(TopologyError, match=r"Row has no field 'totla'.*did you mean 'total'"):
        row_aggregation("row", Row, {"totla": agg.count()})
    with pytest.raises(TopologyError, match="gives no value for high, last, low, mean of Row"):
        row_aggregation("row", Row, {"count": agg.count(), "total": agg.sum("amount")})
    for into in (Typed, Fast):
        with pytest.raises(TopologyError, match="gives no value for n of"):
            row_aggregation("row", into, {})
    with pytest.raises(TopologyError, match="must be one of agg"):
        row_aggregation("row", Row, {"count": len})  # type: ignore[dict-item]
    with pytest.raises(SerdeError):
        row_aggregation("row", type("Odd", (), {}), {})
