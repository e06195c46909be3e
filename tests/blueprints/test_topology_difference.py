"""What is said of a changed program, and which of its state is called lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from streamlog import App, Processor, Record, Windowed, agg, kv_store, tumbling
from streamlog.blueprints.blueprint import Blueprint
from streamlog.blueprints.topology_difference import TopologyDifference, difference
from streamlog.topology import Topology


@dataclass
class Sale:
    shop: str
    cents: int


@dataclass
class Total:
    sales: int
    cents: int


def shop(
    *,
    first: bool = False,
    filtered: bool = False,
    name: str = "per-shop",
    size: str = "10s",
    grace: str = "1s",
    fold: Callable[[Any], Any] = agg.sum,
    product: type = str,
) -> Topology:
    app = App("shop")
    sales = app.topic("sales", key=str, value=Sale)
    totals = app.topic("totals", key=Windowed[str], value=Total)
    if first:
        app.table(app.topic("rates", key=str, value=float))
    stream = app.stream(sales)
    if filtered:
        stream = stream.filter(lambda _, sale: sale.cents > 0)
    (
        stream.group_by(lambda _, sale: sale.shop, name="by-shop")
        .windowed(tumbling(size, grace=grace))
        .agg(Total, name=name, sales=agg.count(), cents=fold(lambda sale: sale.cents))
        .changes()
        .to(totals)
    )
    app.table(app.topic("products", key=str, value=product))
    return app.topology()


def against(new: Topology, old: Topology | None = None) -> TopologyDifference:
    return difference(Blueprint.of(old or shop()), Blueprint.of(new))


def test_the_same_program_has_no_difference() -> None:
    assert not against(shop())
    assert Blueprint.of(shop()).encode() == Blueprint.of(shop()).encode()


def test_a_blueprint_is_read_as_it_was_written() -> None:
    drawn = Blueprint.of(shop())
    assert Blueprint.decode(drawn.encode()) == drawn


def test_one_more_unnamed_operator_renames_no_other() -> None:
    found = against(shop(filtered=True))
    assert found.added == ("filter 1 after sales-source",)
    assert found.removed == ()
    assert found.changed == ("Rekey by-shop: after.0 sales-source -> filter 1 after sales-source",)
    assert not found.losses


def test_a_new_name_is_a_new_state_and_the_old_one_is_lost() -> None:
    found = against(shop(name="by-shop-10s"))
    assert [(loss.what, loss.store) for loss in found.losses] == [
        ("the state of per-shop", "per-shop")
    ]
    assert found.notes == (
        "state of by-shop-10s is new: it starts empty and takes records read from now on",
    )
    assert "- WindowedAggregate per-shop" in found.lines()
    assert "+ WindowedAggregate by-shop-10s" in found.lines()


def test_rows_of_other_windows_are_lost() -> None:
    (loss,) = against(shop(size="20s")).losses
    assert str(loss) == "the state of per-shop: windows.size_ms 10000 -> 20000"


def test_grace_may_change() -> None:
    found = against(shop(grace="2s"))
    assert not found.losses
    assert len(found.changed) == 1


def test_another_fold_can_t_go_on_with_the_state() -> None:
    (loss,) = against(shop(fold=agg.max)).losses
    assert "columns.1.1 sum -> max" in loss.why


def test_rows_that_the_new_type_can_t_read_are_lost() -> None:
    found = against(shop(product=int))
    (loss,) = found.losses
    assert loss.store == "products"
    assert any(
        line.startswith("topic products: value StrSerde -> IntSerde") for line in found.changed
    )


def test_a_stream_before_the_others_moves_their_state() -> None:
    found = against(shop(first=True))
    lost = {loss.store for loss in found.losses}
    assert lost == {"per-shop", "products", ""}
    assert any("it is in shop-1-changelog" in loss.why for loss in found.losses)
    positions = {loss.what for loss in found.losses if not loss.store}
    assert positions == {"the position in shop-by-shop-repartition", "the position in products"}


def test_a_table_that_goes_with_its_topic_takes_its_state_along() -> None:
    app = App("shop")
    app.table(app.topic("sales", key=str, value=Sale), name="latest")
    both = app.topology()
    (loss,) = against(App("shop").topology(), both).losses
    assert loss.store == "latest"


def processing(*stores: str, value: type = int) -> Topology:
    class Nothing(Processor[str, Sale, str, Sale]):
        def process(self, record: Record[str, Sale]) -> None:
            pass

    kind = type("Last", (Nothing,), {name: kv_store(str, value) for name in stores})
    app = App("shop")
    app.stream(app.topic("sales", key=str, value=Sale)).process(kind, name="last")
    return app.topology()


def test_each_store_of_a_processor_is_judged_by_itself() -> None:
    old = processing("seen")
    more = against(processing("seen", "added"), old)
    assert not more.losses
    assert [loss.store for loss in against(old, processing("seen", "added")).losses] == [
        "last/added"
    ]
    (loss,) = against(processing("seen", value=str), old).losses
    assert loss.store == "last/seen"


@pytest.mark.parametrize("other", [shop(filtered=True), shop(name="x"), shop(first=True)])
def test_what_is_added_one_way_is_removed_the_other(other: Topology) -> None:
    there, back = against(other), against(shop(), other)
    assert set(there.added) == set(back.removed)
    assert set(there.removed) == set(back.added)


def test_a_join_of_streams_may_have_another_window_but_not_other_values() -> None:
    def joined(value: type, within: str) -> Topology:
        app = App("joined")
        left = app.stream(app.topic("left", key=str, value=value))
        right = app.stream(app.topic("right", key=str, value=str))
        left.left_join(right, lambda a, b: f"{a}{b}", within=within, name="pairs")
        return app.topology()

    before = Blueprint.of(joined(str, "1m"))
    assert not difference(before, Blueprint.of(joined(str, "5m"))).losses
    losses = difference(before, Blueprint.of(joined(int, "1m"))).losses
    assert {loss.store for loss in losses} == {"pairs/left", "pairs/unmatched"}
