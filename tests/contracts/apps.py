"""Apps whose contracts fit, for tests of the map and of documents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from streamlog import App, Windowed, tumbling
from streamlog.contracts.contract import Contract


class Currency(Enum):
    EUR = "EUR"
    USD = "USD"


class Card(msgspec.Struct, tag=True):
    number: str


class Invoice(msgspec.Struct, tag=True):
    address: dict[str, str]


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: int
    lines: list[Line]
    at: datetime
    payment: Card | Invoice
    size: tuple[int, str] = (1, "a")
    currency: Currency = Currency.EUR
    note: str | None = None


@dataclass
class OrderId:
    id: int


def shop() -> App:
    app = App("shop")
    app.topic("orders", key=str, value=Order)
    app.topic("rates", key=str, value=float)
    app.topic("raw", key=bytes, value=bytes)
    return app


def billing(value: type[Any] = Order) -> App:
    app = App("billing")
    orders = app.topic("orders", key=str, value=value)
    counts = app.topic("counts", key=Windowed[str], value=int)
    app.global_table(app.topic("rates", key=str, value=float))
    windowed = app.stream(orders).group_by_key().windowed(tumbling("10s", grace="1s"))
    windowed.count(name="per-key").changes().to(counts)
    return app


def by_id(key: str, value: OrderId) -> tuple[OrderId, str]:
    return value, key


def fraud() -> App:
    app = App("fraud")
    ids = app.topic("orders", key=str, value=OrderId)
    named = app.stream(ids).map(by_id, name="by-id")
    named.to(app.topic("ids", key=OrderId, value=str))
    return app


def contract(app: App) -> Contract:
    return app.program().contract


CONTRACTS = [contract(shop()), contract(billing()), contract(fraud())]
