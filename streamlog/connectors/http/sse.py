"""Sse: a source of server-sent events (the HTML standard, section 9.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import ClassVar, NamedTuple

import httpx

from streamlog.connect import (
    ConnectError,
    Guarantee,
    Read,
    Secret,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.http.http_client import check_answer, check_url, errors_of, http_client
from streamlog.durations import Dur, duration_ms
from streamlog.record import Headers

EVENT_BYTES_MAX = 1024 * 1024
"""The longest event."""
RETRY_MS_MAX = 3_600_000
"""The longest time until a new connection that a server can ask for."""


class SseEvent(NamedTuple):
    """An event, as it is dispatched."""

    kind: str
    data: str
    last_id: str


class SseParser:
    """Turns the bytes of a stream into events.

    Attributes:
        last_id: the id of the last event that had one.
        retry_ms: the time until a new connection that the server asks for; None if it does not.
    """

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        self.retry_ms: int | None = None
        self._rest = b""
        self._id = last_id
        self._kind = ""
        self._data: list[str] = []
        self._size = 0
        self._is_first = True

    def feed(self, data: bytes) -> list[SseEvent]:
        r"""Return the events that these bytes complete.

        Lines end with \n, \r\n or \r. An event that is not complete when the stream ends is
        dropped, as the standard asks: the server sends it again.

        Raises:
            ConnectError: an event is longer than `EVENT_BYTES_MAX`.
        """
        self._rest += data
        if self._is_first and len(self._rest) >= len("\ufeff".encode()):
            self._rest = self._rest.removeprefix("\ufeff".encode())
            self._is_first = False
        # A \r at the end may be the first half of \r\n.
        held = b"\r" if self._rest.endswith(b"\r") else b""
        whole = self._rest.removesuffix(b"\r") if held else self._rest
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = rest + held
        events = [event for line in lines if (event := self._line(line.decode(errors="replace")))]
        if len(self._rest) + self._size > EVENT_BYTES_MAX:
            raise ConnectError(f"the server sends an event of more than {EVENT_BYTES_MAX} bytes")
        return events

    def _line(self, line: str) -> SseEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        self._size += len(line)
        match name:
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                # Not yet `last_id`: if the stream ends before the event does, it has to come again.
                self._id = value
            case "retry" if value.isascii() and value.isdecimal():
                self.retry_ms = min(int(value[:9]), RETRY_MS_MAX)
            case _:
                pass  # A comment, which keeps the connection alive, or an unknown field.
        return None

    def _dispatch(self) -> SseEvent | None:
        self.last_id = self._id
        event = SseEvent(self._kind or "message", "\n".join(self._data), self.last_id)
        has_data = bool(self._data)
        # Without data there is no event, but its id counts.
        self._kind, self._data, self._size = "", [], 0
        return event if has_data else None


class Sse(Source[None, bytes], frozen=True, kw_only=True):
    """Reads server-sent events; a record is the data of an event.

    Exactly once if the server sends again what follows `Last-Event-ID`, and gives each event an id;
    else what it sends between two connections is lost.

    Attributes:
        url: where the events come from.
        headers: of the request.
        token: sent as `Authorization: Bearer`.
        kind_header: the name of a header for the kind of event; None for no header.
        timeout: how long the server may send nothing, not even a comment.
        retry: how long until a new connection, unless the server asks for another time.
    """

    guarantee: ClassVar[Guarantee] = "exactly_once"

    url: str
    headers: Mapping[str, str] = {}
    token: Secret | None = None
    kind_header: str | None = "event"
    timeout: Dur = "60s"
    retry: Dur = "3s"

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        check_url(self.url)
        duration_ms(self.timeout)
        duration_ms(self.retry)

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, bytes]]:
        """Yield the events, over as many connections as it takes."""
        del partition
        last_id = "" if offset is None else str(offset["id"])
        retry_ms = duration_ms(self.retry)
        while True:
            parser = SseParser(last_id)
            async with self._stream(last_id) as answer:
                check_answer(answer, context.now())
                async for data in answer.aiter_bytes():
                    yield self._read(parser, data)
            last_id = parser.last_id
            retry_ms = parser.retry_ms if parser.retry_ms is not None else retry_ms
            await context.sleep(f"{retry_ms}ms")

    @asynccontextmanager
    async def _stream(self, last_id: str) -> AsyncIterator[httpx.Response]:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        async with (
            errors_of(self.url),
            http_client(self.headers, self.token, self.timeout) as client,
            client.stream("GET", self.url, headers=headers) as answer,
        ):
            yield answer

    def _read(self, parser: SseParser, data: bytes) -> Read[None, bytes]:
        """Return the events that these bytes complete; perhaps none."""
        events = parser.feed(data)
        headers: list[Headers] | None = None
        if self.kind_header is not None:
            headers = [((self.kind_header, each.kind.encode()),) for each in events]
        values = [each.data.encode() for each in events]
        return Read.raw(values, {"id": parser.last_id}, headers=headers)
