"""Cogrouped streams: folds, windows, late records, and refused declarations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from streamlog import App, Emit, Late, Topic, Windowed, session, sliding, tumbling
from streamlog.dsl.grouped import NumberedSerde
from streamlog.durations import when_ms
from streamlog.errors import SerdeError, TopologyError
from streamlog.serdes import serde_for


@dataclass
class Customer:
    ordered: int = 0
    paid: float = 0.0


def add_order(state: Customer, count: int) -> Customer:
    state.ordered += count
    return state


def add_payment(state: Customer, amount: float) -> Customer:
    state.paid += amount
    return state


def merge_customers(first: Customer, second: Customer) -> Customer:
    return Customer(first.ordered + second.ordered, first.paid + second.paid)


def cogrouped_of(app: App, partitions: int = 1) -> tuple[Any, Topic[str, int], Topic[str, float]]:
    orders = app.topic("orders", key=str, value=int, partitions=partitions)
    payments = app.topic("payments", key=str, value=float, partitions=partitions)
    paying = app.stream(payments).group_by_key()
    cogrouped = app.stream(orders).group_by_key().cogroup(add_order).cogroup(paying, add_payment)
    return cogrouped, orders, payments


def test_cogroup_folds_each_stream_by_its_function() -> None:
    app = App("customers")
    cogrouped, orders, payments = cogrouped_of(app, partitions=3)
    out = app.topic("out", key=str, value=Customer)
    table = cogrouped.aggregate(Customer, name="customers")
    table.changes().to(out)
    with app.test() as t:
        for number in range(12):
            key = f"c{number % 4}"
            t.input(orders).send(number, key=key, at=number)
            t.input(payments).send(number / 2, key=key, at=number)
            t.input(payments).send(None, key=key, at=number)
            t.restart()
        assert t.table(table) == {f"c{n}": Customer(3 * n + 12, (3 * n + 12) / 2) for n in range(4)}
        assert len(t.output(out).records) == 24
        assert t.drops["customers", "null value"] == 12


def test_cogrouped_streams_with_new_keys_are_repartitioned() -> None:
    app = App("regrouped")
    orders = app.topic("orders", key=int, value=str, partitions=2)
    payments = app.topic("payments", key=int, value=str, partitions=4)

    def last(_: int, value: str) -> str:
        return value[-1]

    def add(state: str, value: str) -> str:
        return f"{state} {value}"

    by_order = app.stream(orders).group_by(last, name="order-by-letter")
    by_payment = app.stream(payments).group_by(last, name="payment-by-letter")
    table = by_order.cogroup(add).cogroup(by_payment, add).aggregate(str, name="letters")
    with app.test() as t:
        for number, letter in enumerate("abcabc"):
            t.input(orders).send(f"o{letter}", key=number, at=number)
            t.input(payments).send(f"p{letter}", key=number, at=number)
        assert t.table(table) == {
            "a": " oa pa oa pa", "b": " ob pb ob pb", "c": " oc pc oc pc"
        }  # fmt: skip


@pytest.mark.parametrize(
    "windows", [tumbling("10ms", grace="5ms"), session("10ms"), sliding("10ms", grace="5ms")]
)
def test_cogrouped_windows_survive_restarts(windows: Any) -> None:
    app = App("windows")
    cogrouped, orders, payments = cogrouped_of(app)
    out = app.topic("out", key=Windowed[str], value=Customer)
    table = cogrouped.windowed(windows).aggregate(Customer, merge=merge_customers, name="customers")
    table.changes().to(out)
    with app.test() as t:
        t.input(orders).send(2, key="a", at=10)
        t.restart()
        t.input(payments).send(0.5, key="a", at=15)
        t.restart()
        t.input(orders).send(1, key="a", at=12)
        t.input(orders).send(1, key="z", at=100)
        t.input(payments).send(1.0, key="z", at=100)
        rows = {when_ms(r.key.start): r.value for r in t.output(out).records}
        expected = {
            "Tumbling": {10: Customer(3, 0.5)},
            "Sessions": {10: Customer(3, 0.5)},
            "Sliding": {
                0: Customer(2, 0),
                2: Customer(3, 0),
                5: Customer(3, 0.5),
                11: Customer(1, 0.5),
                13: Customer(0, 0.5),
            },
        }
        assert rows == expected[type(windows).__name__]


def test_late_records_of_cogrouped_streams_keep_their_value() -> None:
    app = App("late")
    cogrouped, orders, payments = cogrouped_of(app)
    late = app.topic("late", key=str, value=Late[float])
    windowed = cogrouped.windowed(tumbling("10ms")).emit(Emit.UPDATE)
    windowed.late(late).aggregate(Customer, name="to-topic")
    seen: list[Any] = []
    windowed.late(seen.append).aggregate(Customer, name="called")
    with app.test() as t:
        t.input(orders).send(1, key="a", at=50)
        t.input(payments).send(1.0, key="a", at=50)
        t.input(payments).send(2.5, key="a", at=3)
        assert t.output(late).pop().value.value == 2.5
        assert [(record.value, record.topic) for record in seen] == [(2.5, "payments")]


def test_cogrouped_windows_refuse_early_emission() -> None:
    cogrouped, *_ = cogrouped_of(App("early"))
    windowed = cogrouped.windowed(tumbling("10s")).emit(Emit.early("1s"))
    with pytest.raises(TopologyError, match=r"'customers' can't use Emit\.early"):
        windowed.aggregate(Customer, name="customers")


def test_cogroup_of_streams_with_different_keys_is_refused() -> None:
    app = App("refused")
    orders = app.topic("orders", key=str, value=int)
    payments = app.topic("payments", key=int, value=float)
    cogrouped: Any = app.stream(orders).group_by_key().cogroup(add_order)
    cogrouped = cogrouped.cogroup(app.stream(payments).group_by_key(), add_payment)
    with pytest.raises(TopologyError, match="equal keys would not match"):
        cogrouped.aggregate(Customer, name="customers")


def test_cogroup_of_streams_of_two_apps_is_refused() -> None:
    cogrouped, _, _ = cogrouped_of(App("one"))
    _, orders, _ = cogrouped_of(other := App("two"))
    mixed = cogrouped.cogroup(other.stream(orders).group_by_key(), add_order)
    with pytest.raises(TopologyError, match="can't cogroup"):
        mixed.aggregate(Customer, name="customers")


def test_a_cogrouped_value_carries_the_number_of_its_stream() -> None:
    serde = NumberedSerde([serde_for(int), serde_for(str)])
    assert serde.loads(serde.dumps((1, "x"))) == (1, "x")
    assert serde.loads(serde.dumps((0, 7))) == (0, 7)
    assert serde.form != NumberedSerde([serde_for(str), serde_for(int)]).form
    with pytest.raises(SerdeError, match="one of the 2 streams"):
        serde.loads(b"\x02x")
    with pytest.raises(SerdeError, match="one of the 2 streams"):
        serde.loads(b"")


@pytest.mark.parametrize("windows", [tumbling("10ms"), session("10ms"), sliding("10ms")])
def test_a_quiet_stream_of_a_cogroup_does_not_hold_windows_open(windows: Any) -> None:
    app = App("united")
    cogrouped, orders, payments = cogrouped_of(app)
    out = app.topic("out", key=Windowed[str], value=Customer)
    late: list[Any] = []
    windowed = cogrouped.windowed(windows).late(late.append)
    windowed.aggregate(Customer, merge=merge_customers, name="customers").changes().to(out)
    with app.test() as t:
        t.input(orders).send(2, key="a", at=5)
        t.restart()
        t.input(orders).send(1, key="b", at=60)
        assert [r.value for r in t.output(out).records] == [Customer(2, 0)]
        t.input(payments).send(1.5, key="a", at=5)
        assert [record.value for record in late] == [1.5]
