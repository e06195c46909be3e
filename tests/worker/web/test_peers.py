"""Queries between workers over a real connection: answers, refusals and timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.applications import Starlette

from streamlog.errors import RequestTimedOut
from streamlog.http_server import listen, serve
from streamlog.worker.access.questions import (
    AppliedAnswer,
    AppliedQuery,
    NotHere,
    RowAnswer,
    RowQuery,
    ScanAnswer,
    ScanQuery,
)
from streamlog.worker.web.table_pages import PeerRows, peer_routes

WHERE: dict[str, Any] = {"app": "shop", "table": "t", "subtopology": 0, "partition": 2}


class Rows:
    """Answers with the query, and records it."""

    def __init__(self) -> None:
        self.received: list[object] = []

    async def row(self, asked: RowQuery) -> RowAnswer:
        self.received.append(asked)
        if asked.key == b"moved":
            raise NotHere("it has moved")
        if asked.key == b"busy":
            raise RequestTimedOut("too many")
        if asked.key == b"slow":
            await asyncio.Event().wait()
        return RowAnswer(data=asked.key * 2, age_ms=5 if asked.stale_ok else None)

    async def rows(self, asked: ScanQuery) -> ScanAnswer:
        self.received.append(asked)
        return ScanAnswer(rows=[(b"k\xff", bytes(700_000))] * 3, next_key=b"\x00")

    async def check_applied(self, asked: AppliedQuery) -> AppliedAnswer:
        self.received.append(asked)
        return AppliedAnswer(is_applied=asked.offset < 5, is_suspended=True)


def with_peer(story: Callable[[PeerRows, Rows], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        rows = Rows()
        with listen(":0") as listener:
            async with serve(Starlette(routes=peer_routes(rows)), listener):
                await story(PeerRows(listener.endpoint, answer_ms=5_000), rows)

    asyncio.run(main())


def test_queries_and_answers_round_trip() -> None:
    async def story(peer: PeerRows, rows: Rows) -> None:
        row = RowQuery(**WHERE, key=bytes(range(256)), stale_ok=True)
        page = ScanQuery(**WHERE, low=b"a", high=None, head=b"\x00", own_at=16, rows_max=7)
        passed = AppliedQuery(**WHERE, topic="texts", offset=4, wait_ms=10)
        assert await peer.row(row) == RowAnswer(data=bytes(range(256)) * 2, age_ms=5)
        found = await peer.rows(page)
        assert (len(found.rows), found.rows[0][0], found.next_key) == (3, b"k\xff", b"\x00")
        assert await peer.check_applied(passed) == AppliedAnswer(is_applied=True, is_suspended=True)
        assert rows.received == [row, page, passed]
        many = await asyncio.gather(
            *(peer.row(RowQuery(**WHERE, key=f"{at}".encode())) for at in range(50))
        )
        assert [each.data for each in many] == [f"{at}{at}".encode() for at in range(50)]

    with_peer(story)


@pytest.mark.parametrize(("key", "why"), [(b"moved", "it has moved"), (b"busy", "too many")])
def test_a_refusal_has_its_reason(key: bytes, why: str) -> None:
    async def story(peer: PeerRows, _rows: Rows) -> None:
        with pytest.raises(NotHere, match=why):
            await peer.row(RowQuery(**WHERE, key=key))

    with_peer(story)


def test_a_silent_peer_times_out() -> None:
    async def story(peer: PeerRows, _rows: Rows) -> None:
        patient = PeerRows(peer.endpoint, answer_ms=20)
        with pytest.raises(NotHere, match="has not answered within 20 ms"):
            await patient.row(RowQuery(**WHERE, key=b"slow"))

    with_peer(story)


def test_an_unreachable_or_foreign_peer_is_reported() -> None:
    async def main() -> None:
        with listen(":0") as listener:
            gone = listener.endpoint
        with pytest.raises(NotHere, match="can't be asked"):
            await PeerRows(gone).row(RowQuery(**WHERE, key=b"k"))

        async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\x00\x01 this is not HTTP\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(NotHere, match="can't be asked"):
                await PeerRows(f"127.0.0.1:{port}").row(RowQuery(**WHERE, key=b"k"))
        with listen(":0") as listener:
            async with serve(Starlette(), listener):
                with pytest.raises(NotHere, match="Not Found"):
                    await PeerRows(listener.endpoint).row(RowQuery(**WHERE, key=b"k"))

    asyncio.run(main())


def test_a_malformed_query_is_refused() -> None:
    async def story(peer: PeerRows, rows: Rows) -> None:
        reader, writer = await asyncio.open_connection(*peer.endpoint.split(":"))
        for body in (b"garbage", b"\x80", b""):
            head = f"POST /peer/row HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            assert b" 400 " in await reader.readline()
            length = 0
            while (line := await reader.readline()) != b"\r\n":
                if line.startswith(b"content-length:"):
                    length = int(line.split()[1])
            assert b"the query is malformed" in await reader.readexactly(length)
        writer.close()
        assert rows.received == []

    with_peer(story)
