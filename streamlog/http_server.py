"""HTTP server: uvicorn inside a process of streamlog, from a bound address to the last answer.

The address is bound before the process has started, so that a taken address ends it immediately,
and so that others can be sent the port.

Rules: the command line handles signals, and the server runs on the event loop of the process. It
ends before the process does: requests in progress get `GRACE_S`, then their connections are closed,
so a slow reader does not delay the end. A client that begins a request has to send its head in
time, so that slow ones don't use up the connections. Not done here: what is answered, and
passwords.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from streamlog.errors import ListenError
from streamlog.listening import accept_no_more, is_local, parse_address

if TYPE_CHECKING:
    from starlette.types import ASGIApp

BACKLOG = 128
CONNECTIONS_MAX = 256
"""With more connections, requests are answered with 503 immediately; by default."""
REQUEST_HEAD_BYTES_MAX = 64 * 1024
"""The largest head of a request; its path may hold a key."""
HEAD_S = 15
"""How long a client may take from its connection, or from the first byte of a later request, to the
end of the request's head."""
WRITE_S = 30
"""How long a client may leave what was sent to it unread, before its connection is cut."""
KEEP_ALIVE_S = 15
DATE_S = 1
"""The interval at which the Date header is renewed, whose unit is the second."""
HEADERS_TICK = 0
"""A tick of uvicorn's at which it renews the header."""
GRACE_S = 2
"""How long requests in progress may take after the worker has begun to stop."""
ON_DISCONNECT: Final = "streamlog.on_disconnect"
"""The key of a request's scope for what is called if its client goes before it has its answer. A
handler that waits for long learns of it without a task for each request."""
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]", "::1")
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound to


def is_allowed_host(header: str, hosts: Collection[str]) -> bool:
    """Return whether a request's Host header has one of the names in `WebListener.hosts`."""
    # 1. A page of evil.example is open in a browser on this machine. 2. Its name now resolves to
    # 127.0.0.1. 3. The browser sends the page's requests here, with Host: evil.example.
    name, _, port = header.rpartition(":")
    return "*" in hosts or (name if port.isdecimal() else header) in hosts


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
        return (*LOCAL_NAMES, self.host) if is_local(self.host) else ("*",)


@contextmanager
def listen(address: str, *, setting: str = "web") -> Iterator[WebListener]:
    """Bind an address without answering yet; port 0 takes a free one.

    `setting` is the name of the setting that has the address, for errors.

    Raises:
        ConfigError: the address is not HOST:PORT.
        ListenError: the address is taken, or doesn't belong to this machine.
    """
    host, port = parse_address(address, setting=setting)
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
async def serve(
    app: ASGIApp,
    listener: WebListener,
    *,
    tls: ssl.SSLContext | None = None,
    connections_max: int = CONNECTIONS_MAX,
) -> AsyncIterator[None]:
    """Answer requests while the block lasts, then let requests in progress end."""
    config = uvicorn.Config(
        app,
        loop="none",
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # The pages log their errors themselves.
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=connections_max,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=REQUEST_HEAD_BYTES_MAX,
    )
    config.load()
    # Its own settings for TLS can't be reloaded while it runs.
    config.ssl = tls
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run_on(listener.socket), name="web server")
        try:
            yield
        finally:
            # uvicorn ends by itself then; requests in progress get `GRACE_S`.
            server.stop()


class _Connection(H11Protocol):
    """A connection whose client has to send heads of requests, and to read answers, in time."""

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._follow_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a head or a body."""
        super().data_received(data)
        self._follow_head()

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not read."""
        super().pause_writing()
        # Otherwise, one that never reads again keeps its stream, and what is written for it, until
        # its machine is gone.
        self._write_timer = self.loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client reads again."""
        super().resume_writing()
        self._stop_write_timer()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may have begun to arrive."""
        super().on_response_complete()
        # Without any byte of it, uvicorn's limit of an idle connection counts.
        if self.conn.trailing_data[0]:
            self._follow_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        super().connection_lost(exc)
        self._stop_timer()
        self._stop_write_timer()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            scope: Mapping[str, object] = cycle.scope
            gone = scope.get(ON_DISCONNECT)
            if callable(gone):
                gone()

    def _follow_head(self) -> None:
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class _Server(uvicorn.Server):
    """A server without signal handlers, which releases everything when it is cancelled."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End `run_on` in an orderly way."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Keep the Date header current until `stop`."""
        # uvicorn's own loop wakes ten times a second to see whether it is to end: an idle broker
        # with a registry and a console would spend more time on this than on its cluster.
        while not await self.on_tick(HEADERS_TICK):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._stopping.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command line."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and let requests in progress end."""
        await accept_no_more(self.servers)
        await super().shutdown(sockets)

    async def run_on(self, listening: socket.socket) -> None:
        """Serve until `stop`, or until cancelled."""
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
