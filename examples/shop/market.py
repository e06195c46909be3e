"""The market: a real web server, a real database, clients who buy, and prices that change.

It knows nothing of streamlog. nginx answers `/buy?product=3&quantity=2` and writes a line for each
purchase; the products and their prices are a table of PostgreSQL. Everything that the check needs
afterwards is kept by the two servers themselves: the rotated log files, and each price with the
time at which its transaction committed.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Final

import psycopg

from tests.servers.nginx import NginxServer
from tests.servers.postgres import PostgresServer

PRODUCTS: Final = {
    "espresso": "2.20",
    "cappuccino": "3.10",
    "flat white": "3.40",
    "filter coffee": "2.60",
    "black tea": "2.40",
    "green tea": "2.70",
    "hot chocolate": "3.60",
    "croissant": "1.90",
    "cinnamon roll": "2.80",
    "banana bread": "3.20",
    "cheesecake": "4.10",
    "apple pie": "3.90",
}
CLIENTS: Final = 6
PAUSE_S: Final = 0.02
"""The mean pause of a client between two purchases."""
PRICE_PAUSE_S: Final = 0.25
LINE: Final = (
    '{"id":"$request_id","time_s":$msec,"product":$arg_product,"quantity":$arg_quantity,'
    '"status":$status}'
)
LOG_FORMAT: Final = f"log_format purchases escape=json '{LINE}';"

SCHEMA: Final = """
CREATE TABLE products (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    price numeric(8, 2) NOT NULL
);
CREATE TABLE price_history (product bigint NOT NULL, price numeric(8, 2) NOT NULL);
CREATE FUNCTION keep_price() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO price_history VALUES (NEW.id, NEW.price);
    RETURN NULL;
END $$;
CREATE TRIGGER keep_price AFTER INSERT OR UPDATE OF price ON products
    FOR EACH ROW EXECUTE FUNCTION keep_price();
"""
PRICES: Final = """
SELECT product, price, pg_xact_commit_timestamp(xmin) AS since FROM price_history
"""
"""Each price with the moment from which it counts, by PostgreSQL's own commit timestamps."""


@dataclass
class Market:
    """The two servers of a shop, with what was done to them so far."""

    nginx: NginxServer
    postgres: PostgresServer
    database: str
    bought: int = 0
    price_changes: int = 0
    rotations: int = 0
    restarts: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(20130101))  # noqa: S311 - no secret

    @property
    def log_pattern(self) -> str:
        """The access log under all the names that it has had."""
        return f"{self.nginx.access_log}*"

    @property
    def log_files(self) -> list[Path]:
        """The access log and its rotated files."""
        log = self.nginx.access_log
        return sorted(log.parent.glob(f"{log.name}*"))

    @property
    def database_url(self) -> str:
        """The URL of the database that has the products."""
        return self.postgres.url(self.database)

    def open(self) -> None:
        """Create the table of products."""
        with psycopg.connect(self.database_url) as connection:
            connection.execute(SCHEMA)
            with connection.cursor() as cursor:
                rows = [(number, *each) for number, each in enumerate(PRODUCTS.items(), 1)]
                cursor.executemany("INSERT INTO products VALUES (%s, %s, %s)", rows)

    def rotate(self) -> None:
        """Rename the access log, as logrotate does, and let nginx begin a new one."""
        log = self.nginx.access_log
        self.rotations += 1
        log.rename(log.with_name(f"{log.name}.{self.rotations}"))
        self.nginx.reopen_logs()

    def restart_database(self) -> None:
        """Crash the database; it recovers from its WAL."""
        self.postgres.kill_and_restart()
        self.restarts += 1

    async def serve(self, seconds: float) -> None:
        """Let clients buy and prices change for a while; then nothing is in flight."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._buy(seconds))
            group.create_task(self._change_prices(seconds))

    async def close_up(self) -> None:
        """Log a purchase of no pieces for each product: time goes on for what waits for it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.nginx.port)
        for product in range(1, len(PRODUCTS) + 1):
            await self._request(reader, writer, product, 0)
        writer.close()

    async def _buy(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        reader, writer = await asyncio.open_connection("127.0.0.1", self.nginx.port)
        while asyncio.get_running_loop().time() < end:
            # Some products sell far better than others.
            product = min(int(self.chance.expovariate(0.3)) + 1, len(PRODUCTS))
            await self._request(reader, writer, product, self.chance.randint(1, 4))
            await asyncio.sleep(self.chance.expovariate(1 / PAUSE_S))
        writer.close()

    async def _request(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        product: int,
        quantity: int,
    ) -> None:
        path = f"/buy?product={product}&quantity={quantity}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: shop\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 204"):
            raise ConnectionError(f"nginx answered {path} with {head[:40]!r}")
        if quantity:
            self.bought += 1

    async def _change_prices(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            product = self.chance.randint(1, len(PRODUCTS))
            factor = Decimal(self.chance.randint(90, 111)) / 100
            await asyncio.to_thread(self._change_price, product, factor)
            await asyncio.sleep(PRICE_PAUSE_S)

    def _change_price(self, product: int, factor: Decimal) -> None:
        update = "UPDATE products SET price = greatest(0.50, round(price * %s, 2)) WHERE id = %s"
        try:
            with psycopg.connect(self.database_url, connect_timeout=2) as connection:
                connection.execute(update, (factor, product))
        except psycopg.OperationalError:
            # The database is being restarted: this change does not happen.
            return
        self.price_changes += 1


def nginx_server() -> NginxServer:
    """Return an nginx that writes a line of JSON for each purchase."""
    # A relative path is below the directory of the server.
    return NginxServer(
        "location /buy { access_log access.log purchases; return 204; }", http=LOG_FORMAT
    )


def postgres_server() -> PostgresServer:
    """Return a PostgreSQL that keeps what it has committed, and when."""
    return PostgresServer(
        track_commit_timestamp="on", fsync="on", synchronous_commit="on", max_wal_size="256MB"
    )
