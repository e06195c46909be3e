from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from streamlog import App, Emit, ProcessingError, Stream, Windowed, agg, tumbling
from streamlog.dsl.topic import Topic
from streamlog.errors import ConfigError, TopologyError, UsageError
from streamlog.nodes.stream_nodes import RepartitionSink
from streamlog.replace import replace
from streamlog.windows.definitions import Windows


@dataclass
class Sale:
    shop: str
    amount: int


def sales_app() -> tuple[App, Stream[str, Sale]]:
    app = App("shop")
    return app, app.stream(app.topic("sales", key=str, value=Sale))


def repartitions(app: App) -> list[str]:
    nodes = app.topology().nodes
    return [node.topic.name for node in nodes if isinstance(node, RepartitionSink)]


def test_a_changed_key_is_repartitioned_only_before_grouping() -> None:
    app, sales = sales_app()
    out = app.topic("out", key=str, value=Sale)
    rekeyed = sales.rekey(lambda _, s: s.shop, name="by-shop")
    rekeyed.filter(lambda _, s: s.amount > 0).to(out)
    assert repartitions(app) == []
    rekeyed.filter(lambda _, s: s.amount > 0).group_by_key().count(name="counts")
    assert repartitions(app) == ["shop-by-shop-repartition"]


def test_an_unchanged_key_is_not_repartitioned() -> None:
    app, sales = sales_app()
    sales.map_values(lambda s: s.amount).group_by_key().count(name="counts")
    assert repartitions(app) == []


def test_one_repartition_topic_serves_all_uses_of_a_stream() -> None:
    app, sales = sales_app()
    names = app.table(app.topic("names", key=str, value=str))
    grouped = sales.group_by(lambda _, s: s.shop, name="by-shop")
    grouped.count(name="counts")
    grouped.windowed(tumbling("1m")).count(name="per-minute")
    assert repartitions(app) == ["shop-by-shop-repartition"]
    # The first use decides the serde of keys of unknown type.
    with pytest.raises(TopologyError, match="annotate"):
        sales.rekey(lambda _, s: s.shop, name="by-shop-2").repartition(name="again").join(
            names, lambda s, n: f"{s}{n}"
        )


def test_a_repartition_topic_needs_a_name() -> None:
    app, sales = sales_app()
    names = app.table(app.topic("names", key=str, value=str))
    sales.rekey(lambda _, s: s.shop).join(names, lambda s, n: f"{s}{n}", name="named")
    assert repartitions(app) == ["shop-named-repartition"]
    with pytest.raises(TopologyError, match="name it, with name="):
        sales.rekey(lambda _, s: s.shop).join(names, lambda s, n: f"{s}{n}")


def test_annotated_values_keep_their_type_through_a_repartition() -> None:
    def double_amount(sale: Sale) -> Sale:
        return Sale(sale.shop, sale.amount * 2)

    app, sales = sales_app()
    out = app.topic("out", key=str, value=int)
    by_shop = sales.map_values(double_amount).group_by(lambda _, s: s.shop, name="by-shop")
    table = by_shop.aggregate(int, lambda total, s: total + s.amount, name="totals")
    table.changes().to(out)
    with app.test() as t:
        t.input(app_topic(app, "sales")).send(Sale("ulm", 3), key="x")
        t.input(app_topic(app, "sales")).send(Sale("ulm", 4), key="y")
        assert t.output(out).values == [6, 14]
        assert t.table(table) == {"ulm": 14}


def app_topic(app: App, name: str) -> Any:
    """Return a new `Topic` for this topic of the app."""
    return Topic(app.topics[name], app.runtime)


def test_values_of_unknown_type_are_refused_at_a_repartition() -> None:
    app, sales = sales_app()
    once = sales.map_values(lambda s: replace(s, amount=1))
    once.group_by(lambda _, s: s.shop, name="by-shop").count(name="counts")
    with (
        app.test() as t,
        pytest.raises(ProcessingError, match=r"annotate what the lambda at test_stream.py:\d+"),
    ):
        t.input(app_topic(app, "sales")).send(Sale("ulm", 3), key="x")


def test_tuples_need_no_annotation_as_keys_and_values() -> None:
    app, sales = sales_app()
    pairs = sales.map_values(lambda s: (s.shop, s.amount))
    table = pairs.group_by(lambda k, v: (k, v[0]), name="pairs").count(name="counts")
    with app.test(partitions=3) as t:
        for shop in ("ulm", "ulm", "bonn"):
            t.input(app_topic(app, "sales")).send(Sale(shop, 3), key="x")
        assert t.table(table) == {("x", "ulm"): 2, ("x", "bonn"): 1}


def test_a_stream_of_several_topics_is_merged_in_time_order() -> None:
    app = App("merged")
    left = app.topic("left", key=str, value=str)
    right = app.topic("right", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    app.stream(left, right).to(out)
    with app.test() as t:
        t.input(left).send("a", key="k")
        t.input(right).send("b", key="k")
        assert t.output(out).values == ["a", "b"]


def test_a_stream_can_be_joined_with_a_table_made_of_it() -> None:
    app, sales = sales_app()
    out = app.topic("out", key=str, value=str)

    def shop(_: str, sale: Sale) -> str:
        return sale.shop

    counts = sales.group_by(shop, name="by-shop").count(name="counts")
    sales.rekey(shop, name="asking").left_join(
        counts, lambda s, n: f"{s.amount}/{n}", name="seen"
    ).to(out)
    with app.test(partitions=2) as t:
        for amount in (1, 2, 3):
            t.input(app_topic(app, "sales")).send(Sale("ulm", amount), key="x", at=amount)
        assert len(t.output(out).values) == 3
        assert t.table(counts) == {"ulm": 3}
        t.restart()
        assert t.table(counts) == {"ulm": 3}


def test_joins_with_windowed_tables_or_other_apps_are_refused() -> None:
    _, sales = sales_app()
    windowed = sales.group_by_key().windowed(tumbling("1m")).count(name="per-minute")
    other = App("b")
    foreign = other.table(other.topic("names", key=str, value=str))
    with pytest.raises(TopologyError, match="'per-minute', which is windowed"):
        sales.join(windowed, lambda s, n: s)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="of app 'b'"):
        sales.join(foreign, lambda s, _: s)
    with pytest.raises(TopologyError, match="can't merge"):
        sales.merge(other.stream(other.topic("sales", key=str, value=Sale)))


def test_invalid_windows_emission_and_idle_times_are_refused() -> None:
    _, sales = sales_app()
    grouped = sales.group_by_key()
    with pytest.raises(TopologyError, match="tumbling"):
        grouped.windowed(Windows(size_ms=1, retention_ms=1))
    windowed = grouped.windowed(tumbling("1m"))
    wrong: Any = "close"
    with pytest.raises(TopologyError, match=r"Emit\.CLOSE"):
        windowed.emit(wrong)
    with pytest.raises(TopologyError, match="longer than 0"):
        windowed.idle_after("0s")
    with pytest.raises(ConfigError, match="no unit"):
        windowed.idle_after("30")


def test_window_settings_may_come_in_any_order() -> None:
    app, sales = sales_app()
    windowed = sales.group_by_key().windowed(tumbling("1m"))
    windowed.late(print).idle_after("5s").emit(Emit.UPDATE).count(name="one")
    windowed.count(name="two")
    one_node, two_node = (app.topology().subtopologies[0].by_name[name] for name in ("one", "two"))
    assert (getattr(one_node, "late", 0), getattr(one_node, "idle_after_ms", 0)) == (print, 5_000)
    assert (getattr(two_node, "late", 0), getattr(two_node, "idle_after_ms", 0)) == (None, None)


def test_a_stream_of_the_topology_can_not_be_iterated() -> None:
    _, sales = sales_app()

    async def iterate_stream() -> None:
        async for _ in sales:
            pass

    with pytest.raises(UsageError, match=r"@app\.agent"):
        asyncio.run(iterate_stream())
    for iterate in (sales.items, sales.records):
        with pytest.raises(UsageError, match=r"@app\.agent"):
            iterate()


def test_windowed_keys_pass_through_repartition_topics() -> None:
    app, sales = sales_app()
    out = app.topic("out", key=Windowed[str], value=int)
    sales.group_by_key().windowed(tumbling("10ms")).agg(
        Sale, name="sums", shop=agg.max("shop"), amount=agg.sum("amount")
    ).changes().map_values(lambda s: s.amount).repartition(name="wide", partitions=2).to(out)
    with app.test() as t:
        t.input(app_topic(app, "sales")).send(Sale("ulm", 3), key="x", at=5)
        t.input(app_topic(app, "sales")).send(Sale("ulm", 4), key="x", at=15)
        assert [(r.key.key, r.value) for r in t.output(out).records] == [("x", 3)]
