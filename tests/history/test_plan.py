from __future__ import annotations

import pytest

from streamlog import App, Emit, Processor, Record, tumbling
from streamlog.errors import TopologyError
from streamlog.history.plan import Plan, plan_history
from streamlog.processing.inputs.cut_input import TimeSpan
from streamlog.windows.emit import UNKNOWN_MS


def plan_of(app: App, *, span: TimeSpan | None = None, **more: object) -> Plan:
    counts = {name: spec.partitions or 2 for name, spec in app.topics.items()}
    return plan_history(app.topology(), counts, span=span or TimeSpan(), **more)  # type: ignore[arg-type]


def counting(app: App, emit: Emit = Emit.CLOSE) -> None:
    orders = app.topic("orders", key=str, value=int)
    by_value = app.stream(orders).group_by(lambda _, v: str(v), name="by-value")
    windows = by_value.windowed(tumbling("1m", grace="0s")).emit(emit)
    changes = windows.count(name="per-minute").changes()
    changes.map(lambda key, n: (key.key, n)).to(app.topic("counts", key=str, value=int))


def test_stages_are_cut_at_repartition_topics_and_explained() -> None:
    app = App("till")
    counting(app)
    plan = plan_of(app, span=TimeSpan(until_ms=1_700_000_000_000))
    assert [stage.number for stage in plan.stages] == [0, 1]
    assert [stage.tasks for stage in plan.stages] == [2, 2]
    assert plan.equality == "S"
    text = plan.explain()
    assert "until" not in text
    assert "at or after 2023-11-14T22:13:20+00:00" in text
    assert "stages, by (stream time, source, position) till-by-value-repartition" in text
    assert "state: per-minute" in text


@pytest.mark.parametrize("emit", [Emit.COMMIT, Emit.early("10s", clock="wall")])
def test_rows_emitted_by_a_clock_are_equal_only_at_the_end(emit: Emit) -> None:
    app = App("till")
    counting(app, emit)
    plan = plan_of(app)
    assert plan.equality == "T"
    assert "reason: per-minute" in plan.explain()


def test_at_least_once_workers_take_rows_in_arrival_order() -> None:
    app = App("till")
    counting(app)
    assert plan_of(app, arrival_order=True).equality == "T"


def test_async_calls_keep_at_most_the_order_of_keys() -> None:
    app = App("till")
    orders = app.topic("orders", key=str, value=int)

    async def call_service(value: int) -> int:
        return value

    app.stream(orders).amap_values(call_service, name="asked").to(
        app.topic("out", key=str, value=int)
    )
    assert plan_of(app).equality in {"K", "T"}


def test_tables_are_read_from_their_start() -> None:
    app = App("till")
    orders = app.topic("orders", key=str, value=int)
    prices = app.topic("prices", key=str, value=int)
    table = app.table(prices)
    app.stream(orders).join(table, lambda a, b: a * b, name="priced").to(
        app.topic("out", key=str, value=int)
    )
    plan = plan_of(app, span=TimeSpan(since_ms=5, until_ms=9))
    assert plan.spans["orders"] == TimeSpan(since_ms=5, until_ms=9)
    assert plan.spans["prices"] == TimeSpan(since_ms=UNKNOWN_MS, until_ms=9)


def test_a_topic_that_an_app_writes_and_reads_is_refused() -> None:
    app = App("till")
    orders = app.topic("orders", key=str, value=int)
    again = app.topic("again", key=str, value=int)
    app.stream(orders).to(again)
    app.stream(again).to(app.topic("out", key=str, value=int))
    with pytest.raises(TopologyError, match="writes 'again' and reads it again"):
        plan_of(app)


class Echo(Processor[str, int, str, int]):
    def process(self, record: Record[str, int]) -> None:
        self.ctx.forward(record.key, record.value)


def test_an_app_of_agents_has_no_history() -> None:
    app = App("till")
    with pytest.raises(TopologyError, match="no streams or tables"):
        plan_of(app)


def test_the_plan_says_that_agents_do_not_run() -> None:
    app = App("till")
    counting(app)
    assert "agents don't run" in plan_of(app, agents=["mailer"]).explain()
