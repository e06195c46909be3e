"""The app of the failovers: windows before and behind a repartition, a join of each kind.

Its rows follow from its input log alone, independent of workers, commits and moves. So `app_rows`
can compute what they have to be. `streamlog -A chaos.mirrored_app worker` runs a worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamlog import App, Emit, JoinWindow, Windowed, agg, tumbling

APP_ID: Final = "shop"
PARTITIONS: Final = 3
WINDOW_MS: Final = 500
VISIT_GRACE_MS: Final = 200
"""Short, so that windows close while the app runs, and late records are dropped."""
PRICE_GRACE_MS: Final = 2_000
"""Longer than a task may take orders of a partition before prices that were written earlier."""
PAID_WITHIN_MS: Final = 200
PAID_GRACE_MS: Final = 30_000
"""Longer than a task may take orders of a partition before payments that were written earlier."""
UNPAID: Final = -1


@dataclass
class Order:
    """An order of a customer, who is its key."""

    number: int
    product: str
    pieces: int
    at_ms: int


@dataclass
class Price:
    """What one piece of a product costs from a time on; the product is the key."""

    cents: int
    at_ms: int


@dataclass
class Payment:
    """A payment of a customer, who is its key; for orders of shortly before."""

    number: int
    at_ms: int


@dataclass
class Settled:
    """An order with a payment, or an order that was not paid; the customer is the key."""

    order: int
    payment: int
    """`UNPAID` if there is none."""


@dataclass
class Sale:
    """An order with the price that was valid at its time; its key is the product."""

    number: int
    pieces: int
    cents: int


@dataclass
class Visits:
    """The orders of a customer in a window."""

    orders: int
    pieces: int


@dataclass
class Revenue:
    """The sales of a product in a window."""

    orders: int
    cents: int


def sale(order: Order, price: Price) -> Sale:
    """Return an order with its price."""
    return Sale(order.number, order.pieces, order.pieces * price.cents)


def settle(order: Order, payment: Payment | None) -> Settled:
    """Return an order with its payment, if it has one."""
    return Settled(order.number, UNPAID if payment is None else payment.number)


app = App(APP_ID, commit_interval="100ms")
orders = app.topic(
    "orders", key=str, value=Order, partitions=PARTITIONS, timestamp=lambda each: each.at_ms
)
prices = app.topic(
    "prices", key=str, value=Price, partitions=PARTITIONS, timestamp=lambda each: each.at_ms
)
payments = app.topic(
    "payments", key=str, value=Payment, partitions=PARTITIONS, timestamp=lambda each: each.at_ms
)
settled = app.topic("settled", key=str, value=Settled, partitions=PARTITIONS)
sales = app.topic("sales", key=str, value=Sale, partitions=PARTITIONS)
visits = app.topic("visits", key=Windowed[str], value=Visits, partitions=PARTITIONS)
revenue = app.topic("revenue", key=Windowed[str], value=Revenue, partitions=PARTITIONS)

# Final rows, in the order of the partition: a lost or repeated record changes one of them.
(
    app.stream(orders)
    .group_by_key()
    .windowed(tumbling(f"{WINDOW_MS}ms", grace=f"{VISIT_GRACE_MS}ms"))
    .emit(Emit.CLOSE)
    .agg(Visits, name="visits", orders=agg.count(), pieces=agg.sum(lambda order: order.pieces))
    .changes()
    .to(visits)
)
# Two streams, whose records wait for each other in state.
(
    app.stream(orders)
    .left_join(
        app.stream(payments),
        settle,
        within=JoinWindow.of(f"{PAID_WITHIN_MS}ms", before="0s", grace=f"{PAID_GRACE_MS}ms"),
        name="with-payment",
    )
    .to(settled)
)
# Behind the repartition, the order of customers is open: rows of orders, and sums that change.
sold = (
    app.stream(orders)
    .rekey(lambda _, order: order.product, name="by-product")
    .join(
        app.table(prices, name="price-list", history="1h"),
        sale,
        as_of=True,
        grace=f"{PRICE_GRACE_MS}ms",
        name="with-price",
    )
)
sold.to(sales)
(
    sold.group_by_key()
    .windowed(tumbling(f"{WINDOW_MS}ms", grace="10m"))
    .emit(Emit.COMMIT)
    .agg(Revenue, name="revenue", orders=agg.count(), cents=agg.sum(lambda row: row.cents))
    .changes()
    .to(revenue)
)
