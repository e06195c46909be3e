"""The app: an access log and a table of PostgreSQL in, files and a table of SQL out.

Each purchase meets the price that counted when it was made: the price list keeps its history, and
a purchase waits 15 seconds, in event time, for a price that arrives late. Run a worker of its own
with `streamlog -A examples.shop.app worker`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec

from streamlog import App, Emit, Windowed, agg, tumbling
from streamlog.connect import Flush
from streamlog.connectors.objects import Objects
from streamlog.connectors.postgres_cdc import PostgresCdc
from streamlog.connectors.sql import SqlSink
from streamlog.connectors.tail import Tail

PARTITIONS = 3
DIRECTORY = os.environ.get("SHOP_DIRECTORY", "./.streamlog/shop")
DATABASE = os.environ.get("SHOP_DATABASE", "postgresql://postgres@127.0.0.1/shop")
LOG_FILES = os.environ.get("SHOP_LOG_FILES", "/var/log/nginx/access.log*")


class Line(msgspec.Struct):
    """A line of the access log."""

    id: str
    time_s: float
    product: int
    quantity: int


@dataclass
class Purchase:
    """A purchase at the time at which nginx logged it."""

    id: str
    at: datetime
    product: int
    quantity: int


@dataclass
class Product:
    """A row of the table of products."""

    id: int
    name: str
    price: Decimal


@dataclass
class Sale:
    """A purchase with the price that counted then."""

    pieces: int
    revenue: Decimal


@dataclass
class Total:
    """What the sales of one product and minute come to."""

    purchases: int
    pieces: int
    revenue: Decimal


@dataclass
class Minute:
    """What one product has brought in one minute."""

    product: int
    minute: datetime
    purchases: int
    pieces: int
    revenue: Decimal


decode = msgspec.json.Decoder(Line).decode

app = App("shop", log=f"embedded:{DIRECTORY}/log", state_dir=f"{DIRECTORY}/state")
lines = app.topic("access-log", key=str, value=bytes, partitions=PARTITIONS)
products = app.topic("products", key=int, value=Product, partitions=PARTITIONS, compact=True)
purchases = app.topic(
    "purchases", key=int, value=Purchase, partitions=PARTITIONS, timestamp=lambda p: p.at
)
minutes = app.topic("minutes", key=int, value=Minute, partitions=PARTITIONS)

# In: each line of the log, and each change of the table, once.
app.source(lines, Tail(path=LOG_FILES), name="nginx")
app.source(
    {"public.products": products},
    PostgresCdc(url=DATABASE, tables=("public.products",)),
    name="products",
)


def purchase(text: bytes) -> Purchase:
    """Return what a line of the log says."""
    line = decode(text)
    at = datetime.fromtimestamp(round(line.time_s * 1000) / 1000, UTC)
    return Purchase(line.id, at, line.product, line.quantity)


def priced(bought: Purchase, product: Product) -> Sale:
    """Return a purchase with the price that counted when it was made."""
    return Sale(bought.quantity, bought.quantity * product.price)


def as_minute(window: Windowed[int], total: Total) -> tuple[int, Minute]:
    """Return the row of the report."""
    row = Minute(window.key, window.start, total.purchases, total.pieces, total.revenue)
    return window.key, row


# Between: purchases as of their own time, with the price of that time, by product and minute.
app.stream(lines).map_values(purchase).rekey(lambda _, p: p.product).to(purchases)
price_list = app.table(products, name="price-list", history="1h")
(
    app.stream(purchases)
    .join(price_list, priced, as_of=True, grace="15s", name="with-price")
    .group_by_key()
    .windowed(tumbling("1m", grace="1m"))
    .emit(Emit.COMMIT)
    .agg(
        Total,
        name="by-minute",
        purchases=agg.count(),
        pieces=agg.sum(lambda sale: sale.pieces),
        revenue=agg.sum(lambda sale: sale.revenue),
    )
    .changes()
    .map(as_minute, name="as-minute")
    .to(minutes)
)

# Out: a row for each purchase in files, and a row for each product and minute in SQL.
app.sink(
    purchases,
    Objects(url=str(Path(DIRECTORY, "files").resolve()), format="parquet", flush=Flush(every="5s")),
    name="files",
)
app.sink(
    minutes,
    SqlSink(
        url=DATABASE,
        table="report",
        insert_mode="upsert",
        pk_mode="record_value",
        pk_fields=("product", "minute"),
        auto_create=True,
    ),
    name="report",
)

if __name__ == "__main__":
    app.main()
