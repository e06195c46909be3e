from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from streamlog.connect import ConnectError, SourceOffset
from streamlog.connectors.http.sse import Sse, SseEvent, SseParser
from tests.connectors.http.servers import answering
from tests.connectors.runs import on_loop, reading

STREAM = (
    "\ufeff: a comment\n\n"
    "data: YHOO\ndata: +2\ndata:10\n\n"
    "event: add\nid: 7\ndata: x\r\n\r\n"
    "data\rid\r\r"
    "id: 8\n\n"
    "retry: 250\nretry: soon\nfoo: bar\ndata:  two\n\n"
    "data: never ends"
).encode()
EVENTS = [
    SseEvent("message", "YHOO\n+2\n10", ""),
    SseEvent("add", "x", "7"),
    SseEvent("message", "", ""),
    SseEvent("message", " two", "8"),
]


@given(st.lists(st.integers(1, 9), max_size=60))
def test_events_do_not_depend_on_packets(cuts: list[int]) -> None:
    parser = SseParser()
    events: list[SseEvent] = []
    rest = STREAM
    for size in [*cuts, len(STREAM)]:
        events += parser.feed(rest[:size])
        rest = rest[size:]
    assert events == EVENTS
    assert (parser.last_id, parser.retry_ms) == ("8", 250)


def test_the_id_of_an_event_that_is_cut_off_does_not_count() -> None:
    parser = SseParser()
    parser.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
    assert parser.last_id == "1"


@pytest.mark.parametrize("line", [b"data: xxxxxxxxx\n", b"xxxxxxxxxxxxxxx"])
def test_an_event_is_bounded(line: bytes) -> None:
    parser = SseParser()
    assert parser.feed(line * 10) == []
    with pytest.raises(ConnectError, match="an event of more than"):
        parser.feed(line * 100_000)


@on_loop
async def test_each_event_is_read_once_over_connections_and_kills() -> None:
    async def respond(request: Request) -> Response:
        first = int(request.headers.get("Last-Event-ID", "-1")) + 1

        async def events() -> AsyncIterator[bytes]:
            yield b"retry: 1\n"
            for number in range(first, first + 3):
                yield b"id: %d\nevent: n\ndata: %d\n\n" % (number, number)
            yield b"id: 999\ndata: cut off\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    read: list[bytes] = []
    offset: SourceOffset | None = None
    async with answering(respond) as url:
        for _ in range(3):
            async with reading(Sse(url=url), offset) as life:
                read += await life.take(5)
                assert life.records[0].headers == (("event", b"n"),)
                offset = life.offset
    assert read == [b"%d" % number for number in range(len(read))]


@on_loop
async def test_a_refusal_fails_the_task() -> None:
    async def respond(_: Request) -> Response:
        return Response(status_code=404)

    async with answering(respond) as url:
        with pytest.raises(ConnectError, match="404"):
            async with reading(Sse(url=url)) as life:
                await life.step()
