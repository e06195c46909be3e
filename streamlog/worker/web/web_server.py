"""Web server: uvicorn inside the worker, from a bound address to the last answer.

The address is bound before the worker starts, so that a taken address ends the worker immediately,
and so that other workers can be sent the port.

Rules: the command line handles signals, and the server runs on the worker's event loop. It ends
before the worker does: requests in progress get `GRACE_S`, then their connections are closed, so a
slow reader does not delay the end. Not done here: TLS and passwords. The server listens on
127.0.0.1 by default; for other networks put a proxy in front of it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamlog import repeated
from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    ListenError,
    RequestTimedOut,
    StreamlogError,
    UsageError,
)
from streamlog.metrics.prometheus import CONTENT_TYPE, exposition
from streamlog.metrics.registry import Registry
from streamlog.worker.health.worker_health import HealthReport

if TYPE_CHECKING:
    from starlette.types import ASGIApp


OK = 200
MALFORMED = 400
NOT_FOUND = 404
NOT_HERE = 409
BROKEN = 500
UNAVAILABLE = 503


def json_answer(
    content: object, status: int = OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer as JSON, with caching disabled."""
    return Response(
        msgspec.json.encode(content),
        status,
        headers={"cache-control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def error_answer(error: StreamlogError) -> Response:
    """Return an error as JSON; with `retry-after` if the request may succeed later."""
    status = status_of(error)
    headers = {"retry-after": "1"} if status == UNAVAILABLE else None
    return json_answer({"error": str(error)}, status, headers)


def status_of(error: StreamlogError) -> int:
    """Return the HTTP status of an error: 4xx for the request's fault, 5xx for the worker's."""
    match error:
        # Before its base `UsageError`: a setting that a worker lacks is not the fault of the
        # request.
        case ConfigError() | RequestTimedOut() | ConnectionLost():
            return UNAVAILABLE
        case UsageError():
            return MALFORMED
        case _:
            return UNAVAILABLE if error.retriable else BROKEN


logger = repeated.logger(__name__)


class Health(Protocol):
    """Port: the health of the worker."""

    def live(self) -> HealthReport:
        """Report whether the process works; if it does not, a restart would help."""

    def ready(self) -> HealthReport:
        """Report whether all tasks of the worker run."""


def make_site(
    health: Health,
    registry: Registry,
    *,
    more: Sequence[Route] = (),
    hosts: Sequence[str] = ("*",),
) -> Starlette:
    """Return the ASGI application of the server.

    Args:
        health: answers `/live` and `/ready`.
        registry: the metrics that `/metrics` shows.
        more: further routes.
        hosts: the allowed values of a request's Host header; "*" allows any.
    """

    async def live(_request: Request) -> Response:
        return _health_answer(health.live())

    async def ready(_request: Request) -> Response:
        return _health_answer(health.ready())

    async def metrics(_request: Request) -> Response:
        return Response(await exposition(registry), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/live", live),
            Route("/ready", ready),
            Route("/metrics", metrics),
            *more,
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={HTTPException: _answer_refusal, Exception: _answer_failure},
    )


def _health_answer(report: HealthReport) -> Response:
    return json_answer(report.facts, OK if report.is_well else UNAVAILABLE)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    status, headers = BROKEN, None
    message = str(error)
    if isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers
        message = f"{request.method} {request.url.path}: {error.detail}"
    paths = ["/live", "/ready", "/metrics", "/tables", "/hot-keys"]
    return json_answer({"error": message, "paths": paths}, status, headers)


async def _answer_failure(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return json_answer({"error": f"{type(error).__name__}: {error}; see the worker's log"}, BROKEN)


HOST_DEFAULT = "127.0.0.1"
"""Local by default: any client that reaches the port can read tables and write to them."""
PORT_MAX = 65_535
BACKLOG = 128
CONNECTIONS_MAX = 256
"""With more connections, requests are answered with 503 immediately."""
REQUEST_HEAD_BYTES_MAX = 64 * 1024
"""The largest head of a request; its path may hold a key."""
KEEP_ALIVE_S = 15
GRACE_S = 2
"""How long requests in progress may take after the worker has begun to stop."""
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]", "::1")
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound to


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT", ":PORT" (127.0.0.1) or "[::1]:PORT".

    Raises:
        ConfigError: the text has none of these forms.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX:
        raise ConfigError(f"web={text!r} is not HOST:PORT, such as {HOST_DEFAULT}:8080 or :8080")
    return host.strip("[]") or HOST_DEFAULT, int(port)


class WebListener:
    """A bound address, and its names."""

    def __init__(self, bound: socket.socket) -> None:
        self.socket = bound
        host, port = bound.getsockname()[:2]
        self.host: str = host
        self.port: int = port

    @property
    def endpoint(self) -> str:
        """HOST:PORT for other workers; a wildcard address is replaced by the machine's name."""
        host = socket.gethostname() if self.host in WILDCARDS else self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The allowed values of a request's Host header; "*" allows any.

        On a loopback address only loopback names are allowed. This prevents DNS rebinding: a
        foreign web page whose name resolves to 127.0.0.1 can't read tables through a browser.
        """
        return LOCAL_NAMES if self.host in {"127.0.0.1", "::1"} else ("*",)


@contextmanager
def listen(address: str) -> Iterator[WebListener]:
    """Bind an address without answering yet; port 0 takes a free one.

    Raises:
        ConfigError: the address is not HOST:PORT.
        ListenError: the address is taken, or doesn't belong to this machine.
    """
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, bind_to = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(_no_listener(address, error)) from error
    with taken:
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(bind_to)
            # Immediately: with SO_REUSEADDR two sockets can bind one address until one listens.
            taken.listen(BACKLOG)
        except OSError as error:
            raise ListenError(_no_listener(address, error)) from error
        taken.settimeout(0)  # asyncio needs a non-blocking socket.
        yield WebListener(taken)


@asynccontextmanager
async def serve(app: ASGIApp, listener: WebListener) -> AsyncIterator[None]:
    """Answer requests while the block lasts, then let requests in progress end."""
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # The pages log their errors themselves.
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=REQUEST_HEAD_BYTES_MAX,
        )
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run_on(listener.socket), name="web server")
        try:
            yield
        finally:
            # uvicorn ends by itself then; requests in progress get `GRACE_S`.
            server.should_exit = True


class _Server(uvicorn.Server):
    """A server without signal handlers, which releases everything when it is cancelled."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command line."""
        yield

    async def run_on(self, listening: socket.socket) -> None:
        """Serve until `should_exit`, or until cancelled."""
        try:
            await self.serve(sockets=[listening])
        finally:
            # After an orderly end these lists are empty; after a cancellation they are not.
            for server in getattr(self, "servers", ()):
                server.close()
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            answering = list(self.server_state.tasks)
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)


def _no_listener(address: str, error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        reason = "the port is taken; stop its process, or use another port (0 picks a free one)"
    return f"the web server can't listen on {address}: {reason}"
