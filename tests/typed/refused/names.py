"""Operators with state, but without the name that identifies it."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog import App, Processor, Record, agg, tumbling


@dataclass
class Sale:
    shop: str
    amount: int


@dataclass
class Takings:
    total: int


class Passing(Processor[str, Sale, str, Sale]):
    def process(self, record: Record[str, Sale]) -> None:
        self.ctx.forward(record.key, record.value)


app = App("names")
sales = app.stream(app.topic("sales", key=str, value=Sale))
per_shop = sales.group_by_key()
per_minute = per_shop.windowed(tumbling("1m", grace="1s"))

# E: Missing named argument "name"
# R: count\(\) missing 1 required keyword-only argument: 'name'
per_shop.count()

# E: Missing named argument "name"
# R: reduce\(\) missing 1 required keyword-only argument: 'name'
per_shop.reduce(lambda _, late: late)

# E: Missing named argument "name"
# R: aggregate\(\) missing 1 required keyword-only argument: 'name'
per_shop.aggregate(int, lambda total, sale: total + sale.amount)

# E: Missing named argument "name"
# R: agg\(\) missing 1 required keyword-only argument: 'name'
per_minute.agg(Takings, total=agg.sum("amount"))

# E: Missing named argument "name"
# R: count\(\) missing 1 required keyword-only argument: 'name'
per_minute.count()

# E: Missing named argument "name"
# R: dedupe\(\) missing 1 required keyword-only argument: 'name'
sales.dedupe("shop", within="1h")

# E: Missing named argument "name"
# R: process\(\) missing 1 required keyword-only argument: 'name'
sales.process(Passing)

# E: Missing named argument "name"
# R: group_by\(\) missing 1 required keyword-only argument: 'name'
sales.group_by(lambda _, sale: sale.shop)

# E: Missing named argument "name"
# R: repartition\(\) missing 1 required keyword-only argument: 'name'
sales.repartition()
