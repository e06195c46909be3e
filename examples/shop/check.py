"""Holds what came out against what the two servers have kept, by other means: DuckDB and SQL.

The check reads nginx's files and PostgreSQL's tables. It shares no code with the app.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, TypeAlias

import duckdb
import psycopg

from examples.shop.market import PRICES, Market

ReportRow: TypeAlias = tuple[int, datetime, int, int, Decimal]
"""Product, minute, purchases, pieces, and revenue."""

EXPECTED_REPORT: Final = """
WITH purchases AS (
    SELECT id, product, quantity, CAST(round(time_s * 1000) AS BIGINT) AS at_ms
    FROM read_json($files, format = 'newline_delimited',
        columns = {id: 'VARCHAR', time_s: 'DOUBLE', product: 'BIGINT', quantity: 'BIGINT'})
)
SELECT product, make_timestamp(at_ms // 60000 * 60000000) AS minute, count(*),
    sum(quantity), sum(quantity * price)
FROM purchases ASOF JOIN prices USING (product, at_ms) WHERE quantity > 0
GROUP BY ALL ORDER BY ALL
"""
LINES: Final = """
SELECT id FROM read_json($files, format = 'newline_delimited', columns = {id: 'VARCHAR'})
"""
COUNT: Final = "SELECT coalesce(sum(purchases), 0) FROM report"
REPORT: Final = """
SELECT product, minute AT TIME ZONE 'UTC', purchases, pieces, revenue FROM report ORDER BY 1, 2
"""


@dataclass(frozen=True)
class Verdict:
    """What the check has found."""

    lines: int
    """Lines in nginx's files."""
    missing: int
    """Lines that are in no Parquet file."""
    repeated: int
    """Lines that are in Parquet files more than once."""
    files: int
    """Parquet files."""
    expected: list[ReportRow]
    found: list[ReportRow]

    @property
    def is_right(self) -> bool:
        """Whether every line came out once, and the report is DuckDB's."""
        return not self.missing and not self.repeated and self.expected == self.found


def expected_report(market: Market) -> list[ReportRow]:
    """Ask DuckDB: each purchase at the price that counted then, by product and minute."""
    with psycopg.connect(market.database_url) as connection:
        prices = connection.execute(PRICES).fetchall()
    with duckdb.connect() as db:
        db.execute("CREATE TABLE prices (product BIGINT, price DECIMAL(8, 2), at_ms BIGINT)")
        rows = [(product, price, _floor_ms(since)) for product, price, since in prices]
        db.executemany("INSERT INTO prices VALUES (?, ?, ?)", rows)
        files = [str(each) for each in market.log_files]
        return [_row(each) for each in db.execute(EXPECTED_REPORT, {"files": files}).fetchall()]


def found_report(market: Market) -> list[ReportRow]:
    """Return the rows of the table that the app writes."""
    with psycopg.connect(market.database_url) as connection:
        return [_row(each) for each in connection.execute(REPORT).fetchall()]


def found_purchases(market: Market) -> int:
    """Return how many purchases the report counts so far."""
    try:
        with psycopg.connect(market.database_url) as connection:
            row = connection.execute(COUNT).fetchone()
    except psycopg.errors.UndefinedTable:
        return 0  # The sink creates it with the first row.
    return int(row[0]) if row else 0


def check(market: Market, parquet: str) -> Verdict:
    """Compare the lines with the files, as multisets, and the report with DuckDB's answer.

    Args:
        market: the servers.
        parquet: the pattern of the Parquet files.
    """
    with duckdb.connect() as db:
        files = [str(each) for each in market.log_files]
        lines = Counter(line for (line,) in db.execute(LINES, {"files": files}).fetchall())
        paths = db.execute("SELECT count(*) FROM glob(?)", [parquet]).fetchone()
        count = paths[0] if paths else 0
        rows = db.execute("SELECT id FROM read_parquet(?)", [parquet]).fetchall() if count else []
    written = Counter(line for (line,) in rows)
    return Verdict(
        lines=lines.total(),
        missing=(lines - written).total(),
        repeated=(written - lines).total(),
        files=count,
        expected=expected_report(market),
        found=found_report(market),
    )


def _row(row: tuple[int, datetime, int, int, Decimal]) -> ReportRow:
    product, minute, purchases, pieces, revenue = row
    return product, minute, purchases, int(pieces), Decimal(revenue)


def _floor_ms(moment: datetime) -> int:
    # A record has its transaction's time in whole milliseconds, and so has a line of nginx.
    return int(moment.timestamp()) * 1000 + moment.microsecond // 1000
