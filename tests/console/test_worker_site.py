"""The console of a real worker, over HTTP, without a browser."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from streamlog import App, agg, tumbling
from streamlog.connectors.memory import MemoryRows, MemorySink
from streamlog.console.worker_console import record_samples
from streamlog.errors import TopologyError, quantity
from streamlog.http_access import user_file
from streamlog.http_access.access_settings import HttpAccess
from streamlog.http_access.user_file import set_user
from streamlog.transport.security import Security
from tests.console.consoles import Page, wait_for
from tests.console.worker_consoles import worker_console

PAGES = (
    "/console/",
    "/console/topology",
    "/console/topology/nodes/totals",
    "/console/tables",
    "/console/tables/totals",
    "/console/letters",
    "/console/history",
    "/console/tasks",
    "/console/topics",
    "/console/groups/shop",
    "/console/brokers",
    "/console/changes",
)


@dataclass
class Visits:
    n: int


def build() -> App:
    app = App("shop", commit_interval="20ms")
    orders = app.topic("orders", key=str, value=int, partitions=2)
    app.table(orders, name="totals")
    return app


def test_a_worker_has_the_pages_of_its_app_and_those_of_its_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with worker_console(build(), tmp_path) as (browser, log):
            assert (await browser.get("/")).headers["location"] == "/console/"
            async with log.producer() as producer:
                await producer.send("orders", (1).to_bytes(8), key=b"ann")
            await wait_for(browser, "/console/topics", "orders")
            assert "0_1" in Page(await wait_for(browser, "/console/tasks", "running")).text
            for path in PAGES:
                answer = await browser.get(path)
                assert answer.status_code == 200, (path, answer.text)
                assert "unsafe" not in answer.headers["content-security-policy"]
                assert "app shop" in Page(answer.text).text
            # What machines ask for stays where it was.
            assert (await browser.get("/tables/totals")).status_code == 200
            assert (await browser.get("/live")).json()["live"]
            assert (await browser.get("/nowhere")).status_code == 404
            assert (await browser.get("/console/tasks/nowhere")).status_code == 404

    asyncio.run(main())


def test_a_node_shows_the_records_that_flow_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A node that takes and forwards ends the look itself, however long the records take to come.
    monkeypatch.setattr(record_samples, "LOOK_S", 60)
    app = build()
    visits = app.topic("visits", key=str, value=int, partitions=1)
    app.stream(visits).filter(lambda _, value: value == 7, name="kept").to(
        app.topic("kept", key=str, value=int, partitions=1)
    )

    async def main() -> None:
        async with worker_console(app, tmp_path) as (browser, log):
            await wait_for(browser, "/console/tasks", "running")
            is_seen = asyncio.Event()

            async def write() -> None:
                async with log.producer() as producer:
                    while not is_seen.is_set():
                        await producer.send("visits", (7).to_bytes(8), key=b"ann")
                        await producer.flush()

            async with asyncio.TaskGroup() as group:
                path = "/console/topology/nodes/kept?sample=1"
                two = [group.create_task(browser.get(path)) for _ in range(2)]
                # One page at a time: the second one is refused, and takes nothing from the first.
                (refused,), (waits,) = await asyncio.wait(two, return_when="FIRST_COMPLETED")
                group.create_task(write())
                seen = Page((await waits).text).text
                is_seen.set()
            assert "try again in some seconds" in Page(refused.result().text).text
            assert "Taken (20)" in seen
            assert "Forwarded (20)" in seen
            assert "Comes from" in seen
            # Where nothing flows, the look ends by itself.
            monkeypatch.setattr(record_samples, "LOOK_S", 0.1)
            silent = await browser.get("/console/topology/nodes/totals?sample=1")
            assert "No record has come by" in Page(silent.text).text
            nowhere = await browser.get("/console/topology/nodes/nowhere?sample=1")
            assert nowhere.status_code == 404

    asyncio.run(main())


def test_rows_are_found_by_key_by_prefix_and_by_the_time_of_their_window(tmp_path: Path) -> None:
    app = build()
    visits = app.topic("visits", key=str, value=str, partitions=2)
    per_hour = app.stream(visits).group_by_key().windowed(tumbling("1h"))
    per_hour.agg(Visits, name="per-hour", n=agg.count())
    at_ms = 1_700_000_000_000

    async def main() -> None:
        async with worker_console(app, tmp_path) as (browser, log):
            await wait_for(browser, "/console/tasks", "running")
            async with log.producer() as producer:
                for key in ("ann", "anton", "<b>"):
                    await producer.send("orders", (7).to_bytes(8), key=key.encode())
                    await producer.send("visits", b"x", key=key.encode(), timestamp_ms=at_ms)

            async def shown(path: str, rows: int) -> str:
                while True:
                    page = Page((await browser.get(f"/console/tables/{path}")).text)
                    if f"{quantity(rows, 'row')}." in page.text:
                        return page.text

            assert "<b>" in await shown("totals", 3)
            assert "anton" in await shown("totals?prefix=an", 2)
            assert "anton" not in await shown("totals?key=ann", 1)
            assert '"n": 1' in await shown(f"per-hour?at={at_ms}", 3)
            early = await browser.get(f"/console/tables/per-hour?at={at_ms - 7_200_000}")
            assert "No row fits" in early.text
            assert "the time is like" in (await browser.get("/console/tables/per-hour?at=x")).text
            assert "windowed" in (await browser.get("/console/tables")).text
            assert (await browser.get("/console/tables/nowhere")).status_code == 404

    asyncio.run(main())


@pytest.mark.parametrize("with_users", [False, True])
def test_connectors_of_an_app_are_shown_and_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, with_users: bool
) -> None:
    app = build()
    if with_users:
        monkeypatch.setattr(user_file, "COST", (16, 8, 1))
        users = tmp_path / "users"
        set_user(users, "ann", "secret")
        set_user(users, "ben", "secret")
        app.web_access = HttpAccess(users_file=str(users), operators="ann")
    copied = app.topic("copied", key=str, value=int, partitions=2)
    app.sink(copied, MemorySink(into=MemoryRows()), name="kept")

    async def main() -> None:
        auth = ("ann", "secret") if with_users else None
        async with worker_console(app, tmp_path, auth) as (browser, _):
            await wait_for(browser, "/console/tasks", "running")

            async def has_state(state: str) -> None:
                path = "/connect/connectors/kept/status"
                while (await browser.get(path)).json()["connector"]["state"] != state:  # noqa: ASYNC110 - each look asks the worker
                    await asyncio.sleep(0.01)

            await has_state("RUNNING")
            listed = Page((await browser.get("/console/connectors")).text).text
            assert "kept sink MemorySink running 1 0" in listed
            page = Page((await browser.get("/console/connectors/kept")).text)
            if with_users:
                ben = httpx.BasicAuth("ben", "secret")
                read = Page((await browser.get("/console/connectors/kept", auth=ben)).text)
                assert "token" not in read.fields()
                refused = await browser.post(
                    "/console/connectors/kept/pause", data=page.fields(), auth=ben
                )
                assert refused.status_code == 403
            await browser.post("/console/connectors/kept/pause", data=page.fields())
            await has_state("PAUSED")
            unknown = await browser.post("/console/connectors/none/pause", data=page.fields())
            assert "refuses (404)" in Page(unknown.text).text

    asyncio.run(main())


def test_the_first_page_of_an_app_is_its_own(tmp_path: Path) -> None:
    app = build()

    @app.page("/")
    async def home() -> str:
        return "welcome"

    with pytest.raises(TopologyError, match="serve '/console/x' themselves"):
        app.page("/console/x")(home)

    async def main() -> None:
        async with worker_console(app, tmp_path) as (browser, _):
            assert (await browser.get("/")).text == "welcome"
            assert (await browser.get("/console/tasks")).status_code == 200

    asyncio.run(main())


def test_with_users_every_page_asks_for_a_password_and_operators_alone_get_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_file, "COST", (16, 8, 1))
    users = tmp_path / "users"
    set_user(users, "ann", "secret")
    set_user(users, "ben", "secret")
    app = build()
    app.web_access = HttpAccess(users_file=str(users), operators="ann, zoe")
    reset = "/console/groups/shop/reset?try=1&target=latest"

    async def main() -> None:
        async with worker_console(app, tmp_path, ("ann", "secret")) as (browser, _):
            await wait_for(browser, "/console/tasks", "running")
            for path in (*PAGES, "/console/static/console.css"):
                assert (await browser.get(path, auth=("ann", "wrong"))).status_code == 401
            assert "token" in Page((await browser.get(reset)).text).fields()
            read = await browser.get(reset, auth=("ben", "secret"))
            assert "token" not in Page(read.text).fields()
            assert "ben, reads only" in read.text

    asyncio.run(main())


def test_a_worker_with_credentials_at_the_log_has_no_console_without_users(tmp_path: Path) -> None:
    security = Security(
        protocol="SASL_PLAINTEXT", mechanism="PLAIN", user="shop", password="secret"
    )

    async def main() -> None:
        async with worker_console(build(), tmp_path, security=security) as (browser, _):
            assert (await browser.get("/console/tasks")).status_code == 404
            assert (await browser.get("/")).status_code == 404
            assert (await browser.get("/live")).status_code == 200

    asyncio.run(main())
