"""WebServer: uvicorn inside the worker, from a bound address to the last answer.

The address is taken before anything else begins, so that one that is taken ends the worker at
once and others can be told the port. Rule of the file: signals are the command line's, the loop
is the worker's, and the server ends before the worker does: what is being answered gets
`GRACE_S`, then its connection is closed, so that nobody's slow reading holds up a stop. TLS and
passwords are not done here: it listens on 127.0.0.1 unless it is told otherwise, and whatever
else it is to face belongs behind a proxy.
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
from streamlog.worker.health.worker_health import HealthReport
from streamlog.worker.web.metrics import CONTENT_TYPE

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
    """An answer as JSON, which nobody is to keep."""
    return Response(
        msgspec.json.encode(content),
        status,
        headers={"cache-control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def error_answer(error: StreamlogError) -> Response:
    """What went wrong, and whether to come again."""
    status = status_of(error)
    headers = {"retry-after": "1"} if status == UNAVAILABLE else None
    return json_answer({"error": str(error)}, status, headers)


def status_of(error: StreamlogError) -> int:
    """The status that says whose fault an error is."""
    match error:
        case ConfigError() | RequestTimedOut() | ConnectionLost():
            return UNAVAILABLE
        case UsageError():
            return MALFORMED
        case _:
            return UNAVAILABLE if error.retriable else BROKEN


logger = repeated.logger(__name__)


class Health(Protocol):
    """Port: how the worker is."""

    def live(self) -> HealthReport:
        """Whether it works at all: not well means that a restart would help."""

    def ready(self) -> HealthReport:
        """Whether it does all of its share."""


class ExpositionPage(Protocol):
    """Port: what it counts."""

    def text(self) -> bytes:
        """All metrics as they are now, in Prometheus' text format."""


def make_site(
    health: Health,
    exposition: ExpositionPage,
    *,
    more: Sequence[Route] = (),
    hosts: Sequence[str] = ("*",),
) -> Starlette:
    """The server's application.

    Args:
        health: asked by `/live` and `/ready`.
        exposition: shown at `/metrics`.
        more: other paths.
        hosts: the names that requests have to call this server by.
    """

    async def live(_request: Request) -> Response:
        return _health_answer(health.live())

    async def ready(_request: Request) -> Response:
        return _health_answer(health.ready())

    async def metrics(_request: Request) -> Response:
        return Response(exposition.text(), media_type=CONTENT_TYPE)

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
    what = str(error)
    if isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers
        what = f"{request.method} {request.url.path}: {error.detail}"
    paths = ["/live", "/ready", "/metrics", "/tables"]
    return json_answer({"error": what, "paths": paths}, status, headers)


async def _answer_failure(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return json_answer({"error": f"{type(error).__name__}: {error}; see the worker's log"}, BROKEN)


HOST_DEFAULT = "127.0.0.1"
"""Whoever reaches the port may read tables and write into them."""
PORT_MAX = 65_535
BACKLOG = 128
CONNECTIONS_MAX = 256
"""Beyond it the answer is 503 at once: a worker has other things to do."""
REQUEST_HEAD_BYTES_MAX = 64 * 1024
"""A key is a part of the path."""
KEEP_ALIVE_S = 15
GRACE_S = 2
"""What is being answered when the worker stops may take this long."""
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]", "::1")
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound to


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT", ":PORT" (127.0.0.1) or "[::1]:PORT".

    Raises:
        ConfigError: it is not of that form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX:
        raise ConfigError(f"web={text!r} is not HOST:PORT, such as {HOST_DEFAULT}:8080 or :8080")
    return host.strip("[]") or HOST_DEFAULT, int(port)


class WebListener:
    """An address that is ours, and what others call it."""

    def __init__(self, listening: socket.socket) -> None:
        self.socket = listening
        host, port = listening.getsockname()[:2]
        self.host: str = host
        self.port: int = port

    @property
    def endpoint(self) -> str:
        """HOST:PORT for others: of a wildcard, the machine's name."""
        host = socket.gethostname() if self.host in WILDCARDS else self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that requests have to call it by; "*" is any.

        On the machine's own address only its own names: a page of somebody else's, whose name
        has been made to lead here, is not to ask through a browser.
        """
        return LOCAL_NAMES if self.host in {"127.0.0.1", "::1"} else ("*",)


@contextmanager
def listening(address: str) -> Iterator[WebListener]:
    """Take an address; port 0 is a free one. Nobody is answered yet.

    Raises:
        ConfigError: it is not HOST:PORT.
        ListenError: it is taken, or not one of this machine's.
    """
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(_no_listener(address, error)) from error
    with taken:
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(place)
            # At once: two that are bound and not listening may share an address.
            taken.listen(BACKLOG)
        except OSError as error:
            raise ListenError(_no_listener(address, error)) from error
        taken.settimeout(0)  # As asyncio wants it.
        yield WebListener(taken)


@asynccontextmanager
async def serving(app: ASGIApp, listener: WebListener) -> AsyncIterator[None]:
    """Answer requests as long as the block lasts; what is being answered then may end."""
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # What fails is logged by the pages, once.
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
            server.should_exit = True


class _Server(uvicorn.Server):
    """Without handlers of its own for signals, and clean when it is cancelled."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command line."""
        yield

    async def run_on(self, listening: socket.socket) -> None:
        """Serve until `should_exit`, or until cancelled."""
        try:
            await self.serve(sockets=[listening])
        finally:
            # Nothing is left of these after an orderly end.
            for server in getattr(self, "servers", ()):
                server.close()
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            answering = list(self.server_state.tasks)
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)


def _no_listener(address: str, error: OSError) -> str:
    why = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        why = "the port is taken; stop who has it, or give another (port 0 takes a free one)"
    return f"the web server can't listen on {address}: {why}"
