"""REST server: the schema registry of a broker over HTTP.

An ASGI application without a framework: paths have to be split before they are decoded, since names
of subjects contain slashes. Rules: a body is bounded before it is kept, every error is Confluent's
JSON with a sentence, and no traceback leaves the process. Without TLS and authentication the
registry listens only on an address that no other machine reaches.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, cast

from streamlog import repeated
from streamlog.broker.config.schema_service import AUTHENTICATION_BASIC
from streamlog.broker.server.tls import Certificates
from streamlog.errors import ConfigError, StreamlogError
from streamlog.http_server import (
    WebListener,
    is_allowed_host,
    listen,
    serve,
)
from streamlog.listening import is_local, parse_address
from streamlog.protocol.acls import Operation
from streamlog.registry.refusals import RegistryRefusal
from streamlog.registry.registry_metrics import RegistryMetrics
from streamlog.registry.registry_service import (
    BODY_FACTOR,
    RegistryService,
    RestAnswer,
    json_answer,
    refusal_answer,
    too_large,
)
from streamlog.registry.rest_access import needed_access
from streamlog.registry.rest_credentials import BasicAuthentication, anonymous
from streamlog.registry.rest_requests import RestRequest, parse_request
from streamlog.registry.subject_names import resource_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from streamlog.broker.broker import Broker
    from streamlog.broker.security.acl_authorizer import Access
    from streamlog.registry.queries import Visible

SETTING: Final = "schema.registry.listener"
V1_JSON: Final = "application/vnd.schemaregistry.v1+json"
JSON: Final = "application/json"
PRODUCED: Final = (V1_JSON, "application/vnd.schemaregistry+json", JSON)
ACCEPTED: Final = frozenset({*PRODUCED, "application/octet-stream"})
ANY_TYPE: Final = frozenset({"*/*", "application/*"})
FORBIDDEN: Final = 40301
NOT_ACCEPTABLE: Final = 406
UNSUPPORTED: Final = 415
INTERNAL_ERROR: Final = 500
API_VERSION: Final = "7.9.0"
"""The version of Confluent's registry whose API this one has."""
DRAINED_BYTES_MAX: Final = 16 * 1024 * 1024
"""How much of a body that is too large is still read, so that the client gets the answer."""
BODY_TIMEOUT_MS: Final = 30_000
"""How long a client may take to send a body."""

_log = repeated.logger(__name__)
Authenticate = Callable[[str | None], Awaitable[str]]


@asynccontextmanager
async def serve_registry(broker: Broker, address: str) -> AsyncIterator[str]:
    """Serve the schema registry of a broker in the block; yields its URL.

    Raises:
        ConfigError: the address is not HOST:PORT, or others can reach it and the settings lack TLS
            or authentication.
        ListenError: the address is taken, or does not belong to this machine.
    """
    config = broker.directory.config.registry
    has_passwords = config.authentication == AUTHENTICATION_BASIC
    check_exposure(address, is_secure=config.has_tls and has_passwords)
    tls = None
    if config.has_tls:
        tls = _tls_of(Certificates(broker.directory.config.security, broker.clock))
    service = RegistryService(broker)
    metrics = RegistryMetrics(broker.directory.metrics, service)
    passwords = ThreadPoolExecutor(1, thread_name_prefix="streamlog-passwords")
    authenticate: Authenticate = anonymous
    if has_passwords:
        authenticate = BasicAuthentication(
            lambda: broker.registry_access.users, passwords
        ).principal_of
    try:
        with listen(address, setting=SETTING) as listener:
            site = RegistrySite(broker, service, metrics, authenticate, hosts=listener.hosts)
            # The replay ends last: requests in progress wait for it.
            async with _running(service), serve(site, listener, tls=tls):
                yield _url(listener, has_tls=tls is not None)
    finally:
        passwords.shutdown(wait=False, cancel_futures=True)


@asynccontextmanager
async def _running(service: RegistryService) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        replay = group.create_task(service.run(), name="schema registry")
        try:
            yield
        finally:
            replay.cancel()


def check_exposure(address: str, *, is_secure: bool) -> None:
    """Raise ConfigError if others can reach an address, and it is not secured."""
    host, _ = parse_address(address, setting=SETTING)
    if not is_secure and not is_local(host):
        raise ConfigError(
            f"{SETTING}={address}: other machines can reach this address, so it needs"
            " schema.registry.ssl.enable=true and schema.registry.authentication.method=BASIC;"
            " without them, use 127.0.0.1"
        )


class RegistrySite:
    """The ASGI application."""

    def __init__(
        self,
        broker: Broker,
        service: RegistryService,
        metrics: RegistryMetrics,
        authenticate: Authenticate,
        *,
        hosts: tuple[str, ...],
    ) -> None:
        """`hosts` are the allowed values of the header Host; "*" allows any."""
        self._access = broker.registry_access
        self._cluster_id = broker.cluster_id
        self._service = service
        self._metrics = metrics
        self._authenticate = authenticate
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        media_type, extra = V1_JSON, []
        began_ms = self._access.clock.now_ms()
        try:
            self._check_host(headers)
            media_type = _produced(headers)
            body = await self._body(scope, headers, receive)
            # A HEAD is a GET whose body stays here: load balancers ask so whether a server is up.
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            request = parse_request(method, _target(scope), body)
            answer = await self._answer(request, headers, scope)
        except StreamlogError as error:
            answer = refusal_answer(error)
            if answer.status == 401:  # noqa: PLR2004 - HTTP
                extra.append((b"www-authenticate", b'Basic realm="schema-registry"'))
        except Exception:  # noqa: BLE001 - the answer must not depend on what went wrong
            # Nothing of it leaves the process: the log has the details.
            _log.exception("%s %s failed", scope["method"], scope["path"][:200])
            answer = refusal_answer(
                RegistryRefusal(INTERNAL_ERROR, "Internal error; see the broker's log")
            )
        self._metrics.on_answer(
            scope["method"], scope["path"], answer.status, self._access.clock.now_ms() - began_ms
        )
        await _send(send, answer, media_type, extra)

    async def _answer(
        self, request: RestRequest, headers: Mapping[str, str], scope: Scope
    ) -> RestAnswer:
        principal = await self._authenticate(headers.get("authorization"))
        host = scope["client"][0] if scope.get("client") else ""
        access = self._access.access(principal, host)
        if access is not None:
            self._check_access(request, access)
        match request.method, request.path:
            case "GET", ("v1", "metadata", "id"):
                scope_of = {"path": [], "clusters": {"kafka-cluster": self._cluster_id}}
                return json_answer({"id": self._cluster_id, "scope": scope_of})
            case "GET", ("v1", "metadata", "version"):
                return json_answer({"version": API_VERSION, "commitId": "streamlog"})
            case _:
                return await self._service.answer(request, _visible(access))

    def _check_access(self, request: RestRequest, access: Access) -> None:
        path = request.path
        # A subject stands for the one that its alias names, whose topic the ACLs are about: an
        # alias that everyone may write must not open a topic that they may not.
        if path[:1] == ("subjects",) and len(path) > 1:
            target = self._service.topic.state.resolve_alias(path[1])
            request = RestRequest(
                request.method, request.target, (path[0], target, *path[2:]), request.parameters
            )
        needed = needed_access(request)
        if needed is None:
            return
        operation, topic = needed
        allowed = access.cluster(operation) if topic is None else access.topic(operation, topic)
        if not allowed:
            where = "the cluster" if topic is None else f"topic {topic}"
            raise RegistryRefusal(
                FORBIDDEN,
                f"{access.principal} is denied operation {operation.name} on {where}, which"
                f" {request.method} /{'/'.join(path)} needs",
            )

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a name that a foreign page in a browser may have made up (DNS rebinding)."""
        host = headers.get("host", "")
        if not is_allowed_host(host, self._hosts):
            raise RegistryRefusal(
                400, f"Host '{host[:80]}' is not this registry, which listens on 127.0.0.1"
            )

    async def _body(self, scope: Scope, headers: Mapping[str, str], receive: Receive) -> bytes:
        if scope["method"] in ("POST", "PUT"):
            kind = headers.get("content-type", V1_JSON).partition(";")[0].strip().lower()
            if kind not in ACCEPTED:
                raise RegistryRefusal(
                    UNSUPPORTED,
                    f"HTTP 415 Unsupported Media Type: '{kind[:80]}'; use {V1_JSON} or {JSON}",
                )
        try:
            async with asyncio.timeout(BODY_TIMEOUT_MS / 1000):
                return await self._read_body(receive)
        except TimeoutError:
            raise RegistryRefusal(
                408, f"The body did not arrive within {BODY_TIMEOUT_MS} ms"
            ) from None

    async def _read_body(self, receive: Receive) -> bytes:
        limit = self._service.limits.text_bytes * BODY_FACTOR
        body, size, is_whole = bytearray(), 0, False
        while not is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RegistryRefusal(400, "The client has left before it sent the body")
            chunk = cast("bytes", message.get("body", b""))
            size += len(chunk)
            is_whole = not message.get("more_body", False)
            # 1. A client sends 10 MB, and reads the answer only then. 2. Answered after 4 MB, with
            # the connection closed, it sees a reset connection and no reason. So a body that is
            # somewhat too large is read to its end, and dropped while it arrives.
            if size <= limit:
                body += chunk
            elif is_whole or size > DRAINED_BYTES_MAX + limit:
                raise too_large(self._service.limits)
        return bytes(body)


async def _send(
    send: Send, answer: RestAnswer, media_type: str, extra: list[tuple[bytes, bytes]]
) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [
                (b"content-type", media_type.encode()),
                (b"content-length", str(len(answer.body)).encode()),
                *extra,
            ],
        }
    )
    await send({"type": "http.response.body", "body": answer.body})


def _target(scope: Scope) -> str:
    """Return path and query as they came; `raw_path` is the path before it was decoded."""
    raw = cast("bytes", scope.get("raw_path") or b"").decode("latin-1")
    query = cast("bytes", scope["query_string"]).decode("latin-1")
    return f"{raw.partition('?')[0]}?{query}"


def _produced(headers: Mapping[str, str]) -> str:
    """Return the media type of the answer.

    Raises:
        RegistryRefusal: 406, the client accepts none of them.
    """
    accepted = [
        each.partition(";")[0].strip().lower()
        for each in headers.get("accept", "*/*").split(",")[:50]
    ]
    for each in accepted:
        if each in ANY_TYPE or not each:
            return V1_JSON
        if each in PRODUCED:
            return each
    raise RegistryRefusal(
        NOT_ACCEPTABLE, f"HTTP 406 Not Acceptable: answers are {V1_JSON} or {JSON}"
    )


def _visible(access: Access | None) -> Visible:
    if access is None:
        return lambda _: True
    return lambda subject: access.topic(Operation.DESCRIBE, resource_of(subject))


def _tls_of(certificates: Certificates) -> ssl.SSLContext:
    """Return a context that gives each connection the certificate of this moment."""
    context = certificates.context()

    # Called for each handshake, also without SNI. A new context of OpenSSL is cheap to hand over,
    # so a renewed certificate is used from the next connection on.
    def choose(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        connection.context = certificates.context()

    context.sni_callback = choose
    return context


def _url(listener: WebListener, *, has_tls: bool) -> str:
    return f"{'https' if has_tls else 'http'}://{listener.endpoint}"
