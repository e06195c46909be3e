from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NotRequired, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import agg
from streamlog.dsl.columns import row_aggregation
from streamlog.dsl.value_types import Shape
from streamlog.errors import SerdeError, TopologyError
from streamlog.nodes.stream_nodes import Aggregator
from streamlog.serdes import form_of

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)


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
def test_columns_equal_plain_python_through_serialization(
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


def test_two_initial_states_are_independent() -> None:
    aggregation = row_aggregation("row", Row, row_columns())
    first_state, second_state = aggregation.initial(), aggregation.initial()
    aggregation.add(first_state, Sale(5, datetime(2025, 1, 1, tzinfo=UTC)))
    assert second_state == aggregation.initial()


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


def test_columns_must_match_the_row_s_fields() -> None:
    with pytest.raises(TopologyError, match=r"Row has no field 'totla'.*did you mean 'total'"):
        row_aggregation("row", Row, {"totla": agg.count()})
    with pytest.raises(TopologyError, match="has no column for high, last, low, mean of Row"):
        row_aggregation("row", Row, {"count": agg.count(), "total": agg.sum("amount")})
    for into in (Typed, Fast):
        with pytest.raises(TopologyError, match="has no column for n of"):
            row_aggregation("row", into, {})
    with pytest.raises(TopologyError, match="must be an aggregator"):
        row_aggregation("row", Row, {"count": len})  # type: ignore[dict-item]
    with pytest.raises(SerdeError):
        row_aggregation("row", type("Odd", (), {}), {})


@dataclass
class Trip:
    carrier: str
    km: float
    stops: list[str]
    delay: int | None = None
    at: datetime = NOON


@dataclass
class Everything:
    n: int
    spread: float
    earliest: datetime
    latest: str
    all_stops: list[list[str]]
    longest: list[str]
    widest: list[Any]
    carriers: int
    median: float
    pair: Any


def all_columns() -> dict[str, Any]:
    return {
        "n": agg.count(),
        "spread": agg.var("km"),
        "earliest": agg.first("at", by="at"),
        "latest": agg.last("carrier", by=lambda trip: (trip.at, trip.km)),
        "all_stops": agg.collect("stops", limit=3),
        "longest": agg.top(2, "carrier", by="km"),
        "widest": agg.top(2, lambda trip: (trip.km, trip.at)),
        "carriers": agg.distinct("carrier"),
        "median": agg.quantile("km", 0.5),
        "pair": agg.max(lambda trip: (trip.km, trip.carrier)),
    }


trips = st.builds(
    Trip,
    st.sampled_from(["AA", "UA", "DL"]),
    st.floats(0, 9),
    st.lists(st.sampled_from(["JFK", "SFO"]), max_size=2),
    st.none(),
    st.datetimes(timezones=st.just(UTC)),
)


@given(st.lists(trips, min_size=1, max_size=8), st.integers(0, 8), st.data())
def test_every_column_merges_and_survives_serialization(
    values: list[Trip], cut: int, data: st.DataObject
) -> None:
    aggregation = row_aggregation("all", Everything, all_columns(), Shape(Trip))

    def folded(part: list[Trip]) -> Any:
        state = aggregation.initial()
        for value in part:
            state = aggregation.add(state, value)
            if data.draw(st.booleans()):
                state = aggregation.state.loads(aggregation.state.dumps(state))
        return state

    row = aggregation.result(folded(values))
    assert row.n == len(values)
    assert row.earliest == min(value.at for value in values)
    assert row.all_stops == [value.stops for value in values[:3]]
    assert row.widest == sorted([(v.km, v.at) for v in values], reverse=True)[:2]
    assert aggregation.merge is not None
    merged = aggregation.result(aggregation.merge(folded(values[:cut]), folded(values[cut:])))
    assert merged.spread == pytest.approx(row.spread)
    merged.spread = row.spread
    assert merged == row


class Fare(TypedDict):
    city: str
    price: float


def test_fields_of_dicts_are_read_by_name() -> None:
    aggregation = row_aggregation(
        "fares", Fare, {"city": agg.first("city"), "price": agg.sum("price")}, Shape(Fare)
    )
    state = aggregation.add(aggregation.initial(), Fare(city="ulm", price=3.0))
    assert aggregation.result(state) == {"city": "ulm", "price": 3.0}


@dataclass
class OneColumn:
    it: int


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (agg.sum("kms"), "Trip has no field 'kms'.*column 'it' of 'one'.*did you mean 'km'"),
        (agg.top(3, "km", by="when"), "Trip has no field 'when'"),
        (agg.sum("carrier"), "'carrier' is str, and agg.sum takes numbers"),
        (agg.max("delay"), r"'delay' is int \| None.* lambda v: v\.delay or 0"),
        (agg.last("km", by="delay"), r"'delay' is int \| None"),
        (agg.mean("km"), "declared as int, and agg.mean returns float"),
        (agg.max("carrier"), "declared as int, and agg.max returns str"),
        (agg.collect("km"), "declared as int, and agg.collect returns list"),
    ],
)
def test_columns_that_do_not_fit_the_types_are_refused(
    column: Aggregator[Any, Any], words: str
) -> None:
    with pytest.raises(TopologyError, match=words):
        row_aggregation("one", OneColumn, {"it": column}, Shape(Trip))


def test_values_of_unknown_type_are_accepted() -> None:
    aggregation = row_aggregation("one", OneColumn, {"it": agg.sum("kms.all")})
    assert aggregation.result(
        aggregation.add(aggregation.initial(), {"kms": {"all": 3}})
    ) == OneColumn(3)


def test_the_form_of_a_column_includes_its_settings() -> None:
    def form(column: Aggregator[Any, Any]) -> object:
        return form_of(row_aggregation("one", ListColumn, {"it": column}, Shape(Trip)).state)

    assert form(agg.top(3, "km")) != form(agg.top(4, "km"))
    assert form(agg.top(3, "km")) != form(agg.top(3, "km", by="at"))
    assert form(agg.collect("km")) != form(agg.collect("km", limit=9))
    assert form(agg.top(3, "km")) == form(agg.top(3, lambda trip: trip.km))


@dataclass
class ListColumn:
    it: list[float]


def test_a_state_that_can_not_be_stored_is_refused() -> None:
    aggregation = row_aggregation(
        "one", AnyColumn, {"it": agg.collect(lambda trip: trip)}, Shape(Trip)
    )
    with pytest.raises(
        SerdeError, match=r"column 'it' of 'one': a value of type Trip can't be stored"
    ):
        aggregation.add(aggregation.initial(), Trip("AA", 1.0, []))
    state = aggregation.add(aggregation.initial(), Trip("AA", 1.0, []).__dict__ | {"it": object()})
    with pytest.raises(SerdeError, match="object"):
        aggregation.state.dumps(state)


@dataclass
class AnyColumn:
    it: Any
