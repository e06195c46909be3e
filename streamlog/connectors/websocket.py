"""WebSocket: a source of the messages that a server sends over a WebSocket (RFC 6455).

The protocol acknowledges nothing. What was sent while no reader was connected is lost, unless the
server's own protocol says how to resume: then the offset is the position that its messages carry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from http import HTTPStatus

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode

from streamlog.connect import (
    ConnectError,
    Guarantee,
    Json,
    Read,
    Retriable,
    Secret,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.client_tls import ClientTls, split_server_url
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError

PORTS = {"ws": 80, "wss": 443}
MESSAGE_BYTES_MAX = 1024 * 1024
"""The largest message by default."""
MESSAGE_BYTES_LIMIT = 15 * 1024 * 1024
"""A step of a source is 16 MiB at most."""
STEP_BYTES = 1024 * 1024
"""About the bytes of one step."""
STEP_MESSAGES = 1_000
"""The most messages of one step."""
QUEUED_MESSAGES = 16
"""How many messages wait here before the connection is not read, and the server has to wait."""
CLOSE_S = 2
"""How long the server may take to close a connection."""
GOING_AWAY = frozenset({
    CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.SERVICE_RESTART,
})  # fmt: skip
"""Codes of a server that has closed the connection in order: done, going away, restarting."""
TRIED_AGAIN = frozenset({408, 425, 429})
"""The statuses below 500 after which the same request may succeed later."""
OFFSET = "{offset}"


class WebSocket(Source[None, bytes], frozen=True, kw_only=True):
    """Reads the messages of a WebSocket; a record is a message.

    At most once. With `resume`, exactly once from the first record on (with `start`, from there
    on), if the server sends again what follows the position that it gets, in the same order.

    Attributes:
        url: `ws://HOST/PATH`, or `wss://` for TLS.
        headers: of the request that opens the connection.
        token: sent as `Authorization: Bearer`.
        tls: the files of TLS, for `wss://`.
        subscribe: messages that are sent to the server once the connection is open.
        resume: the message that is sent instead if there is an offset; "{offset}" is the position
            as JSON.
        offset_field: where a message, which is JSON, has its position, as `meta.sequence`. Messages
            without it, such as answers and signs of life, are left out.
        start: the position, as JSON, after which a source begins that has read nothing yet.
        ping: how often a silent server is asked for a sign of life, and how long it may take.
        retry: how long until a new connection if the server has closed one in order.
        timeout: how long a connection may take to open.
        message_bytes_max: the largest message.
    """

    url: str
    headers: Mapping[str, str] = {}
    token: Secret | None = None
    tls: ClientTls | None = None
    subscribe: tuple[str, ...] = ()
    resume: str | None = None
    offset_field: str | None = None
    start: str | None = None
    ping: Dur = "20s"
    retry: Dur = "3s"
    timeout: Dur = "30s"
    message_bytes_max: int = MESSAGE_BYTES_MAX

    @property
    def guarantee(self) -> Guarantee:  # type: ignore[override] # A setting decides here.
        """What the source promises, if the server keeps its part."""
        return "exactly_once" if self.resume is not None else "at_most_once"

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        if "@" in self.url.partition("://")[2].partition("/")[0]:
            raise ConfigError("url has a login, which would be shown: set token or headers instead")
        parts, _ = split_server_url(self.url, PORTS)
        if self.tls is not None:
            self.tls.check()
            if parts.scheme != "wss":
                raise ConfigError("tls needs a url that begins with wss://")
        self._check_resume()
        for name in ("ping", "timeout"):
            if not duration_ms(getattr(self, name)):
                raise ConfigError(f"{name} is 0: it has to be longer")
        duration_ms(self.retry)
        if not 1 <= self.message_bytes_max <= MESSAGE_BYTES_LIMIT:
            raise ConfigError(
                f"message_bytes_max={self.message_bytes_max} is not from 1 to {MESSAGE_BYTES_LIMIT}"
            )

    def _check_resume(self) -> None:
        if (self.resume is None) is not (self.offset_field is None):
            raise ConfigError("resume and offset_field go together: set both or neither")
        if self.resume is not None and OFFSET not in self.resume:
            raise ConfigError(f"resume={self.resume!r} has no {OFFSET}: the position goes there")
        if self.offset_field is not None and not all(self.offset_field.split(".")):
            raise ConfigError(f"offset_field={self.offset_field!r} has an empty name")
        if self.start is not None:
            if self.resume is None:
                raise ConfigError("start needs resume, by which the server learns of it")
            _position(self.start)

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, bytes]]:
        """Yield the messages, over as many connections as it takes."""
        del partition
        if offset is None and self.start is not None:
            offset = {"position": _position(self.start)}
            # Committed before the first message counts, as `start` may change until then.
            yield Read([], offset)
        messages = MessageReader(self, offset or {}, context)
        while True:
            async with (
                self._connection() as connection,
                aclosing(messages.reads(connection)) as reads,
            ):
                async for read in reads:
                    yield read
            await context.sleep(self.retry)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[ClientConnection]:
        headers = dict(self.headers)
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token.reveal()}"
        tls = (self.tls or ClientTls()).context() if self.url.startswith("wss:") else None
        with _errors_of(self.url):
            async with _Connect(
                self.url,
                additional_headers=headers,
                ssl=tls,
                open_timeout=duration_ms(self.timeout) / 1000,
                ping_interval=duration_ms(self.ping) / 1000,
                ping_timeout=duration_ms(self.ping) / 1000,
                close_timeout=CLOSE_S,
                max_size=self.message_bytes_max,
                max_queue=QUEUED_MESSAGES,
            ) as connection:
                yield connection


class _Connect(connect):
    """Opens a connection, and follows no redirect, which may lead to another server."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Return the error: the status decides."""
        return exc


@contextmanager
def _errors_of(url: str) -> Iterator[None]:
    """Turn the library's errors into those of the port.

    Raises:
        Retriable: the server can't be reached, or has ended the connection.
        ConnectError: it refuses, or sends what can't be read.
    """
    try:
        yield
    except InvalidStatus as error:
        status = error.response.status_code
        is_transient = status in TRIED_AGAIN or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        kind = Retriable if is_transient else ConnectError
        raise kind(f"{url} was answered with {status}") from error
    except ConnectionClosed as error:
        if error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG:
            raise ConnectError(
                f"{url} sends a message that is larger than message_bytes_max"
            ) from error
        raise Retriable(f"{url}: connection lost: {error}") from error
    except (OSError, WebSocketException) as error:
        raise Retriable(f"{url}: {type(error).__name__}: {error}") from error


class MessageReader:
    """Reads messages, and knows the position of the last one.

    Args:
        source: the settings.
        offset: where reading begins; {} for nowhere.
        context: the runtime.
    """

    def __init__(self, source: WebSocket, offset: SourceOffset, context: SourceContext) -> None:
        self._source, self._context = source, context
        self._fields = () if source.offset_field is None else tuple(source.offset_field.split("."))
        self.offset = offset

    def opening(self) -> Sequence[str]:
        """Return what is sent to the server once a connection is open."""
        if self._source.resume is None or "position" not in self.offset:
            return self._source.subscribe
        position = msgspec.json.encode(self.offset["position"]).decode()
        return [self._source.resume.replace(OFFSET, position)]

    async def reads(self, connection: ClientConnection) -> AsyncGenerator[Read[None, bytes], None]:
        """Yield what one connection brings, until the server closes it in order."""
        for text in self.opening():
            await connection.send(text)
        while (values := await self.take(connection)) is not None:
            if values:
                yield Read.raw(values, self.offset)

    async def take(self, connection: ClientConnection) -> list[bytes] | None:
        """Return the messages that have arrived, after the first one; None at the end in order.

        Raises:
            ConnectionClosed: the connection was lost.
        """
        try:
            found = self._chosen(await connection.recv(decode=False))
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code in GOING_AWAY:
                return None
            raise
        size, count = sum(map(len, found)), 1
        # Further ones only without waiting: the first message must not be late for their sake.
        while size < STEP_BYTES and count < STEP_MESSAGES:
            try:
                async with asyncio.timeout(0):
                    message = await connection.recv(decode=False)
            except (TimeoutError, ConnectionClosed):
                # The next call raises it again.
                break
            count += 1
            size += len(message)
            found += self._chosen(message)
        return found

    def _chosen(self, message: bytes) -> list[bytes]:
        """Return the message, unless it has no position; remember the position."""
        if not self._fields:
            return [message]
        position = self._position_of(message)
        if position is None:
            self._context.count("messages_without_offset")
            return []
        # A server may resume at a position instead of behind it.
        if self.offset.get("position") == position:
            return []
        self.offset = {"position": position}
        return [message]

    def _position_of(self, message: bytes) -> Json:
        try:
            found: Json = msgspec.json.decode(message)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        for name in self._fields:
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, str | int | float) else None


def _position(text: str) -> Json:
    """Return the position of `start`.

    Raises:
        ConfigError: it is no number or string of JSON.
    """
    try:
        return msgspec.json.decode(text, type=str | int | float)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"start={text!r} is no position: write a number, or a string in quotes"
        ) from error
