from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from streamlog.connect import BadRecords, Batch, Retriable, Secret, TopicPartition
from streamlog.connectors.http.http_client import retry_after
from streamlog.connectors.http.http_sink import HttpSink
from streamlog.errors import ConfigError
from streamlog.record import Record
from tests.connectors.http.servers import answering
from tests.connectors.runs import RealContext, on_loop, writing

NOW = datetime(2025, 1, 31, tzinfo=UTC)
PLACE = TopicPartition("orders", 2)


def batch(values: list[bytes | None], first: int = 7) -> Batch[Any, Any]:
    records = [Record(None, value, NOW, (), *PLACE, first + at) for at, value in enumerate(values)]
    return Batch(PLACE, records, next_offset=first + len(values))


class Inbox:
    """What a server has got: header and body of each request."""

    def __init__(self, status: Callable[[bytes], int] = lambda _: 200) -> None:
        self.status = status
        self.got: list[tuple[str, str, bytes]] = []

    async def respond(self, request: Request) -> Response:
        body = await request.body()
        self.got.append((request.method, request.headers["Idempotency-Key"], body))
        status = self.status(body)
        return Response("no such thing", status, headers={"Retry-After": "3"})


@on_loop
async def test_each_value_is_a_request_with_a_key_of_its_offset() -> None:
    inbox = Inbox()
    context = RealContext()
    async with answering(inbox.respond) as url:
        sink = HttpSink(url=f"{url}/in", method="PUT", token=Secret("t"))
        async with writing(sink, context) as task:
            await task.begin()
            await task.write(batch([b"a", None, b"b"]))
            await task.commit({PLACE: 10})
    assert inbox.got == [("PUT", "orders-2-7", b"a"), ("PUT", "orders-2-9", b"b")]
    assert context.counts["tombstones"] == 1


@on_loop
async def test_a_batch_is_one_request_of_lines() -> None:
    inbox = Inbox()
    async with (
        answering(inbox.respond) as url,
        writing(HttpSink(url=url, body="ndjson")) as task,
    ):
        await task.write(batch([b"1", None, b"2"]))
        await task.write(batch([None], first=20))
        with pytest.raises(BadRecords, match="line end"):
            await task.write(batch([b"1\n2"]))
    assert inbox.got == [("POST", "orders-2-7-10", b"1\n2\n")]


@on_loop
async def test_records_that_the_server_blames_are_found_among_the_others() -> None:
    inbox = Inbox(lambda body: 422 if body == b"bad" else 200)
    async with answering(inbox.respond) as url, writing(HttpSink(url=url)) as task:
        with pytest.raises(BadRecords) as raised:
            await task.write(batch([b"bad", b"good", b"bad"]))
    assert raised.value.why == {0: "422 no such thing", 2: "422 no such thing"}


@pytest.mark.parametrize("status", [429, 500, 503])
@on_loop
async def test_a_server_that_is_busy_is_asked_again_when_it_wants(status: int) -> None:
    inbox = Inbox(lambda _: status)
    async with answering(inbox.respond) as url, writing(HttpSink(url=url)) as task:
        with pytest.raises(Retriable) as raised:
            await task.write(batch([b"a"]))
    assert raised.value.after_ms == 3_000


@on_loop
async def test_a_refusal_fails_and_a_server_that_is_away_is_tried_again() -> None:
    inbox = Inbox(lambda _: 403)
    async with answering(inbox.respond) as url, writing(HttpSink(url=url)) as task:
        with pytest.raises(ConfigError, match="403: no such thing; look at the URL"):
            await task.write(batch([b"a"]))
    async with writing(HttpSink(url=url)) as task:
        with pytest.raises(Retriable, match="ConnectError"):
            await task.write(batch([b"a"]))


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("", None),
        ("soon", None),
        ("7", timedelta(seconds=7)),
        ("99999999999999999999", timedelta(hours=1)),
        ("Fri, 31 Jan 2025 00:00:09 GMT", timedelta(seconds=9)),
        ("Thu, 30 Jan 2025 00:00:00 GMT", timedelta()),
    ],
)
def test_retry_after(text: str, wait: timedelta | None) -> None:
    answer = httpx.Response(503, headers={"Retry-After": text})
    assert retry_after(answer, NOW) == wait


@pytest.mark.parametrize(
    ("url", "message"),
    [("ftp://x", "is no URL of http"), ("x", "is no URL"), ("http://u:p@x", "has a password")],
)
def test_wrong_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        HttpSink(url=url).check()
    assert "u:p" not in str(raised.value)
