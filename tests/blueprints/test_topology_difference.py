"""Differences of a changed program, and losses of its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from streamlog import App, Processor, Record, Windowed, agg, kv_store, tumbling
from streamlog.blueprints.blueprint import Blueprint, ConnectorEntry
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


def difference_to(new: Topology, old: Topology | None = None) -> TopologyDifference:
    return difference(Blueprint.of(old or shop()), Blueprint.of(new))


def test_an_equal_program_has_no_difference() -> None:
    assert not difference_to(shop())
    assert Blueprint.of(shop()).encode() == Blueprint.of(shop()).encode()


def test_a_blueprint_round_trips() -> None:
    shop_blueprint = Blueprint.of(shop())
    assert Blueprint.decode(shop_blueprint.encode()) == shop_blueprint


def test_a_new_unnamed_operator_renames_no_other() -> None:
    found = difference_to(shop(filtered=True))
    assert found.added == ("filter 1 after sales-source",)
    assert found.removed == ()
    assert found.changed == ("Rekey by-shop: after.0 sales-source -> filter 1 after sales-source",)
    assert not found.losses


def test_a_new_name_starts_new_state_and_loses_the_old() -> None:
    found = difference_to(shop(name="by-shop-10s"))
    assert [(loss.what, loss.store) for loss in found.losses] == [
        ("the state of per-shop", "per-shop")
    ]
    assert found.notes == (
        "state of by-shop-10s is new: it starts empty and receives records read from now on",
    )
    assert "- WindowedAggregate per-shop" in found.lines()
    assert "+ WindowedAggregate by-shop-10s" in found.lines()


def test_a_changed_window_size_loses_the_rows() -> None:
    (loss,) = difference_to(shop(size="20s")).losses
    assert str(loss) == "the state of per-shop: windows.size_ms 10000 -> 20000"


def test_a_changed_grace_keeps_the_rows() -> None:
    found = difference_to(shop(grace="2s"))
    assert not found.losses
    assert len(found.changed) == 1


def test_a_changed_aggregator_loses_the_state() -> None:
    (loss,) = difference_to(shop(fold=agg.max)).losses
    assert "columns.1.1 sum -> max" in loss.why


def test_rows_that_the_new_type_can_not_read_are_lost() -> None:
    found = difference_to(shop(product=int))
    (loss,) = found.losses
    assert loss.store == "products"
    assert any(
        line.startswith("topic products: value StrSerde -> IntSerde") for line in found.changed
    )


def test_a_new_first_stream_moves_the_state_of_the_others() -> None:
    found = difference_to(shop(first=True))
    lost = {loss.store for loss in found.losses}
    assert lost == {"per-shop", "products", ""}
    assert any("it is in shop-1-changelog" in loss.why for loss in found.losses)
    positions = {loss.what for loss in found.losses if not loss.store}
    assert positions == {"the position in shop-by-shop-repartition", "the position in products"}


def test_removing_a_table_and_its_topic_loses_its_state() -> None:
    app = App("shop")
    app.table(app.topic("sales", key=str, value=Sale), name="latest")
    both = app.topology()
    (loss,) = difference_to(App("shop").topology(), both).losses
    assert loss.store == "latest"


def processing(*stores: str, value: type = int) -> Topology:
    class Ignoring(Processor[str, Sale, str, Sale]):
        def process(self, record: Record[str, Sale]) -> None:
            pass

    kind = type("Last", (Ignoring,), {name: kv_store(str, value) for name in stores})
    app = App("shop")
    app.stream(app.topic("sales", key=str, value=Sale)).process(kind, name="last")
    return app.topology()


def test_stores_of_a_processor_are_compared_one_by_one() -> None:
    old = processing("seen")
    more = difference_to(processing("seen", "added"), old)
    assert not more.losses
    assert [loss.store for loss in difference_to(old, processing("seen", "added")).losses] == [
        "last/added"
    ]
    (loss,) = difference_to(processing("seen", value=str), old).losses
    assert loss.store == "last/seen"


@pytest.mark.parametrize("other", [shop(filtered=True), shop(name="x"), shop(first=True)])
def test_additions_are_removals_in_the_opposite_direction(other: Topology) -> None:
    forward, backward = difference_to(other), difference_to(shop(), other)
    assert set(forward.added) == set(backward.removed)
    assert set(forward.removed) == set(backward.added)


def test_a_stream_join_may_change_its_window_but_not_its_values() -> None:
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


def entries(**given: tuple[str, str, list[str]]) -> Blueprint:
    connectors = {name: ConnectorEntry(*each) for name, each in given.items()}
    return Blueprint.of(App("app").topology(), connectors)


TAIL = ("source", "Tail", ["lines"])
FILES = ("sink", "Objects", ["lines"])


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ({"a": TAIL}, {"a": TAIL}, []),
        ({"a": TAIL}, {"b": TAIL}, ["source a"]),
        # A topic that is renamed takes the default name of its connector along.
        ({"a": TAIL}, {"b": ("source", "Tail", ["b"])}, ["source a"]),
        ({"a": TAIL}, {}, []),
        ({}, {"b": TAIL}, []),
        ({"a": TAIL}, {"a": TAIL, "b": TAIL}, []),
        ({"a": TAIL}, {"b": FILES}, []),
        ({"a": TAIL}, {"b": ("source", "SpoolDir", ["lines"])}, []),
        ({"a": FILES, "b": ("sink", "Objects", ["x"])}, {"c": ("sink", "Objects", ["x"])},
         ["sink b"]),
        ({"a": FILES, "b": FILES}, {"c": FILES, "d": FILES}, ["sink a", "sink b"]),
    ],
)  # fmt: skip
def test_a_renamed_connector_loses_its_offsets(
    old: dict[str, Any], new: dict[str, Any], lost: list[str]
) -> None:
    found = difference(entries(**old), entries(**new))
    assert [loss.what.removeprefix("the offsets of ") for loss in found.losses] == lost
    assert len(found.added) == len(new.keys() - old.keys())
    assert len(found.removed) == len(old.keys() - new.keys())


def test_a_connector_of_another_class_is_shown() -> None:
    found = difference(entries(a=TAIL), entries(a=("source", "SpoolDir", ["lines", "more"])))
    assert found.changed == (
        'source a: kind Tail -> SpoolDir, topics ["lines"] -> ["lines","more"]',
    )


def test_without_connectors_the_bytes_are_those_of_versions_that_knew_none() -> None:
    """A snapshot, and a version in the log, stay those of the same program."""
    assert b"connectors" not in Blueprint.of(shop()).encode()
    assert Blueprint.decode(entries(a=TAIL).encode()) == entries(a=TAIL)
