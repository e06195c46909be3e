"""The console of a worker in Chromium, while its app runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamlog import App, on_error
from streamlog.connectors.memory import MemoryRows, MemorySink
from streamlog.log import Log
from tests.console.browsers import api, check_all, chromium, needs_chromium, visit
from tests.console.consoles import wait_for
from tests.console.worker_consoles import worker_console

if TYPE_CHECKING:
    from playwright.async_api import Locator

pytestmark = [pytest.mark.slow, needs_chromium]
PAGES = (
    "/console/",
    "/console/topology",
    "/console/topology/nodes/price",
    "/console/tables",
    "/console/tables/totals",
    "/console/tables/totals?prefix=k",
    "/console/letters",
    "/console/letters/shop-dlq",
    "/console/letters/shop-dlq/0/0",
    "/console/tasks",
    "/console/history",
    "/console/topics",
    "/console/topics/orders",
    "/console/groups/shop",
    "/console/connectors",
    "/console/connectors/kept",
    "/console/brokers",
    "/console/changes",
)


def build() -> App:
    app = App("shop", commit_interval="20ms")
    orders = app.topic("orders", key=str, value=str)
    prices = app.topic("prices", key=str, value=str)
    (
        app.stream(orders)
        .map_values(lambda v: str(10 // int(v)), name="price", on_error=on_error.dlq())
        .to(prices)
    )
    app.table(app.topic("stock", key=str, value=int), name="totals")
    copied = app.topic("copied", key=str, value=int)
    app.sink(copied, MemorySink(into=MemoryRows()), name="kept")
    return app


async def write(log: Log, topic: str, key: str, value: bytes) -> None:
    async with log.producer() as producer:
        await producer.send(topic, value, key=key.encode())


def test_every_page_of_a_worker_works_in_both_colours_and_two_widths(tmp_path: Path) -> None:
    async def main() -> None:
        running = worker_console(build(), tmp_path, bound_s=300)
        async with running as (browser, log), chromium() as program:
            await wait_for(browser, "/console/tasks", "running")
            await write(log, "orders", "k1", b"0")
            await write(log, "stock", "k1", (7).to_bytes(8))
            await wait_for(browser, "/console/letters", "shop-dlq")
            while (await browser.get("/console/letters/shop-dlq/0/0")).status_code != 200:
                pass
            await check_all(program, browser.base_url, PAGES)

    asyncio.run(main())


def test_pages_follow_the_app_and_a_row_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with worker_console(build(), tmp_path) as (browser, log), chromium() as program:
            await wait_for(browser, "/console/tasks", "running")
            async with visit(program, browser.base_url) as here:
                page = await here.page()
                await page.goto(f"{here.base}/console/letters")
                dead = page.locator(".tile", has_text="Dead letters").locator(".tile-value")
                await _has(dead, "0")
                # Nothing loads the page again: the figure has to come by itself.
                await write(log, "orders", "k1", b"0")
                await _has(dead, "1")
                await write(log, "stock", "ann", (7).to_bytes(8))
                await write(log, "stock", "ben", (8).to_bytes(8))
                await page.goto(f"{here.base}/console/tables")
                await page.get_by_role("link", name="totals").click()
                key = page.get_by_label("Key", exact=True)
                await key.fill("ben")
                await key.press("Enter")
                await page.wait_for_url("**key=ben*")
                row = page.locator(".record").filter(has_text="ben")
                # A worker takes the row in a moment, and this page asks once.
                while await row.count() == 0:
                    await page.reload()
                assert "8" in await row.inner_text()
                assert await page.locator(".record").filter(has_text="ann").count() == 0

    asyncio.run(main())


def test_a_dead_letter_is_mended_and_sent_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with worker_console(build(), tmp_path) as (browser, log), chromium() as program:
            await wait_for(browser, "/console/tasks", "running")
            await write(log, "orders", "k1", b"0")
            async with visit(program, browser.base_url) as here:
                page = await here.page()
                letter = page.get_by_role("link", name="0:0")
                while await letter.count() == 0:
                    await page.goto(f"{here.base}/console/letters/shop-dlq")
                await letter.click()
                await page.get_by_label("Value").fill("5")
                await page.get_by_role("button", name="Send again").click()
                await page.get_by_text("1 letter sent again").wait_for()
                await page.goto(f"{here.base}/console/topics/prices/messages?begin=oldest")
                while await page.locator(".record").count() == 0:
                    await page.reload()
                assert "2" in await page.locator(".record").first.inner_text()
                await page.goto(f"{here.base}/console/changes")
                await page.get_by_text("shop-dlq again: 0:0, with another value").wait_for()

    asyncio.run(main())


async def _has(found: Locator, text: str) -> None:
    await api.expect(found).to_have_text(text, timeout=20_000)
