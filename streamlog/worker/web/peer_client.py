"""PeerRows: another worker's rows, asked for over HTTP.

One POST for one question, MessagePack both ways, on a connection of its own: a question is
answered within a commit or not at all, and a worker asks few others. h11 (which carries the
server, too) speaks HTTP on asyncio's streams. Rule of the file: everything has a bound, the time
of an answer and its size, and whatever goes wrong on the way is `NotHere` with what went wrong:
whether to ask again is the caller's business.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import h11
import msgspec

from streamlog.processing.table_rows import PAGE_BYTES_MAX
from streamlog.worker.access.questions import (
    NotHere,
    PassedAsked,
    PassedRows,
    RowAsked,
    RowFound,
    RowsAsked,
    RowsFound,
)

A = TypeVar("A", RowFound, RowsFound, PassedRows)
"""An answer."""

ANSWER_MS = 5_000
"""Who has not answered by then is busy with something else, or not there."""
ANSWER_BYTES_MAX = 64 * 1024 * 1024 + 2 * PAGE_BYTES_MAX
"""A page ends behind the row that fills it, and a row is as large as its record in the log."""
READ_BYTES = 64 * 1024
OK = 200
CONTENT_TYPE = "application/msgpack"

_encode = msgspec.msgpack.Encoder().encode


class PeerRows:
    """A `Holder` at an endpoint."""

    def __init__(self, endpoint: str, *, answer_ms: int = ANSWER_MS) -> None:
        self.endpoint = endpoint
        self._answer_ms = answer_ms

    async def row(self, asked: RowAsked) -> RowFound:
        """See `Holder`."""
        return await self._ask("/peer/row", asked, RowFound)

    async def rows(self, asked: RowsAsked) -> RowsFound:
        """See `Holder`."""
        return await self._ask("/peer/rows", asked, RowsFound)

    async def passed(self, asked: PassedAsked) -> PassedRows:
        """See `Holder`."""
        return await self._ask("/peer/passed", asked, PassedRows, more_ms=asked.wait_ms)

    async def _ask(self, path: str, asked: object, kind: type[A], *, more_ms: int = 0) -> A:
        who = f"the worker at {self.endpoint}"
        try:
            async with asyncio.timeout((self._answer_ms + more_ms) / 1000):
                status, body = await _post(self.endpoint, path, _encode(asked))
            if status != OK:
                raise NotHere(f"{who}: {body[:500].decode(errors='replace')}")
            return msgspec.msgpack.decode(body, type=kind)
        except TimeoutError:
            raise NotHere(f"{who} has not answered within {self._answer_ms + more_ms} ms") from None
        except (OSError, h11.RemoteProtocolError, msgspec.MsgspecError) as error:
            raise NotHere(f"{who} can't be asked: {error}") from error


async def _post(endpoint: str, path: str, body: bytes) -> tuple[int, bytes]:
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        http = h11.Connection(h11.CLIENT)
        headers = [
            ("host", endpoint),
            ("content-type", CONTENT_TYPE),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        for event in (
            h11.Request(method="POST", target=path, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            writer.write(http.send(event) or b"")
        await writer.drain()
        return await _response(http, reader)
    finally:
        writer.close()


async def _response(http: h11.Connection, reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status = 0
    body = bytearray()
    while True:
        event = http.next_event()
        match event:
            case h11.NEED_DATA:
                http.receive_data(await reader.read(READ_BYTES))
            case h11.Response():
                status = event.status_code
            case h11.Data():
                body += event.data
                if len(body) > ANSWER_BYTES_MAX:
                    raise h11.RemoteProtocolError(f"more than {ANSWER_BYTES_MAX} bytes")
            case h11.EndOfMessage():
                return status, bytes(body)
            case h11.ConnectionClosed():
                raise h11.RemoteProtocolError("hung up")
            case _:
                pass
