"""REST site: the ASGI application of Kafka Connect's REST API.

Rules: a body is bounded before it is kept, no traceback leaves the process but the trace of a
failed task, and the site listens only where no other machine reaches it, unless the operator says
so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

import msgspec

from streamlog import repeated
from streamlog.connect.herding.herder_requests import ConnectRefusal
from streamlog.connect_service.peer_forwarding import PeerForwarding, forwarding_of
from streamlog.connect_service.rest_answers import ConnectRest, parse_call, refusal
from streamlog.connect_service.rest_port import RestPort
from streamlog.errors import ConfigError
from streamlog.http_server import is_allowed_host, is_local, parse_address

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

SETTING: Final = "rest"
REST_DEFAULT: Final = "127.0.0.1:8083"
"""Kafka Connect's port, on this machine alone."""
BODY_BYTES_MAX: Final = 1024 * 1024
BODY_TIMEOUT_MS: Final = 30_000
"""How long a client may take to send a body."""
REQUESTS_MAX: Final = 256
"""How many requests are answered at a time; one more gets 503."""

_log = repeated.logger(__name__)


def check_exposure(address: str, *, is_insecure: bool) -> None:
    """Raise ConfigError if others can reach an address, unless the operator wants that."""
    host, _ = parse_address(address, setting=SETTING)
    if not is_insecure and not is_local(host):
        raise ConfigError(
            f"{SETTING}={address}: other machines can reach this address, and can start and stop"
            " connectors without a password; use 127.0.0.1, or say --rest-insecure"
        )


def site_of(service: RestPort, hosts: tuple[str, ...], cluster_id: str) -> RestSite:
    """Return the REST API of a worker's connectors.

    Args:
        service: the connectors.
        hosts: the allowed values of the header Host; "*" allows any.
        cluster_id: the id of the log, which `GET /` shows.
    """
    return RestSite(forwarding_of(service, cluster_id), hosts, prefix=service.prefix)


class RestSite:
    """The ASGI application."""

    def __init__(
        self, rest: ConnectRest | PeerForwarding, hosts: tuple[str, ...], *, prefix: str = ""
    ) -> None:
        """Create the application.

        Args:
            rest: answers requests.
            hosts: the allowed values of the header Host; "*" allows any.
            prefix: what comes before the paths of the API.
        """
        self._rest, self._hosts, self._prefix = rest, hosts, prefix
        self._answering = 0

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
        data = b"" if body is None else msgspec.json.encode(body)
        headers = [(b"content-length", b"%d" % len(data))]
        if data:
            headers.append((b"content-type", b"application/json"))
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
        try:
            async with asyncio.timeout(BODY_TIMEOUT_MS / 1000):
                body = await _read_body(receive)
        except TimeoutError:
            raise ConnectRefusal(
                408, f"The body did not arrive within {BODY_TIMEOUT_MS} ms"
            ) from None
        raw = cast("bytes", scope.get("raw_path") or b"").decode("latin-1")
        query = cast("bytes", scope["query_string"]).decode("latin-1")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path = raw.partition("?")[0].removeprefix(self._prefix)
        target = f"{path}?{query}" if query else path
        return await self._rest.answer(parse_call(method, target, body, headers))

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a name that a foreign page in a browser may have made up (DNS rebinding)."""
        host = headers.get("host", "")
        if not is_allowed_host(host, self._hosts):
            raise ConnectRefusal(400, f"Host '{host[:80]}' is not this worker on 127.0.0.1")


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
