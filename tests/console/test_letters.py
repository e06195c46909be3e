"""Dead letters in the console of a worker: read, filtered, mended, and sent again once."""

from __future__ import annotations

import asyncio
import html
import json
import logging
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, on_error
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.console.app_pages.letter_pages import chosen_of
from streamlog.errors import UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.topics.dead_letters import (
    Replayed,
    letter_reader,
    progress,
    read_unsent,
    sent_of,
    unsent,
)
from tests.console.consoles import Page, wait_for
from tests.console.worker_consoles import worker_console


def build() -> App:
    app = App("shop", commit_interval="20ms")
    orders = app.topic("orders", key=str, value=str)
    prices = app.topic("prices", key=str, value=str)
    (
        app.stream(orders)
        .map_values(lambda v: str(10 // int(v)), name="price", on_error=on_error.dlq())
        .to(prices)
    )
    return app


async def write(log: Log, *values: str) -> None:
    async with log.producer() as producer:
        for value in values:
            await producer.send("orders", value.encode(), key=b"k")


async def values(log: Log, topic: str, count: int) -> list[str]:
    found: list[str] = []
    async with log.consumer(
        auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(found) < count:
            for records in (await consumer.poll(timeout_ms=100)).values():
                found += [(each.value or b"").decode() for each in records]
    return found


async def letters_page(browser: httpx.AsyncClient, count: int, query: str = "") -> Page:
    """Return the page of letters, once there are so many."""
    while True:
        page = Page((await browser.get(f"/console/letters/shop-dlq{query}")).text)
        if f"{count} letter" in page.text:
            return page


def test_letters_are_filtered_mended_and_sent_again_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streamlog.audit")

    async def main() -> None:
        async with worker_console(build(), tmp_path) as (browser, log):
            await wait_for(browser, "/console/tasks", "running")
            await write(log, "0", "<b>", "5", "0")
            page = await letters_page(browser, 3)
            assert "ZeroDivisionError" in page.text
            letter = Page((await browser.get("/console/letters/shop-dlq/0/0")).text).text
            assert f"{__name__}, line" in letter
            assert "in build.<locals>.<lambda> ZeroDivisionError: integer division" in letter
            assert "<b>" in Page((await browser.get("/console/letters/shop-dlq/0/1")).text).text
            zeros = await letters_page(browser, 2, "?q=headers.error.contains('ZeroDivision')")
            assert len(json.loads(zeros.fields()["letters"])) == 2
            send, form = "/console/letters/shop-dlq/send", page.fields()
            refused = await browser.post(send, data={**form, "token": "x"})
            assert refused.status_code == 403
            # One with another value, then those that are left; none of them twice.
            one = {**form, "letters": "[[0,1]]", "value": "2"}
            assert "1 letter sent again" in (await browser.post(send, data=one)).text
            again = await browser.post(send, data=one)
            assert "letter 0:1 was sent again already" in html.unescape(again.text)
            assert sorted(await values(log, "prices", 2)) == ["2", "5"]
            left = await letters_page(browser, 2)
            done = await browser.post(send, data=left.fields())
            assert "2 letters sent again" in done.text
            # They fail once more, as letters of their own.
            await letters_page(browser, 2)
            await letters_page(browser, 5, "?sent=1")
            overview = Page((await browser.get("/console/letters")).text)
            assert "price" in overview.text
            assert "dead letter" in overview.text
            assert (await browser.get("/console/letters/orders")).status_code == 503
            async with letter_reader(log, "shop-dlq") as consumer:
                sent = await progress(log, consumer, "shop-dlq")
                found = await read_unsent(log, consumer, sent, 1)
            assert len(unsent(found, sent)) == 1

    asyncio.run(main())
    lines = [each.getMessage() for each in caplog.records if each.name == "streamlog.audit"]
    assert "refused: the page comes from an earlier run" in lines[0]
    assert "shop-dlq again: 0:1, with another value' outcome='done'" in lines[1]
    assert len(lines) == 4


OFFSETS = st.frozensets(st.integers(0, 300), max_size=60)


@given(st.integers(0, 300), OFFSETS, st.integers(0, 300))
def test_what_was_sent_is_read_as_it_was_committed(
    until: int, ahead: frozenset[int], begin: int
) -> None:
    sent = Replayed(until, ahead).to(until)
    found = sent_of(sent.committed(), begin)
    assert all(
        found.has(each) == (each < begin or each < until or each in ahead) for each in range(400)
    )


@given(st.text(max_size=40) | st.from_regex(r"sent [0-9,\-]{0,30}", fullmatch=True))
def test_metadata_of_another_program_does_no_harm(text: str) -> None:
    assert sent_of(OffsetAndMetadata(7, text), 3).until == 7


def refused(of: Callable[[], object]) -> bool:
    try:
        of()
    except UsageError:
        return True
    return False


def test_letters_of_a_form_are_checked_and_bounded() -> None:
    assert chosen_of("[[0, 5]]") == [(0, 5)]
    for text in ("", "[]", "[[0]]", '[["a", 1]]', "[[-1, 1]]", json.dumps([[0, 1]] * 501)):
        assert refused(lambda text=text: chosen_of(text)), text
    far = Replayed(0, frozenset(range(0, 10_000, 2)))
    assert refused(far.committed)
