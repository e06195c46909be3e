"""Missing fields of values, and columns over values of the wrong type."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog import App, agg, tumbling


@dataclass
class Sale:
    id: str
    amount: int
    discount: float | None = None


@dataclass
class Takings:
    total: int


app = App("fields")
sales = app.stream(app.topic("sales", key=str, value=Sale))
per_shop = sales.group_by_key()

# E: "Sale" has no attribute "amuont"
sales.map_values(lambda s: s.amuont)

# E: "Sale" has no attribute "amuont"
sales.filter(lambda _, s: s.amuont > 0)

# E: "Sale" has no attribute "number"
sales.dedupe(lambda s: s.number, within="1h", name="deduped")

# R: Sale has no field 'number'
sales.dedupe("number", within="1h", name="deduped-by-name")

# E: "Sale" has no attribute "at"
sales.set_timestamp(lambda s: s.at)

# E: "Sale" has no attribute "shop"
sales.group_by(lambda _, s: s.shop, name="by-shop")

# E: "Sale" has no attribute "cents"
per_shop.aggregate(int, lambda n, s: n + s.cents, name="aggregated")

# E: "Sale" has no attribute "amuont"
per_shop.agg(Takings, name="summed", total=agg.sum(lambda s: s.amuont))

# R: Sale has no field 'amuont'.*did you mean 'amount'
per_shop.agg(Takings, name="summed-by-name", total=agg.sum("amuont"))

# E: "Sale" has no attribute "cents"
per_shop.windowed(tumbling("1m", grace="1s")).agg(
    Takings, name="windowed", total=agg.max(lambda s: s.cents)
)

# R: Takings has no field 'totla'
per_shop.agg(Takings, name="misspelt-column", totla=agg.sum("amount"))

# E: incompatible type "Callable[[Sale], str]"
per_shop.agg(Takings, name="summed-text", total=agg.sum(lambda s: s.id))

# R: field 'id' is str, and agg.sum takes numbers
per_shop.agg(Takings, name="summed-text-by-name", total=agg.sum("id"))

# E: incompatible type "Callable[[Sale], float | None]"
per_shop.agg(Takings, name="summed-none", total=agg.sum(lambda s: s.discount))

# R: return another value for it, as in lambda v: v.discount or 0
per_shop.agg(Takings, name="summed-none-by-name", total=agg.sum("discount"))

# E: incompatible type "Callable[[Sale], float | None]"
per_shop.agg(Takings, name="largest-none", total=agg.max(lambda s: s.discount))

# R: declared as int, and agg.mean returns float
per_shop.agg(Takings, name="mean-of-int", total=agg.mean("amount"))
