"""A real Prometheus scrapes workers with connectors, and each of their alerts is provoked.

The faults are real ones: a target that answers 500, a record that it refuses, a log that takes no
writes, a transaction in PostgreSQL that nobody ends, so that the slot can't advance, and in a
Connect service a converter that the topic's values are not for.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psycopg
import pytest

from chaos.ports import reserved_ports
from streamlog.generate.alerts import AlertLimits, alert_rules, connector_alerts
from streamlog.generate.grafana import Board
from streamlog.generate.scrape import scrape_config
from tests.generate.test_prometheus import PROMETHEUS, Prometheus, check_panels, prometheus
from tests.servers.postgres import PostgresServer
from tests.worker.processes import STREAMLOG, Process, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.environ.get("STREAMLOG_PROFILE") != "thorough",
        reason="takes minutes: with STREAMLOG_PROFILE=thorough (`make alerts`)",
    ),
    pytest.mark.skipif(
        PROMETHEUS is None, reason="prometheus is not installed (Debian's package prometheus)"
    ),
]
LIMITS = AlertLimits(pending="1s", pending_warning="1s", lag_seconds=15, slot_bytes=20_000_000)
APP = """
from streamlog import App, on_error
from streamlog.connect import Flush
from streamlog.connectors.http.http_sink import HttpSink
from streamlog.connectors.postgres_cdc import PostgresCdc, slot_watch

slot_watch.LOOK_EVERY = "1s"
app = App("shop", log={log!r}, commit_interval="100ms", on_error=on_error.dlq())
orders = app.topic("orders", key=int, value=dict, partitions=1)
app.source(
    {{"public.orders": orders}},
    PostgresCdc(url={database!r}, tables=("public.orders",), status_interval="1s"),
    name="cdc",
)
# At most 100 records wait in memory, so the rest lags in the log.
app.sink(orders, HttpSink(url={target!r}, flush=Flush(records=100, every="100ms")), name="web")

if __name__ == "__main__":
    app.main()
"""
FILL = "INSERT INTO noise SELECT repeat(md5(n::text), 30) FROM generate_series(1, 8000) n"


@dataclass
class Target:
    """An HTTP server that answers as the test says."""

    status: int = 200
    bodies: list[bytes] = field(default_factory=list)
    url: str = ""

    def answer_of(self, body: bytes) -> int:
        if b"refused" in body:
            return 400
        if self.status == 200:
            self.bodies.append(body)
        return self.status


@contextmanager
def target() -> Iterator[Target]:
    made = Target()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(made.answer_of(body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write no line for each request."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Drill:
    """The faults, each until its alerts have fired, and ended where they can."""

    known: Prometheus
    database: psycopg.Connection
    dsn: str
    target: Target
    broker: Process
    rest: str
    """The REST API of a Connect service."""
    orders: int = 0

    def order(self, item: str = "book", count: int = 1) -> None:
        first, self.orders = self.orders + 1, self.orders + count
        self.database.execute(
            "INSERT INTO orders SELECT n, %s FROM generate_series(%s::int, %s) n",
            (item, first, self.orders),
        )

    async def begin(self) -> None:
        self.order(count=50)
        await self.known.until(_is_carried, "all orders are at the target")
        await asyncio.sleep(6)  # some rounds of all rules
        assert self.known.firing() == set()

    async def wrong_converter(self) -> None:
        settings = {
            "connector.class": "HttpSink",
            "url": self.target.url,
            "topics": "orders",
            "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "true",
        }
        await asyncio.to_thread(self._ask, "PUT", "connectors/wrong/config", settings)
        await self.known.fires("StreamlogConnectorFailed")
        await asyncio.to_thread(self._ask, "DELETE", "connectors/wrong")
        await self.known.ends("StreamlogConnectorFailed")

    def _ask(self, method: str, path: str, body: object = None) -> None:
        request = urllib.request.Request(
            f"http://{self.rest}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310 - of this test

    async def dead_letter(self) -> None:
        self.order("refused")
        await self.known.fires("StreamlogConnectorDeadLetters")

    async def target_away(self) -> None:
        self.target.status = 500
        self.order(count=1_000)
        await self.known.fires("StreamlogConnectorRetries", "StreamlogSinkLag")
        self.target.status = 200
        await self.known.ends("StreamlogSinkLag")

    async def log_away(self) -> None:
        self.broker.signal(signal.SIGSTOP)
        self.order()
        await self.known.fires("StreamlogSourceStandsStill")
        self.broker.signal(signal.SIGCONT)
        await self.known.ends("StreamlogSourceStandsStill")

    async def open_transaction(self) -> None:
        with psycopg.connect(self.dsn) as idle:
            idle.execute("INSERT INTO orders VALUES (-1, 'never committed')")
            while "StreamlogSlotLosesWal" not in self.known.fired:
                self.database.execute(FILL)
                self.known.firing()
                await asyncio.sleep(0.2)
            await self.known.fires("StreamlogSlotLag")
            idle.rollback()
        await self.known.ends("StreamlogSlotLag", "StreamlogSlotLosesWal")


def _is_carried(known: Prometheus) -> bool:
    try:
        return bool(
            known.query("sum(kafka_connect_sink_task_metrics_sink_record_send_total) >= 50")
        )
    except OSError:
        return False


def test_each_alert_of_connectors_fires_for_its_fault(tmp_path: Path) -> None:
    with ExitStack() as stack:
        web, rest, own = stack.enter_context(reserved_ports(3))
        server = stack.enter_context(PostgresServer(max_slot_wal_keep_size="200MB"))
        dsn = server.dsn(server.create_database())
        database = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        database.execute("CREATE TABLE orders (id INT PRIMARY KEY, item TEXT)")
        database.execute("CREATE TABLE noise (text TEXT)")
        site = stack.enter_context(target())
        listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
        broker = stack.enter_context(running(*STREAMLOG, *listen, cwd=tmp_path))
        log = "kafka://" + broker.line(r"listening on (\S+)").group(1)
        url = server.url(database.info.dbname)
        app = APP.format(log=log, database=url, target=site.url)
        (tmp_path / "shop.py").write_text(app)
        (tmp_path / "streamlog-alerts.yml").write_text(alert_rules(LIMITS))
        workers = [f"127.0.0.1:{port}" for port in (web, rest)]
        config = scrape_config([], workers, cluster="drill", interval="2s")
        (tmp_path / "prometheus.yml").write_text(config)
        command = (*STREAMLOG, "-A", "shop", "worker", "--web", f"127.0.0.1:{web}")
        worker = stack.enter_context(running(*command, cwd=tmp_path))
        worker.line("web .*http")
        service = (*STREAMLOG, "connect", "--rest", f"127.0.0.1:{rest}", "--log", log)
        stack.enter_context(running(*service, cwd=tmp_path)).line("REST API at")
        known = stack.enter_context(prometheus(tmp_path, own))
        asyncio.run(drill(Drill(known, database, dsn, site, broker, f"127.0.0.1:{rest}")))
        assert worker.stop() == 0, worker.output


async def drill(here: Drill) -> None:
    await here.begin()
    await here.wrong_converter()
    await here.dead_letter()
    await here.target_away()
    await here.log_away()
    await here.open_transaction()
    await asyncio.to_thread(check_panels, here.known, Board.CONNECT)
    assert {alert.name for alert in connector_alerts(LIMITS)} <= here.known.fired
    # Through all faults each order came once, but for the one that was refused. A batch of which
    # some requests were answered may come again: at least once.
    ids = set(here.target.bodies)
    assert len(ids) == here.orders - 1
