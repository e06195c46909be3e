"""The console of a real broker, over HTTP, without a browser."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from streamlog.adviser.log_look import LogLook
from streamlog.adviser.log_view import LogView
from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.security import AUTHORIZER_STANDARD, SecurityConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.cli.broker_web import serve_health
from streamlog.clock import SystemClock
from streamlog.console import console_site, message_reader
from streamlog.console.message_reader import find, follow
from streamlog.console.pages.message_pages import Asked
from streamlog.console.turns import Turns
from streamlog.errors import ConfigError
from streamlog.http_access import user_file
from streamlog.http_access.user_file import set_user
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.console.consoles import Page, console, fill, read, wait_for
from tests.servers.nginx import NginxServer

PAGES = (
    "/console/",
    "/console/topics",
    "/console/topics/orders",
    "/console/topics/orders/messages?begin=oldest&q=value.n+%3E+1",
    "/console/topics?create=1",
    "/console/topics/orders/write",
    "/console/topics/orders/groups?partition=0&offset=2",
    "/console/topics/orders/partitions",
    "/console/topics/orders/partitions?add=1&try=1&partitions=4",
    "/console/topics/orders/settings?q=retention&edit=retention.ms",
    "/console/groups",
    "/console/groups/team%2Fbilling",
    "/console/groups/team%2Fbilling/members",
    "/console/groups/team%2Fbilling/reset?try=1&target=latest",
    "/console/schemas",
    "/console/connectors",
    "/console/brokers",
    "/console/brokers/moves",
    "/console/brokers/quotas",
    "/console/brokers/users",
    "/console/brokers/acls",
    "/console/mirrors",
    "/console/changes",
)
GROUP = "team/billing"
RESET = "/console/groups/team%2Fbilling/reset"


async def prepare(log: Log) -> None:
    await fill(log, "orders", *(json.dumps({"n": n}).encode() for n in range(5)))
    await read(log, GROUP, "orders", 3)


def test_every_page_loads_and_keeps_to_the_policy() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await prepare(log)
            await wait_for(browser, "/console/groups", GROUP)
            for path in PAGES:
                answer = await browser.get(path)
                assert answer.status_code == 200, (path, answer.text)
                assert "unsafe" not in answer.headers["content-security-policy"]
                assert answer.headers["cache-control"] == "no-store"
                page = Page(answer.text)
                scripts = [found for tag, found in page.tags if tag == "script"]
                assert scripts
                assert all(found["src"].startswith("/console/static/") for found in scripts)
                assert not any(
                    "style" in found or any(name.startswith("on") for name in found)
                    for _, found in page.tags
                )
                # Exactly one section is the current one, so that a reader knows where they are.
                current = [
                    f for tag, f in page.tags if f.get("aria-current") == "page" and tag == "a"
                ]
                assert sum("/console/" in found["href"] for found in current) >= 1
                for tag, found in page.tags:
                    if tag in {"link", "script"}:
                        where = found.get("href") or found["src"]
                        assert (await browser.get(where)).status_code == 200, where

    asyncio.run(main())


def test_the_first_page_does_not_wait_for_a_look_at_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_look, look = asyncio.Event(), LogLook.next_view

    async def held(self: LogLook) -> LogView:
        await may_look.wait()
        return await look(self)

    monkeypatch.setattr(LogLook, "next_view", held)

    async def main() -> None:
        async with console() as (browser, _):
            assert "for the first time" in (await browser.get("/console/topics")).text
            may_look.set()
            assert "There is no topic yet" in await wait_for(browser, "/console/topics", "no topic")
            assert (await browser.get("/")).headers["location"] == "/console/"

    asyncio.run(main())


def test_an_open_page_follows_the_log() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await wait_for(browser, "/console/topics", "no topic")
            async with asyncio.TaskGroup() as group:
                group.create_task(wait_for(browser, "/console/topics", "page-views"))
                group.create_task(fill(log, "page-views", b"x"))

    asyncio.run(main())


def test_an_open_page_shows_new_messages_as_they_are_written() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await fill(log, "orders")
            live = "/console/topics/orders/messages?live=1&q=value.n+%3E+1"
            waiting = asyncio.Event()

            async def write() -> None:
                async with log.producer() as producer:
                    number = 0
                    while not waiting.is_set():
                        number += 1
                        await producer.send("orders", b'{"n": %d}' % number)
                        await asyncio.sleep(0)
                        await producer.flush()

            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                found = await wait_for(browser, live, "&quot;n&quot;: ")
                waiting.set()
            assert "&quot;n&quot;: 1}" not in found

    asyncio.run(main())


def test_what_a_record_holds_is_text() -> None:
    attack = b"</pre><script>alert(1)</script>\r\nevent: content\r\ndata: <img src=x onerror=y>"

    async def main() -> None:
        async with console() as (browser, log):
            await fill(log, "orders", attack)
            page = Page((await browser.get("/console/topics/orders")).text)
            assert attack.decode().replace("\r\n", "\n") in "".join(page.texts).replace("\r", "")
            assert not [tag for tag, _ in page.tags if tag == "img"]
            assert len([tag for tag, _ in page.tags if tag == "script"]) == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("begin=offset&at=x", "the offset is a whole number"),
        ("begin=time&at=yesterday", "the time is like"),
        ("partition=7", "has partitions 0 to 0"),
        ("q=open('x')", "can't use this call"),
        ("begin=elsewhere", "begin is one of"),
        ("as=xml", "as is one of"),
    ],
)
def test_a_mistake_is_explained_beside_the_form(query: str, said: str) -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await fill(log, "orders", b"x")
            page = Page((await browser.get(f"/console/topics/orders/messages?{query}")).text)
            assert said in page.text
            assert any(found.get("name") == "begin" for _, found in page.tags)

    asyncio.run(main())


def test_messages_are_found_by_offset_time_key_and_filter() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await fill(log, "orders", *(b'{"n": %d}' % n for n in range(120)))

            async def offsets(query: str) -> list[int]:
                answer = await browser.get(f"/console/topics/orders/messages?{query}")
                ids = [f.get("id", "") for tag, f in Page(answer.text).tags if tag == "details"]
                return [int(each.rpartition("-")[2]) for each in ids]

            assert await offsets("") == [*range(119, 69, -1)]
            assert await offsets("begin=oldest") == [*range(50)]
            assert await offsets("begin=offset&at=100") == [*range(100, 120)]
            assert await offsets("begin=time&at=2001-01-01") == [*range(50)]
            assert await offsets("begin=time&at=2200-01-01T00:00:00Z") == []
            assert await offsets("key=k77") == [77]
            assert await offsets("q=value.n+%25+40+==+3&begin=oldest") == [3, 43, 83]
            first = (await browser.get("/console/topics/orders/messages?begin=oldest")).text
            following = [f["href"] for tag, f in Page(first).tags if f.get("class") == "button"]
            assert await offsets(following[0].partition("?")[2]) == [*range(50, 100)]

    asyncio.run(main())


def test_a_reset_is_shown_then_done_and_written_down(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await prepare(log)
            at = TopicPartition("orders", 0)
            dry = await browser.get(f"{RESET}?try=1&target=shift&at=-2")
            assert "1 of 1 offsets change" in Page(dry.text).text
            assert await log.admin().group_offsets(GROUP) == {at: 3}
            form = Page(dry.text).fields()
            done = await browser.post(RESET, data=form)
            assert done.status_code == 200, done.text
            assert await log.admin().group_offsets(GROUP) == {at: 1}
            assert "orders-0 3 to 1" in (await browser.get("/console/changes")).text

    with caplog.at_level(logging.INFO, "streamlog.audit"):
        asyncio.run(main())
    assert "orders-0 3 to 1" in caplog.text
    assert "outcome='done'" in caplog.text


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({"origin": "https://evil.example"}, None),
        ({"sec-fetch-site": "cross-site"}, None),
        ({}, "wrong"),
    ],
)
def test_other_sites_change_nothing(headers: dict[str, str], token: str | None) -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await prepare(log)
            form = Page((await browser.get(f"{RESET}?try=1&target=earliest")).text).fields()
            form |= {} if token is None else {"token": token}
            answer = await browser.post(RESET, data=form, headers=headers)
            assert answer.status_code == 403
            assert await log.admin().group_offsets(GROUP) == {TopicPartition("orders", 0): 3}
            assert "refused" in (await browser.get("/console/changes")).text

    asyncio.run(main())


@pytest.mark.parametrize("offsets", ["", "[]", '[["orders", -1, 0]]', "[[1]]", '[["o", 0, -1]]'])
def test_a_form_that_no_page_made_changes_nothing(offsets: str) -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await prepare(log)
            form = Page((await browser.get(f"{RESET}?try=1&target=earliest")).text).fields()
            answer = await browser.post(RESET, data=form | {"offsets": offsets})
            assert "the form carries" in answer.text
            assert await log.admin().group_offsets(GROUP) == {TopicPartition("orders", 0): 3}

    asyncio.run(main())


def test_bodies_have_a_bound_and_other_methods_an_answer() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await prepare(log)
            large = await browser.post(RESET, content=b"a=" + b"x" * 300_000)
            assert large.status_code == 413
            assert (await browser.delete("/console/topics")).status_code == 405
            assert (await browser.post("/console/brokers")).status_code == 405
            for path in ("/console/nothing", "/console/topics/none", "/console/groups/none"):
                assert (await browser.get(path)).status_code == 404, path
            assert (await browser.get("/console/static/..%2F__init__.py")).status_code == 404

    asyncio.run(main())


def test_users_log_in_and_only_operators_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_file, "COST", (16, 8, 1))
    users = tmp_path / "users"
    for name in ("ann", "ben"):
        set_user(users, name, "secret")
    config = BrokerConfig(web_users=str(users), web_operators="ann")

    async def main() -> None:
        async with console(config) as (browser, log):
            await prepare(log)
            assert (await browser.get("/console/")).status_code == 401
            assert (await browser.get("/live")).status_code == 200
            ann, ben = httpx.BasicAuth("ann", "secret"), httpx.BasicAuth("ben", "secret")
            shown = await browser.get(f"{RESET}?try=1", auth=ben)
            assert "an operator can do this" in shown.text
            form = Page((await browser.get(f"{RESET}?try=1", auth=ann)).text).fields()
            assert (await browser.post(RESET, data=form, auth=ben)).status_code == 403
            assert (await browser.post(RESET, data=form, auth=ann)).status_code == 200

    asyncio.run(main())


def test_a_console_without_users_opens_no_log_that_was_closed() -> None:
    async def main(config: BrokerConfig) -> int:
        async with console(config) as (browser, _):
            assert (await browser.get("/live")).status_code == 200
            return (await browser.get("/console/")).status_code

    assert asyncio.run(main(BrokerConfig())) == 200
    for security in (
        SecurityConfig(authorizer=AUTHORIZER_STANDARD),
        SecurityConfig(listeners="SASL_PLAINTEXT://127.0.0.1:0"),
    ):
        assert asyncio.run(main(BrokerConfig(security=security))) == 404


def test_passwords_are_not_sent_in_clear_to_other_machines() -> None:
    async def main(address: str, config: BrokerConfig) -> None:
        async with (
            Broker.open("data", files=MemoryFiles(), config=config) as broker,
            serve_health(broker, address),
        ):
            pass

    with pytest.raises(ConfigError, match=r"web\.certificate\.file"):
        asyncio.run(main("0.0.0.0:0", BrokerConfig(web_users="users")))


def test_half_a_letter_in_a_record_hides_no_page() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await fill(log, "orders", b'{"name": "\\ud800"}', b"next")
            answer = await browser.get("/console/topics/orders")
            assert answer.status_code == 200, answer.text
            assert "next" in answer.text

    asyncio.run(main())


def test_groups_of_any_name_have_their_pages() -> None:
    names = {"two\nlines", "a?b#c", "<b>", "%2F", "é😀", " "}

    async def main() -> None:
        async with console() as (browser, log):
            await fill(log, "orders", b"1", b"2")
            at = TopicPartition("orders", 0)
            for name in names:
                await log.admin().alter_group_offsets(name, {at: 2})
            content = await wait_for(browser, "/console/groups", f"{len(names)} groups")
            links = [f["href"] for _, f in Page(content).tags if f.get("class") == "name"]
            for link in links:
                answer = await browser.get(f"{link}/reset?try=1&target=earliest")
                done = await browser.post(f"{link}/reset", data=Page(answer.text).fields())
                assert "continues at these offsets" in done.text
            assert {name for name in names if await log.admin().group_offsets(name) == {at: 0}} == (
                names
            )

    asyncio.run(main())


def test_a_group_that_is_gone_is_not_made_again_by_its_reset() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await prepare(log)
            form = Page((await browser.get(f"{RESET}?try=1&target=earliest")).text).fields()
            await log.admin().delete_groups([GROUP])
            answer = await browser.post(RESET, data=form)
            assert "GROUP_ID_NOT_FOUND" in answer.text
            assert not await log.admin().list_groups()
            assert "GROUP_ID_NOT_FOUND" in (await browser.get("/console/changes")).text

    asyncio.run(main())


def test_a_group_that_got_members_after_the_dry_run_stays_as_it_is() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await prepare(log)
            form = Page((await browser.get(f"{RESET}?try=1&target=earliest")).text).fields()
            async with log.consumer(group_id=GROUP) as consumer:
                await consumer.subscribe(["orders"])
                while not consumer.assignment:
                    await consumer.poll(timeout_ms=100)
                answer = await browser.post(RESET, data=form)
                assert "NON_EMPTY_GROUP" in answer.text
                assert await log.admin().group_offsets(GROUP) == {TopicPartition("orders", 0): 3}

    asyncio.run(main())


def test_many_followers_at_once_find_no_more_room_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console_site, "STREAMS_MAX", 3)

    async def main() -> None:
        async with console() as (browser, _):
            codes = list[int]()
            all_here = asyncio.Event()

            async def follow() -> None:
                async with browser.stream("GET", "/console/events/topics") as answer:
                    codes.append(answer.status_code)
                    if len(codes) == 20:
                        all_here.set()
                    await all_here.wait()

            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(follow())
            assert (codes.count(200), codes.count(503)) == (3, 17)
            # Those that have left made room.
            await wait_for(browser, "/console/topics", "no topic")

    asyncio.run(main())


def test_a_page_that_is_not_live_is_sent_once() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await fill(log, "orders", b"x")
            # Both end by themselves: a search is not repeated for as long as a browser likes.
            updates = await browser.get("/console/events/topics/orders/messages?q=offset==0")
            assert updates.text.count("event: content") == 1
            assert not (await browser.head("/console/events/topics")).content

    asyncio.run(main())


def test_a_search_that_ran_out_of_time_continues_on_the_next_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_reader, "PATIENCE_S", 0.05)

    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker, Log.within(broker) as log:
            await fill(log, "orders", *(b"%d" % n for n in range(30)))
            turns, seen = Turns(_Impatient()), list[int]()
            at: tuple[int, int] | None = (0, 0)
            while at is not None:
                asked = Asked(partition=0, begin="offset", offset=at[1], condition="value % 7 == 0")
                found = await find(log, "orders", asked, turns)
                assert found.following is None or found.following > at
                at = found.following
                seen += [each.offset for each in found.records]
            assert seen == [*range(0, 30, 7)]

    asyncio.run(main())


def test_a_live_page_keeps_up_with_a_topic_that_grows_faster_than_it_reads() -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker, Log.within(broker) as log:
            await fill(log, "orders")
            live = follow(
                log, "orders", Asked(), stopped=asyncio.Event(), turns=Turns(SystemClock())
            )
            async with aclosing(live) as updates:
                first = await anext(updates)
                assert first is not None
                assert not first.records
                async with log.producer() as producer:
                    for n in range(2_000):
                        await producer.send("orders", b"%d" % n)
                async for found in updates:
                    if found is not None and found.records[0].offset == 1_999:
                        break
            assert found is not None
            assert [each.offset for each in found.records] == [*range(1_999, 1_949, -1)]
            skipped = int(found.stopped.split()[0].replace(",", ""))
            # All are accounted for, read or not.
            assert skipped
            assert found.scanned + skipped == 2_000

    asyncio.run(main())


def test_a_proxy_does_not_cut_off_streams_that_have_nothing_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A look takes place every two seconds at most, and no one writes into the topic.
    monkeypatch.setattr(console_site, "QUIET_MS", 200)

    async def comments(browser: httpx.AsyncClient, path: str) -> int:
        found = 0
        async with browser.stream("GET", path) as answer:
            # Without comments, nginx cuts the stream off after two seconds.
            async for line in answer.aiter_lines():
                found += line == ": unchanged"
                if found == 12:
                    break
        return found

    async def main() -> None:
        async with console() as (direct, log):
            await fill(log, "orders", b"1")
            lines = f"location / {{ proxy_pass {direct.base_url}; proxy_read_timeout 2s; }}"
            with NginxServer(lines) as proxy:
                # The server knows its own name alone.
                host = {"host": direct.base_url.netloc.decode()}
                async with httpx.AsyncClient(
                    base_url=proxy.url, headers=host, timeout=60
                ) as browser:
                    for path in ("topics/orders/messages?live=1", "groups"):
                        assert await comments(browser, f"/console/events/{path}") == 12

    asyncio.run(main())


def test_a_stream_that_is_silent_says_so_after_its_time() -> None:
    clock = _Impatient()

    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker, Log.within(broker) as log:
            await fill(log, "orders", b"1")
            stopped = asyncio.Event()
            live = follow(
                log, "orders", Asked(), stopped=stopped, turns=Turns(clock), quiet_ms=1_000
            )
            async with aclosing(live) as updates:
                assert await anext(updates) is not None
                for _ in range(2):
                    before_ms = clock.now_ms()
                    assert await anext(updates) is None
                    assert 1_000 <= clock.now_ms() - before_ms <= 1_100

    asyncio.run(main())


class _Impatient(SystemClock):
    """A clock that goes on by 5 ms whenever it is read."""

    _read = 0

    def now_ms(self) -> int:
        self._read += 1
        return 5 * self._read
