from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from streamlog import App, Emit, Stream, agg, hopping, session, tumbling
from streamlog.history.lowering import Lower
from streamlog.history.plan import Plan, Stage, plan_history, without_lowering
from streamlog.processing.inputs.cut_input import TimeSpan


@dataclass
class Sale:
    amount: int
    price: float


@dataclass
class Totals:
    count: int
    most: int


@dataclass
class Price:
    total: float


Sales = Stream[str, Sale]


def plan_of(app: App, lower: Lower = "auto") -> Plan:
    counts = {name: spec.partitions or 2 for name, spec in app.topics.items()}
    return plan_history(app.topology(), counts, span=TimeSpan(), engine="spark", lower=lower)


def last_stage(make: Callable[[Sales], object]) -> Stage:
    app = App("till")
    make(app.stream(app.topic("sales", key=str, value=Sale)))
    return plan_of(app).stages[-1]


def by_key(sales: Sales) -> Sales:
    return sales.group_by(lambda k, _: k, name="by-place")  # type: ignore[return-value]


def test_windows_of_counts_and_integers_are_lowered() -> None:
    app = App("till")
    sales = app.stream(app.topic("sales", key=str, value=Sale))
    grouped = sales.group_by(lambda k, _: k, name="by-place")
    grouped.windowed(hopping("1m", "10s")).agg(
        Totals, name="totals", count=agg.count(), most=agg.max("amount")
    )
    first, second = plan_of(app).stages
    assert first.lowering is None
    assert second.lowering is not None
    assert (second.lowering.node, second.equality) == ("totals", "S")
    text = plan_of(app).explain()
    assert "not lowered: it reads the log" in text
    assert "run by columns: Spark aggregates windows of whole numbers before and after" in text
    assert "not lowered: lower='off'" in plan_of(app, "off").explain()
    again = without_lowering(plan_of(app), "a sum is too large")
    assert all(stage.lowering is None for stage in again.stages)
    assert "run by one task per partition" in again.explain()
    assert "not lowered: a sum is too large" in again.explain()


REASONS: dict[str, tuple[Callable[[Sales], object], str]] = {
    "floats": (
        lambda s: (
            s.group_by(lambda k, _: k, name="by-place")
            .windowed(tumbling("1m"))
            .agg(Price, name="prices", total=agg.sum("price"))
        ),
        "column 'total' is declared as float, not as int",
    ),
    "python": (
        lambda s: (
            s.group_by(lambda k, _: k, name="by-place")
            .windowed(tumbling("1m"))
            .reduce(lambda a, _: a, name="first")
        ),
        "its functions are Python",
    ),
    "updates": (
        lambda s: (
            s.group_by(lambda k, _: k, name="by-place")
            .windowed(tumbling("1m"))
            .emit(Emit.UPDATE)
            .count(name="counts")
        ),
        "rows are emitted before their window closes",
    ),
    "sessions": (
        lambda s: (
            s.group_by(lambda k, _: k, name="by-place").windowed(session("1m")).count(name="counts")
        ),
        "'counts' is not the one tumbling or hopping aggregation",
    ),
    "two": (
        lambda s: [
            grouped.windowed(tumbling(size)).count(name=f"counts-{size}")
            for grouped in [s.group_by(lambda k, _: k, name="by-place")]
            for size in ("1m", "1h")
        ],
        "is not the one tumbling or hopping aggregation",
    ),
    "no windows": (
        lambda s: s.group_by(lambda k, _: k, name="by-place").count(name="counts"),
        "is not the one tumbling or hopping aggregation",
    ),
    "nothing": (lambda s: s.repartition(name="again"), "no node follows the shuffle"),
    "late": (
        lambda s: (
            s.group_by(lambda k, _: k, name="by-place")
            .windowed(tumbling("1m"))
            .late(lambda _: None)
            .count(name="counts")
        ),
        "late records are emitted",
    ),
    "no shuffle": (
        lambda s: s.group_by_key().windowed(tumbling("1m")).count(name="counts"),
        "it reads the log",
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_stage_that_is_not_lowered_has_a_reason(case: str) -> None:
    make, reason = REASONS[case]
    stage = last_stage(make)
    assert stage.lowering is None
    assert reason in stage.why_not


def test_aggregations_of_window_results_are_not_lowered() -> None:
    app = App("till")
    sales = app.stream(app.topic("sales", key=str, value=Sale))
    grouped = sales.group_by(lambda k, _: k, name="by-place").windowed(tumbling("1m"))
    counts = grouped.count(name="counts").changes()
    again = counts.group_by(lambda k, _: k.key, name="again").windowed(tumbling("1h"))
    again.count(name="count-of-counts")
    stages = plan_of(app).stages
    assert [stage.lowering is not None for stage in stages] == [False, True, False]
    assert "not from a topic" in stages[-1].why_not


def test_an_engine_without_lowering_does_not_mention_it() -> None:
    app = App("till")
    sales = app.stream(app.topic("sales", key=str, value=Sale))
    sales.group_by(lambda k, _: k, name="by").windowed(tumbling("1m")).count(name="counts")
    counts = {"sales": 2}
    assert "lowered" not in plan_history(app.topology(), counts, span=TimeSpan()).explain()
