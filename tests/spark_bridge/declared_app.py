"""An app whose topics Spark reads with the app's declared types."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum
from typing import Literal

from streamlog import App


class Kind(Enum):
    """The kind of a sale."""

    SHOP = "shop"
    WEB = "web"


@dataclass
class Item:
    """An item of a sale."""

    name: str
    price: float | None = None


@dataclass
class Sale:
    """A type with most kinds of fields."""

    at: datetime
    day: date
    kind: Kind
    level: Literal[1, 2]
    items: list[Item] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    note: str | None = None
    is_paid: bool = False


@dataclass
class Tree:
    """A type that is no single column type."""

    what: int | str


app = App("declared")
sales = app.topic("sales", key=str, value=Sale, partitions=1)
numbers = app.topic("numbers", key=str, value=int, partitions=1)
names = app.topic("names", key=str, value=str, partitions=1)
trees = app.topic("trees", key=str, value=Tree, partitions=1)


def by_length(key: bytes, count: int) -> int:
    """A custom partitioner."""
    return len(key) % count


users = app.topic("crc32", key=str, value=str, partitioner="crc32")
lengths = app.topic("lengths", key=str, value=str, partitioner=by_length)
