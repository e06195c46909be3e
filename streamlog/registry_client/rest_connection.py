"""REST connection: requests to the servers of one registry, with retries.

Rule: a request is sent to the server that answered last. If a server can't be reached, or answers
that it can't serve now (429, or 5xx), the next one is tried, and after all of them the whole round
again, later each time. Registering a schema twice gives the same id, so every request may be
repeated but a deletion: if that may have arrived, it fails, and says so. A refused certificate is
not retried: it stays refused until someone changes it.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from base64 import b64encode
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from streamlog.clock import Clock, SystemClock
from streamlog.errors import ConnectionLost, SchemaRegistryError
from streamlog.registry_client.registry_settings import (
    CA_FILE,
    CERTIFICATE_FILE,
    RegistrySettings,
    RegistryUrl,
)
from streamlog.serdes.erased_types import JsonValue
from streamlog.transport.security import Security

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
REQUEST_TIMEOUT_S: Final = 10.0
"""How long one server may take to answer."""
RETRY_MS: Final = 200
"""The first pause between two rounds; each further pause is twice as long."""
RETRY_MAX_MS: Final = 5_000
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest answer: a registry with very many subjects lists them in one."""
_CLIENT_ERROR, _SERVER_ERROR, _TOO_MANY = 400, 500, 429
Query = dict[str, str]


class _Failure(msgspec.Struct, frozen=True):
    """Why a server gave no answer."""

    reason: str
    is_distrust: bool = False
    """Whether one side refused the other's certificate."""


class RestConnection:
    """Requests to one registry; any thread may use it."""

    def __init__(self, settings: RegistrySettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._context = _tls_context(settings)
        self._closing = threading.Event()
        self._at = 0
        """The server that answered last."""

    def request(
        self,
        method: str,
        path: tuple[str | int, ...],
        *,
        query: Query | None = None,
        body: object = None,
        patience_ms: int = 0,
    ) -> JsonValue:
        """Send a request and return its answer.

        Args:
            method: GET, POST, PUT or DELETE.
            path: the parts of the path.
            query: the parameters of the URL.
            body: the body, as data.
            patience_ms: how long to try again while no server answers; 0: each one is tried once.

        Raises:
            SchemaRegistryError: the registry refused the request, or one side refused the other's
                certificate.
            ConnectionLost: no server answered.
        """
        target = "/" + "/".join(quote(str(part), safe="") for part in path)
        if query:
            target += "?" + urlencode(query)
        data = None if body is None else msgspec.json.encode(body)
        deadline_ms, pause_ms = self._clock.now_ms() + patience_ms, RETRY_MS
        while True:
            try:
                return self._round(method, target, data)
            except ConnectionLost:
                # The registry may be starting together with this worker, in one deployment.
                left_ms = deadline_ms - self._clock.now_ms()
                if left_ms <= 0 or self._closing.is_set():
                    raise
            self._closing.wait(min(pause_ms, left_ms) / 1000)
            pause_ms = min(2 * pause_ms, RETRY_MAX_MS)

    def close(self) -> None:
        """End the pauses of requests in other threads."""
        self._closing.set()

    def _round(self, method: str, target: str, data: bytes | None) -> JsonValue:
        """Try each server once, from the one that answered last on."""
        # Read once: another thread may move `_at` while this round is under way.
        failures, urls = [], self.settings.urls
        begin = self._at
        for step in range(len(urls)):
            at = (begin + step) % len(urls)
            url = urls[at]
            answered = self._attempt(url, method, target, data)
            if isinstance(answered, _Failure):
                failures.append(answered)
                continue
            status, answer = answered
            # A refusal (4xx) is the registry's answer, and every server would give it. So is a 5xx
            # to a deletion: it says whether the deletion may have happened.
            if status != _TOO_MANY and (status < _SERVER_ERROR or method == "DELETE"):
                self._at = at
                return _result(status, answer, f"{method} {url}{target}")
            failures.append(_Failure(f"{url}: status {status} {_message(answer)}"))
        reasons = "; ".join(each.reason for each in failures)
        # 1. One server has an expired certificate, the other is restarting: the next round may find
        # the second one. 2. All were reached and none is trusted: another round changes nothing.
        if all(each.is_distrust for each in failures):
            raise SchemaRegistryError(reasons)
        raise ConnectionLost(f"the schema registry does not answer: {reasons}")

    def _attempt(
        self, url: RegistryUrl, method: str, target: str, data: bytes | None
    ) -> tuple[int, bytes] | _Failure:
        """Return the status and the answer of one server, or why there is none.

        Raises:
            SchemaRegistryError: a deletion may have happened.
        """
        try:
            return self._send(url, method, target, data)
        except (OSError, http.client.HTTPException) as error:
            distrust = _distrust(url, error) if isinstance(error, ssl.SSLError) else None
            if distrust is not None:
                return _Failure(distrust, is_distrust=True)
            # 1. A server deletes a version, and its answer is lost. 2. The next server says that
            # the version does not exist. That would be no answer to this request.
            if method == "DELETE" and not isinstance(error, ConnectionRefusedError):
                raise SchemaRegistryError(
                    f"{method} {url}{target}: {error or type(error).__name__}; whether the deletion"
                    " happened is not known"
                ) from error
            return _Failure(f"{url}: {error or type(error).__name__}")

    def _send(
        self, url: RegistryUrl, method: str, target: str, data: bytes | None
    ) -> tuple[int, bytes]:
        headers = {"Accept": f"{MEDIA_TYPE}, application/json", "Content-Type": MEDIA_TYPE}
        if self.settings.auth:
            token = b64encode(self.settings.auth.encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        connection = self._connect(url)
        try:
            connection.request(method, url.path + target, data, headers)
            response = connection.getresponse()
            answer = response.read(ANSWER_BYTES_MAX + 1)
        finally:
            # Requests are few, one per schema, so a connection that is kept would mostly be idle.
            connection.close()
        if len(answer) > ANSWER_BYTES_MAX:
            raise http.client.HTTPException(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
        return response.status, answer

    def _connect(self, url: RegistryUrl) -> http.client.HTTPConnection:
        if url.is_tls:
            return http.client.HTTPSConnection(
                url.host, url.port, timeout=REQUEST_TIMEOUT_S, context=self._context
            )
        return http.client.HTTPConnection(url.host, url.port, timeout=REQUEST_TIMEOUT_S)


def _result(status: int, answer: bytes, request: str) -> JsonValue:
    if status >= _CLIENT_ERROR:
        raise SchemaRegistryError(
            f"{_message(answer)} ({request})", status=status, error_code=_error_code(answer)
        )
    try:
        return msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise SchemaRegistryError(
            f"{request}: the answer is not JSON: {answer[:60]!r}; is this a schema registry?",
            status=status,
        ) from error


def _error_code(answer: bytes) -> int:
    try:
        found = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return -1
    code = found.get("error_code") if isinstance(found, dict) else None
    return code if isinstance(code, int) else -1


def _message(answer: bytes) -> str:
    try:
        found = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return repr(answer[:60])
    return str(found.get("message", "")) if isinstance(found, dict) else repr(answer[:60])


def _tls_context(settings: RegistrySettings) -> ssl.SSLContext | None:
    if not any(url.is_tls for url in settings.urls):
        return None
    return Security(
        protocol="SSL",
        ca_file=settings.ca_file,
        certificate_file=settings.certificate_file,
        key_file=settings.key_file,
        key_password=settings.key_password,
    ).tls()


def _distrust(url: RegistryUrl, error: ssl.SSLError) -> str | None:
    """Return why TLS failed, and what to check; None if another attempt may succeed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the schema registry at {url} is not trusted: "
            f"{error.verify_message}; {CA_FILE} names the file of trusted authorities"
        )
    # The connection was cut: the server is stopping, or a proxy in front of it has no server.
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    said = (error.reason or str(error)).lower().replace("_", " ")
    return (
        f"TLS with the schema registry at {url} failed ({said}): if it serves no TLS, write "
        f"http:// in its URL; if it requires a client certificate, set {CERTIFICATE_FILE}"
    )
