"""Topics in the console of a real broker: created, changed, written to, deleted; and who may."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import BrokerConfig
from streamlog.client.admin import NewTopic
from streamlog.console.pages.partition_form import kept_share
from streamlog.console.pages.topic_forms import new_topic_of, written_of
from streamlog.errors import UsageError
from streamlog.http_access import user_file
from streamlog.http_access.user_file import set_user
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.console.consoles import Page, console, fill, read, wait_for

NAME = "orders"
CREATE = "/console/topics?create=1"
WRITE = f"/console/topics/{NAME}/write"
SETTINGS = f"/console/topics/{NAME}/settings"
INTERNAL = "__consumer_offsets"


async def send(
    browser: httpx.AsyncClient, form: str, to: str, **fields: str
) -> tuple[httpx.Response, Page]:
    """Send a form of a page with its hidden fields, as a browser does; follows the answer."""
    hidden = Page((await browser.get(form)).text).fields()
    answer = await browser.post(to, data=hidden | fields, follow_redirects=True)
    return answer, Page(answer.text)


async def records(log: Log) -> list[tuple[bytes | None, bytes | None, object, int]]:
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        parts = await consumer.partitions(NAME)
        every = [TopicPartition(NAME, each) for each in range(parts)]
        ends = await consumer.end_offsets(every)
        consumer.assign(every)
        left, seen = sum(ends.values()), list[tuple[bytes | None, bytes | None, object, int]]()
        while len(seen) < left:
            for part, polled in (await consumer.poll(timeout_ms=100)).items():
                seen += [(r.key, r.value, tuple(r.headers), part.partition) for r in polled]
        return seen


def test_a_topic_is_created_changed_and_deleted() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            given = {"name": NAME, "partitions": "3", "cleanup.policy": "compact",
                     "settings": "retention.ms=60000\r\n\r\nmax.message.bytes = 5000"}  # fmt: skip
            answer, _ = await send(browser, CREATE, "/console/topics", **given)
            assert answer.url.path == f"/console/topics/{NAME}"
            (made,) = await log.admin().describe_topics([NAME])
            assert made.partitions == 3
            assert await values(log, "cleanup.policy", "retention.ms", "max.message.bytes") == [
                "compact", "60000", "5000",
            ]  # fmt: skip
            edit = f"{SETTINGS}?edit=retention.ms"
            assert "60000" in (await browser.get(edit)).text
            fields = {"setting": "retention.ms", "value": "70000"}
            _, page = await send(browser, edit, SETTINGS, **fields)
            assert "retention.ms is set to 70000" in page.text
            assert await values(log, "retention.ms") == ["70000"]
            await send(browser, edit, SETTINGS, **fields, default="1")
            assert await values(log, "retention.ms") != ["70000"]
            _, page = await send(browser, SETTINGS, f"/console/topics/{NAME}/delete", name="order")
            assert "type the name" in page.text
            assert await log.admin().describe_topics([NAME])
            await send(browser, SETTINGS, f"/console/topics/{NAME}/delete", name=NAME)
            assert not await log.admin().find_topics([NAME])
            said = Page((await browser.get("/console/changes")).text).text
            assert f"create topic {NAME}: partitions 3, replicas by default" in said
            assert f"topic {NAME}: retention.ms to 70000" in said
            assert f"delete topic {NAME} done" in said

    asyncio.run(main())


def test_partitions_are_added_after_a_dry_run_and_only_to_what_it_has_shown() -> None:
    to = f"/console/topics/{NAME}/partitions"

    async def main() -> None:
        async with console() as (browser, log):
            await log.admin().create_topics([NewTopic(NAME, 4)])
            await wait_for(browser, to, "Add partitions")
            for typed, said in (("4", "a larger number"), ("x", "whole number"), ("", "larger")):
                refused = await browser.get(f"{to}?add=1&try=1&partitions={typed}")
                assert said in Page(refused.text).text, typed
            dry = f"{to}?add=1&try=1&partitions=6"
            assert "about 67% of all keys" in Page((await browser.get(dry)).text).text
            early = Page((await browser.get(dry)).text).fields()
            assert await partition_count(log) == 4
            answer, _ = await send(browser, dry, to)
            assert answer.url.path == to
            assert await partition_count(log) == 6
            # Its dry run was about a topic of four partitions.
            late = await browser.post(to, data=early | {"partitions": "9"})
            assert "repeat it" in Page(late.text).text
            forged = await browser.post(to, data=early | {"token": "x"})
            assert forged.status_code == 403
            assert await partition_count(log) == 6
            said = Page((await browser.get("/console/changes")).text).text
            assert f"add partitions to topic {NAME}: 4 to 6 done" in said

    asyncio.run(main())


async def partition_count(log: Log) -> int:
    (topic,) = await log.admin().describe_topics([NAME])
    return topic.partitions


@given(st.integers(1, 40), st.integers(1, 40))
def test_the_share_of_keys_that_stay_is_what_counting_hashes_gives(before: int, more: int) -> None:
    after = before + more
    # Remainders repeat after the product of both, so these hashes stand for all.
    stay = sum(each % before == each % after for each in range(before * after))
    assert kept_share(before, after) == pytest.approx(stay / (before * after))


async def values(log: Log, *names: str) -> list[str | None]:
    entries = await log.admin().describe_configs(NAME)
    return [entries[name].value for name in names]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "a b"}, "a b"),
        ({"name": "orders", "partitions": "many"}, "not a whole number"),
        ({"name": "orders", "settings": "retention.ms"}, "a setting is like"),
        ({"name": "orders", "settings": "nothing.known=1"}, "nothing.known"),
    ],
)
def test_a_mistake_in_a_new_topic_comes_back_as_it_was_typed(
    fields: dict[str, str], said: str
) -> None:
    async def main() -> None:
        async with console() as (browser, log):
            _, page = await send(browser, CREATE, "/console/topics", **fields)
            assert said in page.text
            shown = [f.get("value") for tag, f in page.tags if f.get("name") == "name"]
            assert shown == [fields["name"]]
            assert not await log.admin().list_topics()

    asyncio.run(main())


def test_a_record_is_written_and_shown() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await log.admin().create_topics([NewTopic(NAME, 3)])
            fields = {"key": "00 ff", "key_as": "hex", "value": '{"n":\r\n1}', "value_as": "json",
                      "headers": "source: web\r\nempty:", "partition": "2"}  # fmt: skip
            answer, page = await send(browser, WRITE, WRITE, **fields)
            assert answer.url.path == f"/console/topics/{NAME}/messages"
            assert [f.get("id") for _, f in page.tags if "open" in f] == ["r-2-0"]
            await send(browser, WRITE, WRITE, key="", value="", value_as="null")
            await send(browser, WRITE, WRITE, key="k", value="<b>")
            seen = await records(log)
            assert (b"\x00\xff", b'{"n":\n1}', (("source", b"web"), ("empty", b"")), 2) in seen
            assert [each[:2] for each in seen if each[1] is None] == [(None, None)]
            assert [each[:2] for each in seen if each[0] == b"k"] == [(b"k", b"<b>")]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"value": "{", "value_as": "json"}, "the value is not JSON"),
        ({"value": "x", "value_as": "null"}, "is to be null"),
        ({"key": "0", "key_as": "hex"}, "the key is not hex"),
        ({"key": "0", "key_as": "pickle"}, "one of text, json"),
        ({"headers": "x"}, "a header is like"),
        ({"partition": "7"}, "7"),
        ({"partition": "-1"}, "not a whole number"),
    ],
)
def test_a_record_that_is_not_what_it_says_is_not_written(
    fields: dict[str, str], said: str
) -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await log.admin().create_topics([NewTopic(NAME, 1)])
            _, page = await send(browser, WRITE, WRITE, **{"key": "k", "value": "v"} | fields)
            assert said in page.text
            assert not await records(log)

    asyncio.run(main())


def test_internal_topics_are_neither_deleted_nor_written_to() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await fill(log, NAME, b"1")
            await read(log, "g", NAME, 1)
            own = f"/console/topics/{INTERNAL}"
            for to, fields in (
                (f"{own}/delete", {"name": INTERNAL}),
                (f"{own}/write", {"value": "x"}),
                (f"{own}/partitions", {"partitions": "99", "before": "50"}),
                (f"{own}/settings", {"setting": "retention.ms", "value": "1"}),
            ):
                _, page = await send(browser, CREATE, to, **fields)
                assert "is an internal topic" in page.text, to
            assert len(await log.admin().describe_topics([INTERNAL])) == 1
            assert await log.admin().group_offsets("g")

    asyncio.run(main())


def test_readers_see_the_pages_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_file, "COST", (16, 8, 1))
    users = tmp_path / "users"
    for name in ("ann", "ben"):
        set_user(users, name, "secret")
    config = BrokerConfig(web_users=str(users), web_operators="ann")

    async def main() -> None:
        async with console(config) as (browser, log):
            await log.admin().create_topics([NewTopic(NAME, 1)])
            ben = httpx.BasicAuth("ben", "secret")
            dry = f"/console/topics/{NAME}/partitions?add=1&try=1&partitions=2"
            for path in (CREATE, WRITE, SETTINGS, dry):
                page = Page((await browser.get(path, auth=ben)).text)
                assert "an operator can do this" in page.text
                assert not [f for tag, f in page.tags if f.get("method") == "post"]
            ann = httpx.BasicAuth("ann", "secret")
            stolen = Page((await browser.get(WRITE, auth=ann)).text).fields()
            for to in (
                "topics",
                f"topics/{NAME}/partitions",
                f"topics/{NAME}/delete",
                f"topics/{NAME}/write",
            ):
                form = stolen | {"name": NAME, "value": "x"}
                answer = await browser.post(f"/console/{to}", data=form, auth=ben)
                assert answer.status_code == 403, to
            assert not await records(log)

    asyncio.run(main())


def test_a_message_leads_to_the_groups_that_have_read_it() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            await fill(log, NAME, *(b"%d" % n for n in range(9)))
            await read(log, "slow", NAME, 3)
            await read(log, "fast", NAME, 9)
            for offset, said in ((2, 2), (3, 1), (8, 1)):
                path = f"/console/topics/{NAME}/groups?partition=0&offset={offset}"
                page = Page(await wait_for(browser, path, "fast"))
                badges = [text for text in page.texts if text in {"read", "not read yet"}]
                assert badges == ["read", "read" if said == 2 else "not read yet"], offset
            assert "5 before it" in page.text

    asyncio.run(main())


@given(st.binary(max_size=50), st.text(max_size=50).filter(lambda text: "\r\n" not in text))
def test_a_form_carries_any_bytes_as_hex_and_any_text(data: bytes, text: str) -> None:
    hexed = written_of(
        {"key": data.hex(), "key_as": "hex", "value": data.hex(" "), "value_as": "hex"}
    )
    assert (hexed.key, hexed.value) == (data, data)
    if text.isascii():
        plain = written_of({"key": text, "value": text})
        assert (plain.key, plain.value) == (text.encode() or None, text.encode())


@given(st.dictionaries(st.sampled_from(["name", "partitions", "settings", "headers"]), st.text()))
def test_any_form_is_a_topic_or_an_error_of_the_user(form: dict[str, str]) -> None:
    for read_form in (new_topic_of, written_of):
        # Any other error would be a page without an answer.
        with suppress(UsageError):
            read_form(form)
