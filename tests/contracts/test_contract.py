"""The contract of an app: what it writes and reads, from its declarations and its code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from streamlog import App, Stream, Windowed, agg, tumbling
from streamlog.blueprints.blueprint import Blueprint
from streamlog.contracts.contract import Contract, contract_of_blueprint
from streamlog.errors import CorruptData


@dataclass
class Order:
    id: int
    amount: float


@dataclass
class Total:
    amount: float


def contract(app: App) -> Contract:
    return app.program().contract


def uses(found: Contract) -> dict[str, tuple[list[str], list[str]]]:
    return {name: (use.read_by, use.written_by) for name, use in found.topics.items()}


def test_sources_are_read_and_sinks_are_written() -> None:
    app = App("billing")
    orders = app.topic("orders", key=str, value=Order)
    totals = app.topic("totals", key=Windowed[str], value=Total)
    (
        app.stream(orders)
        .group_by(lambda _, order: str(order.id), name="by-id")
        .windowed(tumbling("10s", grace="1s"))
        .agg(Total, name="sums", amount=agg.sum(lambda order: order.amount))
        .changes()
        .to(totals)
    )
    found = contract(app)
    assert uses(found) == {
        "orders": (["orders-source"], []),
        "totals": ([], ["sink 1 after sums"]),
    }
    assert found.topics["orders"].value.name == "Order"
    assert found.topics["orders"].value.form["json"]["$defs"]["Order"]["required"] == [
        "id",
        "amount",
    ]
    assert "windowed" in found.topics["totals"].key.form


def test_a_declared_topic_that_the_app_does_not_read_counts_as_written() -> None:
    app = App("shop")
    app.topic("orders", key=str, value=Order)
    assert uses(contract(app)) == {"orders": ([], ["shop"])}


def test_agents_read_their_topic_and_write_their_sink() -> None:
    app = App("mailer")
    orders = app.topic("orders", key=str, value=Order)
    mails = app.topic("mails", key=str, value=str)

    @app.agent(orders, sink=mails)
    async def mail(stream: Stream[str, Order]) -> Any:
        async for order in stream:
            yield str(order.id)

    assert uses(contract(app)) == {"mails": ([], ["mail"]), "orders": (["mail"], [])}


def test_functions_write_the_topics_that_their_code_sends_to() -> None:
    app = App("shop")
    orders = app.topic("orders", key=str, value=Order)
    named = app.topic("named", key=str, value=Order)
    app.stream(orders)
    app.stream(named)

    async def send() -> None:
        await orders.send(Order(1, 2.0), key=named.name)

    @app.timer("1s")
    async def tick() -> None:
        await send()

    @app.command()
    async def order() -> None:
        await send()

    found = uses(contract(app))
    assert found["orders"] == (["orders-source"], ["tick", "order"])
    assert found["named"] == (["named-source"], [])


def test_the_topic_of_an_agent_is_written_by_who_casts_to_it() -> None:
    app = App("mailer")
    orders = app.topic("orders", key=str, value=Order)

    @app.agent(orders)
    async def mail(stream: Stream[str, Order]) -> None:
        async for _ in stream:
            pass

    @app.timer("1s")
    async def tick() -> None:
        await mail.cast(Order(1, 2.0))

    assert uses(contract(app))["orders"] == (["mail"], ["tick"])


def test_global_tables_and_joins_read_their_topics() -> None:
    app = App("billing")
    orders = app.topic("orders", key=str, value=Order)
    rates = app.topic("rates", key=str, value=float)
    customers = app.topic("customers", key=str, value=str)
    app.stream(orders).join(app.table(customers), lambda order, name: f"{name}{order}")
    app.global_table(rates)
    found = contract(app)
    assert [name for name, use in found.topics.items() if use.read_by] == [
        "customers",
        "orders",
        "rates",
    ]
    assert found.topics["orders"].joined_with == ["customers"]
    assert found.topics["customers"].joined_with == ["orders"]


def test_a_contract_round_trips() -> None:
    app = App("shop")
    app.topic("orders", key=str, value=Order)
    found = contract(app)
    assert Contract.decode(found.encode()) == found
    with pytest.raises(CorruptData, match="not readable"):
        Contract.decode(b"{}")


def test_a_stored_topology_without_a_contract_still_says_who_reads_and_writes() -> None:
    app = App("billing")
    orders = app.topic("orders", key=str, value=Order)
    rates = app.topic("rates", key=str, value=float)
    stream = app.stream(orders).repartition(name="again")
    table = app.global_table(rates)
    paid = stream.lookup(table, lambda _, order: str(order.id), lambda order, _: order)
    paid.to(app.topic("paid", key=str, value=Order))
    found = contract_of_blueprint("billing", Blueprint.of(app.topology()))
    here = contract(app)
    assert [name for name, use in found.topics.items() if use.read_by] == ["orders", "rates"]
    assert [name for name, use in found.topics.items() if use.written_by] == ["paid"]
    assert {name: use.value.form for name, use in found.topics.items()} == {
        name: use.value.form for name, use in here.topics.items()
    }
