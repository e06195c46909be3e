"""`python -m tests.console.pictures [PART...]`: all pages of both consoles, to look at.

They go to build/pictures: light and dark, 1400 and 390 px wide, and sheets with all of one kind.
With PART, only pages with it in their name. Needs `pip install playwright pillow` and
`apt-get install chromium`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from streamlog import App, Topic, agg, on_error, tumbling
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.schema_service import RegistryConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.admin import MirrorStatus, NewTopic
from streamlog.connectors.memory import MemoryRows, MemorySink
from streamlog.log import Log
from tests.broker.mirroring.test_mirrors import serving
from tests.console.browsers import chromium
from tests.console.consoles import console_and_registry, fill, read, wait_for
from tests.console.test_cluster_pages import until_status
from tests.console.test_schema_pages import NEXT, ORDER, register
from tests.console.test_worker_site import Visits
from tests.console.worker_consoles import worker_console

if TYPE_CHECKING:
    import httpx
    from playwright.async_api import Browser

TO = Path("build/pictures")
LOOKS = [(colours, width) for width in (1400, 390) for colours in ("light", "dark")]
SETTLED_MS = 700
"""Charts are drawn and updates have come by then."""
SHEET_PX = {1400: 700, 390: 300}
AT_MS = 1_767_610_800_000
BROKER = {
    "overview": "",
    "topics": "topics",
    "create": "topics?create=1",
    "messages": "topics/orders?begin=oldest",
    "message": "topics/orders/messages?partition=0&begin=offset&at=0&open=1",
    "filter": "topics/orders/messages?begin=oldest&q=value.amount+%3E+290",
    "write": "topics/orders/write",
    "readers": "topics/orders/groups?partition=0&offset=2",
    "partitions": "topics/orders/partitions",
    "add": "topics/orders/partitions?add=1&try=1&partitions=8",
    "settings": "topics/orders/settings?edit=retention.ms",
    "groups": "groups",
    "group": "groups/billing",
    "members": "groups/billing/members",
    "reset": "groups/billing/reset?try=1&target=latest",
    "schemas": "schemas",
    "subject": "schemas/orders-value",
    "schema": "schemas?id=1",
    "brokers": "brokers",
    "moves": "brokers/moves",
    "quotas": "brokers/quotas",
    "users": "brokers/users",
    "acls": "brokers/acls",
    "mirrors": "mirrors",
    "mirror": "mirrors/page-views",
    "changes": "changes",
    "nowhere": "nowhere",
}
WORKER = {
    "overview": "",
    "topology": "topology",
    "node": "topology/nodes/price",
    "tables": "tables",
    "table": "tables/stock",
    "windows": "tables/per-hour",
    "tasks": "tasks",
    "letters": "letters",
    "letters-of": "letters/shop-dlq",
    "letter": "letters/shop-dlq/0/0",
    "histories": "history",
    "history": "history/first",
    "connectors": "connectors",
    "connector": "connectors/kept",
    "changes": "changes",
}


async def draw(browser: Browser, base: object, kind: str, pages: Mapping[str, str]) -> None:
    """Draw pages of one console; says which ones have faults."""
    for colours, width in LOOKS:
        context = await browser.new_context(
            color_scheme=colours,  # type: ignore[arg-type]
            viewport={"width": width, "height": 900},
        )
        for name, path in pages.items():
            page = await context.new_page()
            await page.goto(f"{str(base).rstrip('/')}/console/{path}")
            await page.wait_for_timeout(SETTLED_MS)
            await page.screenshot(path=TO / f"{kind}-{name}-{colours}-{width}.png", full_page=True)
            await page.close()
        await context.close()


def draw_sheets() -> None:
    """Draw what was drawn once more, small and side by side: a sheet for each kind and look."""
    for kind in ("broker", "worker"):
        for colours, width in LOOKS:
            found = sorted(TO.glob(f"{kind}-*-{colours}-{width}.png"))
            if found:
                _sheet(found, SHEET_PX[width]).save(TO / f"sheet-{kind}-{colours}-{width}.png")


def _sheet(paths: list[Path], width: int) -> Image.Image:
    per_row = 2100 // width
    height = width * (3 if width > 500 else 8) // 4
    rows = -(-len(paths) // per_row)
    sheet = Image.new("RGB", (per_row * (width + 16), rows * (height + 32)), "gray")
    for at, path in enumerate(paths):
        shot = Image.open(path).convert("RGB")
        shot = shot.resize((width, shot.height * width // shot.width))
        shot = shot.crop((0, 0, width, min(height, shot.height)))
        left, top = at % per_row * (width + 16), at // per_row * (height + 32)
        sheet.paste(shot, (left, top + 20))
        ImageDraw.Draw(sheet).text((left + 4, top + 4), path.stem, fill="white")
    return sheet


# ---- something to look at ----


async def fill_broker(log: Log, registry: httpx.AsyncClient) -> None:
    """Write orders, payments and page views, and read some of them."""
    names = {"orders": 6, "payments": 3, "customers": 3, "inventory.changes": 4, "emails": 1}
    await log.admin().create_topics([NewTopic(name, count) for name, count in names.items()])
    await register(registry, "orders-value", json.dumps(ORDER))
    await register(registry, "orders-value", json.dumps(NEXT))
    await register(registry, "payments-value", '{"type": "object"}', "JSON")
    async with log.producer() as producer:
        for number in range(3_000):
            order = {
                "id": number,
                "customer": f"c-{number % 97}",
                "amount": number * 37 % 300 + 0.5,
                "items": [{"sku": f"A{number % 13}", "pieces": number % 3 + 1}],
                "note": "<script>alert(1)</script>",
            }
            headers = (("source", b"web"), ("trace", b"\x01\x02\xff"))
            value = json.dumps(order).encode()
            await producer.send("orders", value, key=f"c-{number % 97}".encode(), headers=headers)
            await producer.send("payments", b"\x00\x00\x00\x00\x07\x02\x10\xff", key=b"7")
            await producer.send("customers", b"Ann Smith, Main Street 4", key=b"c-1")
    for group, topic, count in (("billing", "orders", 500), ("fraud-check", "payments", 3_000)):
        await read(log, group, topic, count)


def build() -> tuple[App, Topic[str, str]]:
    """Return an app with a table, windows, a sink, and a step that fails at times."""
    app = App("shop", commit_interval="100ms")
    orders = app.topic("orders", key=str, value=str, partitions=2)
    prices = app.topic("prices", key=str, value=str, partitions=2)
    priced = app.stream(orders).map_values(
        lambda v: str(1_000 // int(v)), name="price", on_error=on_error.dlq()
    )
    priced.to(prices)
    priced.group_by_key().windowed(tumbling("1h")).agg(Visits, name="per-hour", n=agg.count())
    app.table(app.topic("stock", key=str, value=int, partitions=2), name="stock")
    app.sink(prices, MemorySink(into=MemoryRows()), name="kept")
    return app, prices


async def fill_worker(log: Log) -> None:
    """Write what the app takes, and some records on which it fails."""
    async with log.producer() as producer:
        for number in range(400):
            key = f"product-{number % 17}"
            at_ms = AT_MS + number * 60_000
            await producer.send(
                "orders", str(number % 50).encode(), key=key.encode(), timestamp_ms=at_ms
            )
            await producer.send("stock", (number * 7).to_bytes(8), key=key.encode())


async def run_history(log: str, state: str) -> None:
    """Run a history of the app beside its worker, and compare it."""
    app, prices = build()
    app.log, app.state_dir = f"embedded:{log}", state
    job = app.backfill(outputs="stage", job_id="first")
    await asyncio.to_thread(job.run)
    await asyncio.to_thread(job.compare, prices)


async def main(parts: list[str]) -> None:
    """Draw all pages whose names have one of the parts."""

    def chosen(kind: str, pages: Mapping[str, str]) -> Mapping[str, str]:
        return {
            name: path
            for name, path in pages.items()
            if not parts or any(part in f"{kind}-{name}" for part in parts)
        }

    config = BrokerConfig(registry=RegistryConfig(listener="127.0.0.1:0"))
    async with chromium() as program:
        async with (
            serving(MemoryFiles()) as (source, at),
            Log.open(f"kafka://{at}") as there,
            console_and_registry(config) as (browser, log, registry),
        ):
            await fill_broker(log, registry)
            await fill(there, "page-views", b"1", b"2", b"3", partitions=3)
            settings = {"bootstrap.servers": at, "topics": "page-views"}
            await log.admin().create_link("east", settings, source_cluster_id=source.cluster_id)
            await until_status(log, MirrorStatus.ACTIVE)
            # A line of lags has two ends, so there have to be two looks.
            await wait_for(browser, "/console/groups/billing", "data-chart")
            await draw(program, browser.base_url, "broker", chosen("broker", BROKER))
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory)
            async with worker_console(build()[0], path, bound_s=600) as (browser, log):
                await wait_for(browser, "/console/tasks", "running")
                await fill_worker(log)
                await wait_for(browser, "/console/letters", "shop-dlq")
                while "product-16" not in (await browser.get("/console/tables/stock")).text:
                    pass
                await run_history(f"{path}/log", f"{path}/state")
                await wait_for(browser, "/console/history", "done")
                await draw(program, browser.base_url, "worker", chosen("worker", WORKER))
    draw_sheets()


if __name__ == "__main__":
    TO.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(sys.argv[1:]))
