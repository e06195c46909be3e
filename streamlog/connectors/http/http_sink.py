"""HttpSink: sends the records of a topic as requests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import ClassVar, Literal, Self

import httpx

from streamlog.connect import (
    BadRecords,
    Batch,
    Effect,
    Secret,
    Sink,
    SinkContext,
    SinkTask,
)
from streamlog.connectors.http.http_client import (
    BLAMES_CONTENT,
    check_taken,
    check_url,
    errors_of,
    http_client,
    shown,
)
from streamlog.durations import Dur, duration_ms

BODIES = {"record": "application/octet-stream", "ndjson": "application/x-ndjson"}


class HttpSink(Sink[object, object], frozen=True, kw_only=True):
    """Sends values as they lie in the log, one request for each record or for a batch.

    At least once: each request has an `Idempotency-Key` of topic, partition and offset, by which
    the server can drop what comes again. Tombstones are not sent.

    Attributes:
        url: where requests go.
        method: "POST", "PUT" or "PATCH".
        body: "record": a request for each value; "ndjson": a line for each value of a batch.
        content_type: of the body; None: by `body`.
        headers: of each request.
        token: sent as `Authorization: Bearer`.
        timeout: how long an answer may take.
    """

    effect: ClassVar[Effect] = "appending"

    url: str
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    body: Literal["record", "ndjson"] = "record"
    content_type: str | None = None
    headers: Mapping[str, str] = {}
    token: Secret | None = None
    timeout: Dur = "30s"

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        check_url(self.url)
        duration_ms(self.timeout)

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that is not connected yet."""
        return HttpSinkTask(self, context)


class HttpSinkTask(SinkTask[object, object]):
    """A client, which keeps its connections between requests."""

    def __init__(self, sink: HttpSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Make the client; it connects with the first request."""
        sink = self._sink
        client = http_client(sink.headers, sink.token, sink.timeout)
        self._client = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self._stack.aclose()

    async def write(self, batch: Batch[object, object]) -> None:
        """Send the records of a batch, in order.

        Raises:
            BadRecords: the server blames some of them.
            Retriable: it can't answer now.
            ConfigError: it refuses whatever is sent.
        """
        values = [value for _, value in batch.raw()]
        if self._sink.body == "record":
            await self._send_each(batch, values)
        else:
            await self._send_lines(batch, values)

    async def _send_each(self, batch: Batch[object, object], values: list[bytes | None]) -> None:
        topic, number = batch.partition
        why: dict[int, str] = {}
        for index, (record, value) in enumerate(zip(batch.records, values, strict=True)):
            if value is None:
                self._context.count("tombstones")
                continue
            answer = await self._send(value, f"{topic}-{number}-{record.offset}")
            if answer.status_code in BLAMES_CONTENT:
                # All bad ones of the batch are found before the others are sent again.
                why[index] = f"{answer.status_code} {shown(answer)}"
            else:
                check_taken(answer, self._context.now())
        if why:
            raise BadRecords(why)

    async def _send_lines(self, batch: Batch[object, object], values: list[bytes | None]) -> None:
        # A value with a line end would be two records to the server.
        lines = [value for value in values if value is not None]
        split = {
            at: "a value has a line end" for at, each in enumerate(values) if b"\n" in (each or b"")
        }
        if split:
            raise BadRecords(split)
        if len(lines) < len(values):
            self._context.count("tombstones", len(values) - len(lines))
        if lines:
            topic, number = batch.partition
            key = f"{topic}-{number}-{batch.first_offset}-{batch.next_offset}"
            # A refusal names no record: the runtime halves the batch until one stands alone.
            check_taken(await self._send(b"\n".join([*lines, b""]), key), self._context.now())

    async def _send(self, body: bytes, key: str) -> httpx.Response:
        sink = self._sink
        headers = {
            "Content-Type": sink.content_type or BODIES[sink.body],
            "Idempotency-Key": key,
        }
        async with errors_of(sink.url):
            return await self._client.request(sink.method, sink.url, content=body, headers=headers)
