"""Windows, columns and late records, with their test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from streamlog import App, Emit, Late, Windowed, agg, tumbling


@dataclass
class Sale:
    shop: str
    amount: float
    sold_at: datetime
    discount: float | None = None


@dataclass
class Takings:
    total: float
    sales: int
    largest: list[float]
    given: float
    first: datetime


def shop_of(_: str, sale: Sale) -> str:
    return sale.shop


app = App("shop")
sales = app.topic("sales", key=str, value=Sale, timestamp=lambda s: s.sold_at)
takings = app.topic("takings", key=Windowed[str], value=Takings)
too_late = app.topic("sales-late", key=str, value=Late[Sale])

per_minute = (
    app.stream(sales)
    .group_by(shop_of, name="by-shop")
    .windowed(tumbling("1m", grace="20s"))
    .idle_after("30s")
    .late(too_late)
    .emit(Emit.CLOSE)
    .agg(
        Takings,
        name="takings",
        total=agg.sum(lambda s: s.amount),
        sales=agg.count(),
        largest=agg.top(2, "amount"),
        given=agg.sum(lambda s: s.discount or 0.0),
        first=agg.min("sold_at"),
    )
)
per_minute.changes().to(takings)


def at(minute: int, second: int) -> datetime:
    return datetime(2025, 1, 1, 12, minute, second, tzinfo=UTC)


def main() -> None:
    with app.test() as t:
        source = t.input(sales)
        source.send(Sale("ulm", 3.0, at(0, 10)), key="a")
        source.send(Sale("ulm", 4.0, at(0, 50), 0.5), key="b")
        assert t.output(takings).records == []
        t.restart()
        source.send(Sale("ulm", 1.0, at(1, 30)), key="c")
        assert t.output(takings).values == [Takings(7.0, 2, [4.0, 3.0], 0.5, at(0, 10))]
        source.send(Sale("ulm", 9.0, at(0, 5)), key="d")
        assert t.output(too_late).pop().value.value.amount == 9.0
