"""An app with most of what takes part in a commit: joins, windows, tables, two repartitions.

Workers run it as `streamlog -A tests.worker.shop worker`; the test driver runs it, too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from random import Random
from time import sleep
from typing import Any

from msgspec.json import encode

from streamlog import App, Emit, JoinWindow, Windowed, agg, tumbling
from streamlog.worker import worker
from streamlog.worker.inputs import input_ends

PACE_S = float(os.environ.get("PACE_S", "0"))
"""The time that an order takes, so that a kill can interrupt it."""
PARTITIONS = 3
CUSTOMERS = 40
SPAN_MS = 60_000

Fed = tuple[str, int, str, bytes, int]

worker.SESSION_TIMEOUT_MS, worker.HEARTBEAT_INTERVAL_MS = 2_000, 300  # Failures are noticed sooner.
# Kafka's brokers have no `mark.quiet.ms`: with this setting time stands still there, too.
input_ends.UNMARKED_CALM_MS = int(os.environ.get("CALM_MS", "3600000"))


@dataclass
class Order:
    """A customer's order and its amount."""

    order: str
    customer: str
    cents: int
    at_ms: int


@dataclass
class Payment:
    """A payment for an order."""

    order: str
    cents: int
    at_ms: int


@dataclass
class Settled:
    """An order with the amount paid for it in time."""

    order: str
    customer: str
    open_cents: int


@dataclass
class Total:
    """The total of a city and a window."""

    orders: int
    open_cents: int


def build(app_id: str, **settings: Any) -> App:
    """Build the app; its topic names begin with its id."""
    app = App(app_id, commit_interval="50ms", **settings)

    def settle(order: Order, payment: Payment | None) -> Settled:
        paid_cents = payment.cents if payment else 0
        return Settled(order.order, order.customer, order.cents - paid_cents)

    def timed(value: Order | Payment) -> int:
        return value.at_ms

    orders = app.topic(
        f"{app_id}-orders", key=str, value=Order, partitions=PARTITIONS, timestamp=timed
    )
    payments = app.topic(
        f"{app_id}-payments", key=str, value=Payment, partitions=PARTITIONS, timestamp=timed
    )
    customers = app.topic(f"{app_id}-customers", key=str, value=str, partitions=PARTITIONS)
    settled = app.topic(f"{app_id}-settled", key=str, value=Settled, partitions=2)
    totals = app.topic(f"{app_id}-totals", key=Windowed[str], value=Total, partitions=2)

    cities = app.table(customers)
    pairs = (
        app.stream(orders)
        .peek(lambda _: sleep(PACE_S))
        .rekey(lambda _, order: order.order, name="by-order")
        .left_join(
            app.stream(payments),
            settle,
            within=JoinWindow(before_ms=0, after_ms=2_000, grace_ms=500),
            name="pairs",
        )
    )
    pairs.to(settled)
    (
        pairs.rekey(lambda _, pair: pair.customer, name="by-customer")
        .left_join(cities, lambda pair, city: (city or "nowhere", pair.open_cents), name="city")
        .group_by(lambda _, row: row[0], name="by-city")
        .windowed(tumbling("5s", grace="3s"))
        .emit(Emit.CLOSE)
        .agg(Total, name="totals", orders=agg.count(), open_cents=agg.sum(lambda row: row[1]))
        .changes()
        .to(totals)
    )
    return app


def history(app_id: str, orders: int, seed: int) -> list[Fed]:
    """Return topic, partition, key, value and time of the whole input."""
    rng = Random(seed)
    found: list[Fed] = []
    for number in range(CUSTOMERS):
        city = rng.choice(["Bergen", "Lund", "Turku", "Vejle"])
        # Before all orders, so that the city that an order finds is certain.
        found.append((f"{app_id}-customers", -1, f"c{number}", city.encode(), 1))
    for number in range(orders):
        at_ms = 1_000_000 + number * SPAN_MS // orders + rng.randrange(300)
        order = Order(f"o{number}", f"c{rng.randrange(CUSTOMERS + 2)}", rng.randrange(9_999), at_ms)
        found.append(
            (f"{app_id}-orders", rng.randrange(PARTITIONS), order.customer, encode(order), at_ms)
        )
        if rng.random() < 0.8:
            paid_ms = at_ms + rng.choice([0, 30, 1_500, 2_000, 2_001, 4_000])
            payment = Payment(order.order, order.cents, paid_ms)
            found.append((f"{app_id}-payments", -1, order.order, encode(payment), paid_ms))
    return found


app = build(
    os.environ.get("APP", "shop"),
    log=os.environ.get("LOG", "embedded:./log"),
    state_dir=os.environ.get("STATE", "./state"),
)
