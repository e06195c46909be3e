"""What the person at the terminal sees: figures while it works, then what sold best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from examples.shop.check import ReportRow, Verdict

SHOWN: Final = 5
"""The most differences of each kind that are printed."""


@dataclass
class Progress:
    """The figures of the moment."""

    bought: int = 0
    price_changes: int = 0
    reported: int = 0
    files: int = 0
    rotations: int = 0
    kills: int = 0
    crashes: int = 0

    def render(self) -> Table:
        """Return the figures as a table of one row."""
        table = Table(title="From the access log and the table of prices", box=SIMPLE_HEAD)
        cells = {
            "purchases": f"{self.bought:,}",
            "price changes": f"{self.price_changes:,}",
            "in the report": f"{self.reported:,}",
            "on the way": f"{max(0, self.bought - self.reported):,}",
            "files": f"{self.files:,}",
            "rotations": str(self.rotations),
            "kills": str(self.kills),
            "crashes": str(self.crashes),
        }
        for name in cells:
            table.add_column(name, justify="right", min_width=9)
        table.add_row(*cells.values())
        return table


def best_sellers(rows: Sequence[ReportRow], names: Sequence[str]) -> Table:
    """Return the revenue of each product, the highest first."""
    revenue: dict[int, Decimal] = defaultdict(Decimal)
    pieces: dict[int, int] = defaultdict(int)
    for product, _, _, count, brought in rows:
        revenue[product] += brought
        pieces[product] += count
    table = Table(title="Revenue by product, from the report in PostgreSQL", box=SIMPLE_HEAD)
    table.add_column("product", no_wrap=True)
    table.add_column("pieces", justify="right")
    table.add_column("revenue", justify="right")
    for product, brought in sorted(revenue.items(), key=lambda item: -item[1]):
        table.add_row(names[product - 1], f"{pieces[product]:,}", f"{brought:,.2f}")
    return table


def differences(verdict: Verdict) -> Iterator[str]:
    """Yield a sentence for each kind of difference, and the first rows that differ."""
    if verdict.missing:
        yield f"{verdict.missing} lines of nginx are in no Parquet file"
    if verdict.repeated:
        yield f"{verdict.repeated} rows of Parquet files are more than the lines of nginx"
    expected, found = set(verdict.expected), set(verdict.found)
    for name, rows in (("missing", expected - found), ("wrong", found - expected)):
        for row in sorted(rows)[:SHOWN]:
            yield f"{name} in the report: {row}"
