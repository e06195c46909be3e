"""Webhook: a source of requests that other programs send, answered when their records count."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import ClassVar, Literal

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from streamlog.connect import (
    Guarantee,
    Read,
    Secret,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
    cut_lines,
)
from streamlog.connectors.listeners import TlsFiles, check_listeners, parse_address
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError, ListenError
from streamlog.http_server import BACKLOG, ON_DISCONNECT, WebListener, serve
from streamlog.record import Headers

BODY_BYTES_MAX = 1024 * 1024
"""The largest body by default."""
BODY_BYTES_LIMIT = 8 * 1024 * 1024
CONNECTIONS_MAX = 10_000
"""More than other servers take, as a request waits for its commit here."""
HELD_BYTES_MAX = 32 * 1024 * 1024
"""Bodies that wait for their commit; with more, requests are answered with 503. This is more than
starts a commit early, or it would limit the bytes of each commit interval.

1. The log takes nothing for a while, and senders give up and send again. 2. Copies without a sender
fill the room. 3. Every sender gets 503. So a body whose sender has gone, or was told to try again,
is dropped if no step has taken it. One that was taken is in memory until its commit, and counts."""
ARRIVING_BYTES_MAX = 32 * 1024 * 1024
"""Bodies that are being sent; with more, requests are answered with 503. They do not count as held:
senders that never finish must not use up the room of those that do."""
VALUE_BYTES = 64
"""What a record costs in memory beside its bytes: a body of short lines is many of them."""
TAKEN_MAX = 1_000
"""The most requests of one step."""
TAKEN_BYTES = 4 * 1024 * 1024
"""A step takes no further request beyond these bytes."""

_json = msgspec.json.Decoder()
_any_line = msgspec.json.Decoder(msgspec.Raw)


class FlumeEvent(msgspec.Struct, frozen=True):
    """An event as Flume's HTTP source takes it."""

    body: str
    headers: dict[str, str] = {}


_flume = msgspec.json.Decoder(list[FlumeEvent])


class Webhook(Source[None, bytes], frozen=True, kw_only=True):
    """Receives requests (POST and PUT); records are their bodies, as bytes.

    At least once: 200 is answered once the records are in the log; without it, the sender has to
    send again. 503 is answered when too much waits, or when the commit takes too long.

    Attributes:
        address: HOST:PORT; ":PORT" is 127.0.0.1.
        path: where requests go.
        format: "json": a body is a record, and must be JSON; "ndjson": each line of it is; "raw":
            a body is a record; "flume": a JSON list of objects with `headers` and `body`.
        token: what requests have to bring as `Authorization: Bearer`.
        signature_secret: the key of the HMAC-SHA256 of the body, which requests have to bring.
        signature_header: the header with it, in hex, with or without "sha256=" in front.
        headers: the headers of a request that become headers of its records.
        tls: the files of TLS; None for plain text.
        body_bytes_max: larger bodies are answered with 413.
        timeout: how long a body may take to arrive, and how long it then waits for its commit.
        listeners: how many tasks may listen; those of one machine share the port.
    """

    guarantee: ClassVar[Guarantee] = "at_least_once"

    address: str
    path: str = "/"
    format: Literal["json", "ndjson", "raw", "flume"] = "json"
    token: Secret | None = None
    signature_secret: Secret | None = None
    signature_header: str = "X-Hub-Signature-256"
    headers: Sequence[str] = ("Idempotency-Key",)
    tls: TlsFiles | None = None
    body_bytes_max: int = BODY_BYTES_MAX
    timeout: Dur = "30s"
    listeners: int = 1

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        parse_address(self.address)
        if not self.path.startswith("/"):
            raise ConfigError(f"path={self.path!r} must begin with /")
        if not 1 <= self.body_bytes_max <= BODY_BYTES_LIMIT:
            raise ConfigError(
                f"body_bytes_max={self.body_bytes_max} is not from 1 to {BODY_BYTES_LIMIT}"
            )
        if not duration_ms(self.timeout):
            raise ConfigError(f"timeout={self.timeout!r} must be longer than 0")
        check_listeners(self.listeners)

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return a part for each listener."""
        del context
        return [{"listener": number} for number in range(self.listeners)]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, bytes]]:
        """Yield what arrives."""
        del partition, offset, context
        door = WebhookDoor(self)
        async with AsyncExitStack() as stack:
            bound = stack.enter_context(_bound(self.address))
            tls = None if self.tls is None else self.tls.context()
            # Closed by a stack of its own: the server's task group must not see that the generator
            # is closed, which it would take for an error.
            server = AsyncExitStack()
            await server.enter_async_context(
                serve(door.app, WebListener(bound), tls=tls, connections_max=CONNECTIONS_MAX)
            )
            try:
                while True:
                    taken = await door.take()
                    headers = _headers(taken)
                    values = _values(taken) if headers else _spans(taken)
                    settled = partial(door.settle, taken)
                    yield Read.raw(values, {}, headers=headers, committed=settled)
            finally:
                door.close()
                await server.aclose()


class Delivery:
    """The records of one request, which waits until they count.

    Args:
        values: the records.
        headers: the headers of each record.
        body: what was sent.
        has_lines: whether the values are the lines of the body, without an empty one.
    """

    def __init__(
        self, values: list[bytes], headers: list[Headers], body: bytes, *, has_lines: bool = False
    ) -> None:
        self.count = len(values)
        self.headers = headers if any(headers) else []
        """Empty if no record has any."""
        self.lines = body if has_lines else None
        self._values = [] if has_lines else values
        self.size = len(body) + VALUE_BYTES * len(values)
        self.is_taken = False
        """Whether a step has them, which can't be called back."""
        self.counts: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether they are in the log; set once."""

    @property
    def values(self) -> list[bytes]:
        """The records."""
        return self._values if self.lines is None else self.lines.split(b"\n")

    def answer(self, *, counts: bool) -> None:
        """Let the request be answered, unless its client has gone."""
        if not self.counts.done():
            self.counts.set_result(counts)


def _headers(deliveries: list[Delivery]) -> list[Headers] | None:
    if not any(each.headers for each in deliveries):
        return None
    return [names for each in deliveries for names in each.headers or [()] * each.count]


def _values(deliveries: list[Delivery]) -> list[bytes]:
    return [value for each in deliveries for value in each.values]


def _spans(deliveries: list[Delivery]) -> Sequence[bytes | None]:
    """Return the values; lines as spans of one chunk, for which the batch needs no object each."""
    bodies = [each.lines for each in deliveries if each.lines is not None]
    if len(bodies) < len(deliveries):
        return _values(deliveries)
    chunk = b"\n".join(bodies)
    spans = cut_lines(chunk, len(chunk), len(chunk))
    if spans is None:
        return _values(deliveries)
    # Until the commit, the chunk alone keeps them in memory.
    for each in deliveries:
        each.lines = None
    return spans


class WebhookDoor:
    """The application behind the address, and the requests that wait."""

    def __init__(self, source: Webhook) -> None:
        self._source = source
        self._token = None if source.token is None else source.token.reveal()
        secret = source.signature_secret
        self._secret = None if secret is None else secret.reveal().encode()
        self._arrived = asyncio.Event()
        self._queue: OrderedDict[Delivery, None] = OrderedDict()
        """Requests that no step has taken, oldest first. A thousand senders may leave at once, so
        one in the middle has to be removed without a search."""
        self._open: set[Delivery] = set()
        self._open_bytes = self._arriving_bytes = 0
        self._timeout_s = duration_ms(source.timeout) / 1000
        self._is_closed = False
        self.app = Starlette(
            routes=[Route(source.path, self._receive, methods=["POST", "PUT"])],
        )

    async def take(self) -> list[Delivery]:
        """Return the requests that have arrived; wait for the first one."""
        # Nothing is awaited between the test and `clear`, so no arrival is missed.
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        taken, size = list[Delivery](), 0
        while self._queue and len(taken) < TAKEN_MAX and size < TAKEN_BYTES:
            taken.append(self._queue.popitem(last=False)[0])
            taken[-1].is_taken = True
            size += taken[-1].size
        return taken

    def settle(self, deliveries: Collection[Delivery], *, counts: bool = True) -> None:
        """Let requests be answered, and give their room to others.

        Args:
            deliveries: the requests.
            counts: whether their records are in the log.
        """
        for each in deliveries:
            each.answer(counts=counts)
            if each in self._open:
                self._open.remove(each)
                self._open_bytes -= each.size

    def _leave(self, delivery: Delivery) -> None:
        """Drop a request whose sender does not wait any more, unless a step has its records."""
        if not delivery.is_taken and delivery in self._open:
            del self._queue[delivery]
            self.settle([delivery], counts=False)

    def close(self) -> None:
        """Answer all that wait with 503: whether their records will count is unknown."""
        self._is_closed = True
        self._queue.clear()
        self.settle([*self._open], counts=False)

    async def _receive(self, request: Request) -> Response:
        # Before the body: a stranger's costs no memory.
        if not self._has_token(request):
            return _refused()
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                refusal = await self._collect(request, body)
        except ClientDisconnect:
            return Response(status_code=400)
        except TimeoutError:
            return PlainTextResponse("the body takes too long\n", 408)
        finally:
            self._arriving_bytes -= len(body)
        return refusal or await self._take_body(request, bytes(body))

    async def _collect(self, request: Request, body: bytearray) -> Response | None:
        """Fill the body; returns the answer to one that is too much."""
        async for data in request.stream():
            body += data
            self._arriving_bytes += len(data)
            if len(body) > self._source.body_bytes_max:
                return PlainTextResponse("the body is too large\n", 413)
            if self._arriving_bytes > ARRIVING_BYTES_MAX:
                return _try_again()
        return None

    async def _take_body(self, request: Request, body: bytes) -> Response:
        # Before anything of the body is looked at: a stranger learns nothing from its answer.
        if not self._is_signed(request, body):
            return _refused()
        try:
            delivery = self._delivery(request, body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return PlainTextResponse(f"{error}\n", 400)
        return await self._deliver(request, delivery)

    async def _deliver(self, request: Request, delivery: Delivery) -> Response:
        if not delivery.count:
            return Response(status_code=200)
        # Not queued without bound: the sender keeps what the log can't take now.
        if self._is_closed or self._open_bytes + delivery.size > HELD_BYTES_MAX:
            return _try_again()
        self._open.add(delivery)
        self._open_bytes += delivery.size
        self._queue[delivery] = None
        self._arrived.set()
        request.scope[ON_DISCONNECT] = partial(self._leave, delivery)
        try:
            async with asyncio.timeout(self._timeout_s):
                counts = await delivery.counts
        except TimeoutError:
            # What was taken may still count: the sender sends it again, so at least once.
            counts = False
        finally:
            self._leave(delivery)
        return Response(status_code=200) if counts else _try_again()

    def _has_token(self, request: Request) -> bool:
        if self._token is None:
            return True
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        # In constant time: how many letters were right must not show.
        return hmac.compare_digest(sent.encode(), self._token.encode())

    def _is_signed(self, request: Request, body: bytes) -> bool:
        if self._secret is None:
            return True
        expected = hmac.new(self._secret, body, hashlib.sha256).hexdigest()
        given = request.headers.get(self._source.signature_header, "").removeprefix("sha256=")
        return hmac.compare_digest(given.lower().encode(), expected.encode())

    def _delivery(self, request: Request, body: bytes) -> Delivery:
        """Return the records of a body.

        Raises:
            msgspec.MsgspecError: the body is not what `format` says.
        """
        carried: Headers = tuple(
            (name, request.headers[name].encode())
            for name in self._source.headers
            if name in request.headers
        )
        match self._source.format:
            case "flume":
                events = _flume.decode(body)
                values = [event.body.encode() for event in events]
                headers: list[Headers] = [
                    (*carried, *((name, text.encode()) for name, text in event.headers.items()))
                    for event in events
                ]
                return Delivery(values, headers, body)
            case "ndjson":
                return _lines(body, carried)
            case "json":
                _json.decode(body)
                values = [body]
            case "raw":
                values = [body]
        return Delivery(values, [carried] * len(values), body)


def _lines(body: bytes, headers: Headers) -> Delivery:
    """Return the lines of a body that are not empty.

    Raises:
        msgspec.MsgspecError: a line is not JSON.
    """
    ended = body.removesuffix(b"\n")
    lines = ended.split(b"\n")
    # Nearly no body has an empty line, so no line is asked whether it is one before that shows.
    try:
        deque(map(_any_line.decode, lines), maxlen=0)
    except msgspec.MsgspecError:
        lines = [line for line in lines if line.strip()]
        deque(map(_any_line.decode, lines), maxlen=0)
        return Delivery(lines, [headers] * len(lines), body)
    # `cut_lines` takes a carriage return for a part of the line's end.
    has_lines = b"\r" not in ended
    return Delivery(lines, [headers] * len(lines), ended, has_lines=has_lines)


def _refused() -> Response:
    return PlainTextResponse("token or signature is wrong\n", 401)


def _try_again() -> Response:
    return PlainTextResponse("try again later\n", 503, headers={"Retry-After": "1"})


def _bound(address: str) -> socket.socket:
    """Return a socket that listens on an address, which other workers may share.

    Raises:
        ListenError: the address is taken, or is not of this machine.
    """
    host, port = parse_address(address)
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
        bound.settimeout(0)  # asyncio needs a socket that never blocks.
    except OSError as error:
        bound.close()
        raise ListenError(f"{address} can't be listened on: {error}") from error
    return bound
