"""The migration of docs/serdes.md."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog import App, migration


@dataclass
class TotalV1:
    cents: int


@dataclass
class Total:
    euros: float
    sales: int = 0


@migration
def to_total(old: TotalV1) -> Total:
    return Total(old.cents / 100)


def add(total: Total, cents: int) -> Total:
    return Total(total.euros + cents / 100, total.sales + 1)


app = App("till")
sales = app.topic("sales", key=str, value=int)
totals = app.stream(sales).group_by_key().aggregate(lambda: Total(0.0), add, name="totals")


def main() -> None:
    with app.test() as t:
        t.input(sales).send(250, key="a")
        assert t.table(totals) == {"a": Total(2.5, 1)}
