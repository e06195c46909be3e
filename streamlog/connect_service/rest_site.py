"""REST site: the ASGI application of Kafka Connect's REST API.

Rules: a body is bounded before it is kept, no traceback leaves the process but the trace of a
failed task, and without a password a request gets nothing but /health, if there are users. A
request that another worker of the group has signed needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

import msgspec

from streamlog import repeated
from streamlog.connect.herding.herder_requests import ConnectRefusal
from streamlog.connect_service.peer_forwarding import PeerForwarding, forwarding_of
from streamlog.connect_service.rest_answers import (
    METHOD_NOT_ALLOWED,
    Answer,
    RestCall,
    parse_call,
    refusal,
)
from streamlog.connect_service.rest_port import RestPort
from streamlog.http_access.passwords import CHALLENGE, NO_LOGIN, NotAuthenticated, Passwords
from streamlog.http_access.peer_signatures import SIGNATURE_HEADER
from streamlog.http_server import is_allowed_host
from streamlog.metrics.prometheus import CONTENT_TYPE, exposition
from streamlog.metrics.registry import Registry

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from streamlog.worker.web.worker_server import WorkerServer

METRICS: Final = ("metrics",)
BODY_BYTES_MAX: Final = 1024 * 1024
BODY_TIMEOUT_MS: Final = 30_000
"""How long a client may take to send a body."""
REQUESTS_MAX: Final = 256
"""How many requests are answered at a time; one more gets 503."""
UNPROVED_MAX: Final = 16
"""How many bodies are read at a time whose sender has shown no password, but claims to be a worker
of the group."""
UNAUTHORIZED: Final = 401

_log = repeated.logger(__name__)


def site_of(service: RestPort, server: WorkerServer, cluster_id: str) -> RestSite:
    """Return the REST API of the connectors of an app's worker.

    Args:
        service: the connectors.
        server: the HTTP server that the API is a part of, with its users.
        cluster_id: the id of the log, which `GET /` shows.
    """
    return RestSite(
        forwarding_of(service, cluster_id, tls=server.peer_tls),
        server.listener.hosts,
        prefix=service.prefix,
        passwords=server.passwords,
    )


class RestSite:
    """The ASGI application."""

    def __init__(
        self,
        rest: PeerForwarding,
        hosts: tuple[str, ...],
        *,
        prefix: str = "",
        passwords: Passwords | None = None,
        registry: Registry | None = None,
    ) -> None:
        """Create the application.

        Args:
            rest: answers requests.
            hosts: the allowed values of the header Host; "*" allows any.
            prefix: what comes before the paths of the API.
            passwords: the users; None: requests need no password.
            registry: the metrics at `/metrics`; None: another site of the worker has them.
        """
        self._rest, self._hosts, self._prefix = rest, hosts, prefix
        self._passwords, self._registry = passwords, registry
        self._answering = 0
        self._unproved = 0
        """How many requests claim to be signed, and have not been read yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        self._answering += 1
        try:
            status, body = await self._answer(scope, receive)
        except ConnectRefusal as error:
            status, body = refusal(error.status, str(error))
        except Exception:  # noqa: BLE001 - the answer must not depend on what went wrong
            _log.exception("%s %s failed", scope["method"], scope["path"][:200])
            status, body = refusal(500, "Internal error; see the log of the worker")
        finally:
            self._answering -= 1
        content_type, data = b"application/json", b""
        if isinstance(body, bytes):
            content_type, data = CONTENT_TYPE.encode(), body
        elif body is not None:
            data = msgspec.json.encode(body)
        headers = [(b"content-length", b"%d" % len(data))]
        if status == UNAUTHORIZED:
            headers.append(CHALLENGE)
        if data:
            headers.append((b"content-type", content_type))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        # A HEAD is a GET whose body stays here: load balancers ask so whether a server is up.
        is_head = scope["method"] == "HEAD"
        await send({"type": "http.response.body", "body": b"" if is_head else data})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, object]:
        if self._answering > REQUESTS_MAX:
            raise ConnectRefusal(503, f"{REQUESTS_MAX} requests wait already; try again later")
        headers = {
            name.lower().decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        self._check_host(headers)
        raw = cast("bytes", scope.get("raw_path") or b"").decode("latin-1")
        query = cast("bytes", scope["query_string"]).decode("latin-1")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        _check_origin(method, headers)
        path = raw.partition("?")[0].removeprefix(self._prefix)
        target = f"{path}?{query}" if query else path
        # What a load balancer asks: it has no password, and learns nothing but whether it is up.
        if self._passwords is None or (method, path) == ("GET", "/health"):
            body = await _body_in_time(receive)
            return await self._answer_known(parse_call(method, target, body, headers))
        if SIGNATURE_HEADER not in headers:
            # Before the body: who has no password has no memory of this process.
            await self._check_password(self._passwords, headers)
            body = await _body_in_time(receive)
            return await self._answer_known(parse_call(method, target, body, headers))
        return await self._answer_peer((method, target), headers, receive)

    async def _answer_known(self, call: RestCall) -> Answer:
        """Answer a client that has shown its password, if there are any; metrics are bytes."""
        if self._registry is None or call.path != METRICS:
            return await self._rest.answer(call)
        if call.method != "GET":
            raise ConnectRefusal(METHOD_NOT_ALLOWED, "Metrics are only read: use GET")
        return 200, await exposition(self._registry)

    async def _check_password(self, passwords: Passwords, headers: Mapping[str, str]) -> None:
        try:
            await passwords.user_of(headers.get("authorization"))
        except NotAuthenticated:
            raise ConnectRefusal(UNAUTHORIZED, NO_LOGIN) from None

    async def _answer_peer(
        self, request: tuple[str, str], headers: Mapping[str, str], receive: Receive
    ) -> Answer:
        """Answer a request that says that another worker has signed it."""
        # The signature is of the body, so that is read before anything is known of the sender.
        if self._unproved >= UNPROVED_MAX:
            raise ConnectRefusal(503, "Too many requests of other workers; try again later")
        self._unproved += 1
        try:
            body = await _body_in_time(receive)
        finally:
            self._unproved -= 1
        call = parse_call(*request, body, headers)
        if not self._rest.is_from_peer(call):
            raise ConnectRefusal(UNAUTHORIZED, NO_LOGIN)
        return await self._rest.answer(call)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a name that a foreign page in a browser may have made up (DNS rebinding)."""
        host = headers.get("host", "")
        if not is_allowed_host(host, self._hosts):
            raise ConnectRefusal(
                400,
                f"Host '{host[:80]}' is not this worker, which listens on this machine only: ask"
                " for 127.0.0.1 or localhost",
            )


def _check_origin(method: str, headers: Mapping[str, str]) -> None:
    """Refuse changes that a page of another site asks of a browser, which may know a password."""
    # A browser sends a plain POST to any address, and says whose page wants it.
    origin = headers.get("origin")
    if method == "GET" or origin is None:
        return
    if origin.partition("://")[2] != headers.get("host", ""):
        raise ConnectRefusal(403, f"A page of {origin[:80]!r} must not change connectors")


async def _body_in_time(receive: Receive) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_MS / 1000):
            return await _read_body(receive)
    except TimeoutError:
        raise ConnectRefusal(408, f"The body did not arrive within {BODY_TIMEOUT_MS} ms") from None


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectRefusal(400, "The client has left before it sent the body")
        body += cast("bytes", message.get("body", b""))
        if len(body) > BODY_BYTES_MAX:
            raise ConnectRefusal(413, f"The body is larger than {BODY_BYTES_MAX} bytes")
        if not message.get("more_body", False):
            return bytes(body)
