from __future__ import annotations

import pytest

from streamlog import App, Emit, Processor, Record, tumbling
from streamlog.errors import TopologyError
from streamlog.history.plan import Plan, plan_history
from streamlog.processing.inputs.record_queue import TimeSpan
from streamlog.windows.emit import UNKNOWN_MS


def plan_of(app: App, *, span: TimeSpan | None = None, **more: object) -> Plan:
    counts = {name: spec.partitions or 2 for name, spec in app.topics.items()}
    return plan_history(app.topology(), counts, span=span or TimeSpan(), **more)  # type: ignore[arg-type]


def counting(app: App, emit: Emit = Emit.CLOSE) -> None:
    orders = app.topic("orders", key=str, value=int)
    by_place = app.stream(orders).group_by(lambda _, v: str(v), name="by-value")
    windows = by_place.windowed(tumbling("1m", grace="0s")).emit(emit)
    windows.count(name="per-minute").changes().to(app.topic("counts", key=str, value=int))


def test_stages_are_cut_at_repartition_topics_and_told() -> None:
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
def test_rows_by_a_clock_are_equal_in_the_end_only(emit: Emit) -> None:
    app = App("till")
    counting(app, emit)
    plan = plan_of(app)
    assert plan.equality == "T"
    assert "because of per-minute" in plan.explain()


def test_workers_of_at_least_once_take_rows_as_they_arrive() -> None:
    app = App("till")
    counting(app)
    assert plan_of(app, arrival_order=True).equality == "T"


def test_calls_of_the_world_outside_keep_the_order_of_keys_at_most() -> None:
    app = App("till")
    orders = app.topic("orders", key=str, value=int)

    async def ask(value: int) -> int:
        return value

    app.stream(orders).amap_values(ask, name="asked").to(app.topic("out", key=str, value=int))
    assert plan_of(app).equality in {"K", "T"}


def test_tables_are_taken_from_their_beginning() -> None:
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


def test_a_topic_that_is_written_and_read_again_is_refused() -> None:
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


def test_agents_are_told_not_to_be_run() -> None:
    app = App("till")
    counting(app)
    assert "agents don't run" in plan_of(app, agents=["mailer"]).explain()
