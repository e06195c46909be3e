"""TcpTransport: one connection to a broker, with many requests in flight.

Opens the connection, negotiates API versions, authenticates, and matches answers to requests. A
late answer closes the connection; if this process itself was stopped, the broker gets more time
(`AnswerDeadline`). Not done here: the choice of a broker, and retries.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias, TypeVar, cast

from streamlog.errors import (
    AuthenticationFailed,
    ConnectionLost,
    CorruptData,
    RequestTimedOut,
    StreamlogError,
    UnsupportedVersion,
)
from streamlog.protocol.api_table import APIS, OWN_KEY, Api, api_of
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.frame import decode_response, encode_request
from streamlog.protocol.frame_reader import what_speaks
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest, ApiVersionsResponse
from streamlog.protocol.messages.sasl_acls_quotas import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from streamlog.protocol.schema import Message
from streamlog.transport.connection_meter import ConnectionMeter
from streamlog.transport.security import Security, exchange_of
from streamlog.transport.socket_buffers import SYSTEM_BUFFERS, SocketBuffers

STEP_S: Final = 1.0
"""The step in which a deadline counts: short compared with the timeouts of requests, and long
enough to cost nothing."""
LATE_S: Final = 0.1
"""If a step ends this much later than planned, the event loop has stood still."""


class AnswerDeadline:
    """A time limit in which only the time counts that the event loop has run.

    Use it in an `async with` block, once. Why not `asyncio.timeout`:

    1. A request is sent; the answer arrives after 10 ms.
    2. The process is stopped for 60 s (a debugger, a suspended laptop).
    3. When it continues, a timer of 30 s is due before the socket is read: the answer that is
       there would count as late.

    Raises:
        TimeoutError: the loop has run for `timeout_ms`, and the block has not ended.
    """

    __slots__ = ("_due_s", "_has_waited", "_left_s", "_loop", "_timeout", "_timer")

    def __init__(self, timeout_ms: int) -> None:
        self._left_s = timeout_ms / 1000
        self._has_waited = False
        self._timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        """Start to count."""
        await self._timeout.__aenter__()
        self._step()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(exc_type, exc, traceback)

    def _step(self) -> None:
        step_s = min(self._left_s, STEP_S)
        self._left_s -= step_s
        self._due_s = self._loop.time() + step_s
        self._timer = self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        now_s = self._loop.time()
        if self._left_s <= 0 and now_s - self._due_s >= LATE_S and not self._has_waited:
            # The last step ended late: one more turn lets the loop read what has arrived. Only
            # once, or a loop that is always late would never time out.
            self._has_waited, self._left_s = True, LATE_S
        if self._left_s > 0:
            self._step()
        else:
            self._timeout.reschedule(now_s)


RESPONSE_BYTES_MAX = 256 * 1024 * 1024
"""The largest response that is accepted: five times a consumer's default `fetch_max_bytes`."""
READ_BYTES = 8 * 1024
"""Size of each connection's buffer for small frames; a larger frame gets a buffer of its own size.
Small, because every connection has one."""
WRITE_BUFFER_BYTES = 1024 * 1024
"""Bytes in the socket's write buffer at which further callers wait."""
CLOSE_TIMEOUT_MS = 1_000
"""How long `close` waits until the peer has taken all written bytes."""
CLIENT_SOFTWARE_NAME = "streamlog"
CLIENT_SOFTWARE_VERSION = "0.1.0"
SESSION_USED = 0.85
"""The fraction of a session's lifetime after which the client authenticates again (KIP-368)."""
SESSION_TIMEOUT_MS = 30_000
"""How long a request without an answer waits for that authentication."""
NONCE_BYTES = 24

_SIZE = struct.Struct(">i")
_ERROR_CODE_AT = 4  # An ApiVersions answer: correlation id, then the error code, in any version.


class Transport(Protocol):
    """Port: a connection to one broker."""

    async def call(
        self, request: Message, *, timeout_ms: int, version_max: int | None = None
    ) -> Message:
        """Send a request and return the answer.

        The request is written before the first suspension, so the requests of consecutive calls
        reach the broker in the order of the calls. It has the newest version that both sides know,
        up to `version_max`.

        Raises:
            ConnectionLost: the connection broke; the request may have taken effect.
            RequestTimedOut: no answer within `timeout_ms`; the transport is closed.
            CorruptData: the answer can't be read; the transport is closed.
        """
        ...

    async def send(self, request: Message, *, version_max: int | None = None) -> None:
        """Send a request that the broker does not answer (`acks=0`).

        Raises:
            ConnectionLost: the connection broke.
        """
        ...

    async def close(self) -> None:
        """Close the connection; calls that wait for an answer raise `ConnectionLost`."""
        ...

    def version(self, api_key: int) -> int:
        """Return the newest version of an API that both sides know.

        Raises:
            UnsupportedVersion: the broker does not serve the API, or no version of it that this
                client knows.
        """
        ...

    def feature(self, name: str) -> int:
        """Return the level of a feature in the broker's cluster; 0 without it."""
        ...


Outcome: TypeAlias = Message | StreamlogError
"""The answer to a request, or the reason why there is none."""


class PromptAnswer:
    """The answer to a request, which is passed on while its bytes are taken from the socket.

    What awaits a future runs in the next iteration of the event loop, a system call and 10 to 20 us
    later. A caller that has a request open all the time, for a record that others wait for, saves
    that, and the task that would wait.
    """

    __slots__ = ("_decode", "_is_done", "_then")

    def __init__(
        self,
        then: Callable[[Outcome], object],
        decode: Callable[[bytes | bytearray], Message] | None = None,
    ) -> None:
        self._then = then
        self._decode = decode
        self._is_done = False

    def done(self) -> bool:
        """Whether there is an outcome, or none is wanted."""
        return self._is_done

    def pass_on(self, outcome: Outcome) -> None:
        """Call `then` with the outcome, unless there was one before."""
        if not self._is_done:
            self._is_done = True
            self._then(outcome)

    def set_result(self, frame: bytes | bytearray) -> None:
        """Pass on the message in the frame of an answer."""
        if self._decode is None or self._is_done:
            return
        try:
            outcome: Outcome = self._decode(frame)
        except StreamlogError as error:
            outcome = error
        self.pass_on(outcome)

    def set_exception(self, error: StreamlogError) -> None:
        """Pass on why there is no answer."""
        self.pass_on(error)

    def cancel(self) -> None:
        """Call nothing: the outcome does not matter any more."""
        self._is_done = True


class PromptTransport(Transport, Protocol):
    """Port: a connection to one broker whose answers take no task."""

    @property
    def needs_renewal(self) -> bool:
        """Whether `renew` has to come before the next `begin`."""
        ...

    async def renew(self, timeout_ms: int) -> None:
        """Authenticate again if the session will end soon (KIP-368).

        Raises what `call` raises.
        """
        ...

    def begin(self, request: Message, then: Callable[[Outcome], object]) -> PromptAnswer:
        """Send a request; `then` gets the outcome, after this has returned.

        No time limits the wait: a caller that has waited long enough passes on an error itself, and
        closes the transport.

        Raises:
            ConnectionLost: the connection broke before.
        """
        ...


class TcpTransport:
    """One TCP connection to a broker; `connect` opens it."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        security: Security | None = None,
        is_broker: bool = False,
        buffers: SocketBuffers = SYSTEM_BUFFERS,
    ) -> None:
        self.meter = ConnectionMeter()
        """What this connection has carried."""
        self._address = f"{host}:{port}"
        self._client_id = client_id
        self._is_broker = is_broker
        self._buffers = buffers
        self._security = security or Security()
        self._due_s: float | None = None
        """When to authenticate again, by the event loop's clock."""
        self._proving = asyncio.Lock()
        self._has_talked = False
        """Whether the broker has answered a request other than ApiVersions."""
        self._versions: dict[int, tuple[int, int]] = {}
        self._features: dict[str, int] = {}
        self._prompt: tuple[type[Message], Api, int] | None = None
        """The kind of message that `begin` last sent, its API, and the version."""
        self._correlation_ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes | bytearray] | PromptAnswer] = {}
        self._lost: ConnectionLost | None = None
        self._wire = _Wire(self._on_frame, self._on_lost)

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_ms: int,
        security: Security | None = None,
        is_broker: bool = False,
        buffers: SocketBuffers = SYSTEM_BUFFERS,
    ) -> Self:
        """Open a connection, negotiate versions, and authenticate if the settings say so.

        A connection between brokers may use versions that clients don't use.

        Raises:
            ConnectionLost: no process listens at the address, or it closed the connection.
            RequestTimedOut: the process that listens does not answer ApiVersions in time.
            AuthenticationFailed: one side refuses the other's certificate or credentials.
        """
        transport = cls(
            host,
            port,
            client_id=client_id,
            security=security,
            is_broker=is_broker,
            buffers=buffers,
        )
        try:
            await transport._open(host, port, timeout_ms)
            await transport._agree(timeout_ms)
            if transport._security.has_sasl:
                await transport._prove(timeout_ms)
        except BaseException:
            await transport.close()
            raise
        return transport

    async def call(
        self, request: Message, *, timeout_ms: int, version_max: int | None = None
    ) -> Message:
        """See `Transport.call`."""
        api = api_of(type(request))
        version = self._version_up_to(api.key, version_max)
        # Only the write is in the session, so that many requests can wait for answers. While the
        # session is renewed, no request may be written (KIP-368).
        async with self._session(timeout_ms):
            answer = self._asked(api, version, request)
        frame = await self._answered(api, answer, timeout_ms)
        self._has_talked = True
        return self._decode(api, version, frame)

    async def send(self, request: Message, *, version_max: int | None = None) -> None:
        """See `Transport.send`."""
        api = api_of(type(request))
        async with self._session(SESSION_TIMEOUT_MS):
            self._write(api, self._version_up_to(api.key, version_max), request)
        await self._wire.drained()
        if self._lost is not None:
            raise self._lost

    def begin(self, request: Message, then: Callable[[Outcome], object]) -> PromptAnswer:
        """See `PromptTransport.begin`."""
        # A connection with a request open all the time repeats one kind of request.
        known, kind = self._prompt, type(request)
        if known is None or known[0] is not kind:
            api = api_of(kind)
            known = self._prompt = kind, api, self.version(api.key)
        _, api, version = known

        def decode(frame: bytes | bytearray) -> Message:
            self._has_talked = True
            return self._decode(api, version, frame)

        answer = PromptAnswer(then, decode)
        self._waiting[self._write(api, version, request)] = answer
        return answer

    @property
    def needs_renewal(self) -> bool:
        """See `PromptTransport.needs_renewal`."""
        return self._due_s is not None and asyncio.get_running_loop().time() >= self._due_s

    async def renew(self, timeout_ms: int) -> None:
        """See `PromptTransport.renew`."""
        async with self._session(timeout_ms):
            return

    async def close(self) -> None:
        """See `Transport.close`."""
        self._end(ConnectionLost(f"the connection to {self._address} was closed by this client"))
        await self._wire.close()

    def version(self, api_key: int) -> int:
        """See `Transport.version`."""
        ours = APIS[api_key]
        # An API that the broker does not list has an empty range.
        low, high = self._versions.get(api_key, (0, -1))
        chosen = min(ours.max_version if self._is_broker else ours.client_version_max, high)
        if chosen < max(ours.min_version, low):
            offers = f"only versions {low} to {high}" if high >= 0 else "no version"
            older = "client" if 0 <= chosen < low else "broker"
            needs = (
                f"this client needs {ours.min_version} to {ours.max_version}: use a newer {older}"
            )
            if high < 0 and api_key >= OWN_KEY:
                needs = "only streamlog's own brokers serve it"
            what = f"the broker at {self._address} serves {offers} of {ours.name}; {needs}"
            raise UnsupportedVersion(what)
        return chosen

    def feature(self, name: str) -> int:
        """See `Transport.feature`."""
        return self._features.get(name, 0)

    def _version_up_to(self, api_key: int, version_max: int | None) -> int:
        newest = self.version(api_key)
        return newest if version_max is None else min(newest, version_max)

    async def _open(self, host: str, port: int, timeout_ms: int) -> None:
        """Open the socket, with TLS if the settings say so."""
        loop, tls = asyncio.get_running_loop(), self._security.tls()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                opened, _ = await loop.create_connection(lambda: self._wire, host, port, ssl=tls)
            if self._buffers != SYSTEM_BUFFERS:
                self._buffers.apply(opened.get_extra_info("socket"))
        # The order matters: TimeoutError and SSLError are OSErrors.
        except TimeoutError:
            raise ConnectionLost(_unreachable(self._address, "no answer")) from None
        except ssl.SSLError as reason:
            raise AuthenticationFailed(_no_tls(self._address, reason)) from None
        except OSError as reason:
            is_cut = isinstance(reason, ConnectionResetError | ConnectionAbortedError)
            if tls is not None and is_cut:
                raise ConnectionLost(_no_handshake(self._address)) from None
            raise ConnectionLost(_unreachable(self._address, _said(reason))) from reason

    async def _agree(self, timeout_ms: int) -> None:
        """Look up the broker's versions, by our newest ApiVersions, else by version 0."""
        api = api_of(ApiVersionsRequest)
        request = ApiVersionsRequest(
            client_software_name=CLIENT_SOFTWARE_NAME,
            client_software_version=CLIENT_SOFTWARE_VERSION,
        )
        version = api.max_version
        frame = await self._exchange(api, version, request, timeout_ms)
        if frame[_ERROR_CODE_AT : _ERROR_CODE_AT + 2] == _UNSUPPORTED:
            # Brokers that don't know our version answer in version 0, and some write the rest of
            # that answer in a form of their own. Version 0 works with every broker.
            version = 0
            frame = await self._exchange(api, version, request, timeout_ms)
        response = self._decode(api, version, frame)
        if not isinstance(response, ApiVersionsResponse):
            raise CorruptData(
                f"{self._address} answered ApiVersions with {type(response).__name__}"
            )
        if response.error_code:
            raise error_for(response.error_code, f"ApiVersions request to {self._address}")
        self._versions = {
            served.api_key: (served.min_version, served.max_version)
            for served in response.api_keys
            if served.api_key in APIS
        }
        self._features = {each.name: each.max_version_level for each in response.finalized_features}

    # ---- who this is ----

    def _session(self, timeout_ms: int) -> AbstractAsyncContextManager[object]:
        """Return the context for writing a request, which authenticates again first if due.

        Requests keep their order, because asyncio's lock is fair.
        """
        if self._due_s is None:
            return nullcontext()
        return self._in_session(timeout_ms)

    @asynccontextmanager
    async def _in_session(self, timeout_ms: int) -> AsyncIterator[None]:
        # Checked with the lock held: 1. Two requests find that the session is due. 2. The first
        # renews it, while the second waits for the lock. 3. The second finds it renewed.
        async with self._proving:
            is_due = asyncio.get_running_loop().time() >= (self._due_s or 0)
            if is_due and self._lost is None:
                try:
                    await self._prove(timeout_ms)
                except StreamlogError as error:
                    # The broker would close a connection whose session has expired.
                    self._end(
                        ConnectionLost(f"the connection to {self._address} was closed: {error}")
                    )
                    raise
            yield

    async def _prove(self, timeout_ms: int) -> None:
        """Authenticate by SASL: choose the mechanism, and exchange messages until accepted."""
        security = self._security
        given = security.secret
        # In a thread, because a function may read a file or ask a server for a token.
        secret = await asyncio.to_thread(given) if callable(given) else given
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        exchange = exchange_of(security.mechanism, security.user, secret, nonce=nonce)
        await self._choose(security.mechanism, timeout_ms)
        message: bytes | None = exchange.first()
        while message is not None:
            request = SaslAuthenticateRequest(auth_bytes=message)
            response = await self._ask(request, SaslAuthenticateResponse, timeout_ms)
            if response.error_code:
                who = f"user {security.user!r}" if security.user else "the token"
                raise error_for(
                    response.error_code,
                    f"{self._address} refuses {who} with {security.mechanism}"
                    f" ({response.error_message or 'it gives no reason'})",
                )
            message = exchange.answer(bytes(response.auth_bytes))
        self._due_s = None
        if response.session_lifetime_ms > 0:
            lasts_s = SESSION_USED * response.session_lifetime_ms / 1000
            self._due_s = asyncio.get_running_loop().time() + lasts_s

    async def _choose(self, mechanism: str, timeout_ms: int) -> None:
        if api_of(SaslHandshakeRequest).key not in self._versions:
            raise AuthenticationFailed(
                f"the listener at {self._address} has no SASL: set security.protocol to"
                f" {'SSL' if self._security.has_tls else 'PLAINTEXT'}"
            )
        request = SaslHandshakeRequest(mechanism=mechanism)
        response = await self._ask(request, SaslHandshakeResponse, timeout_ms)
        if response.error_code:
            offered = ", ".join(response.mechanisms) or "none"
            raise error_for(
                response.error_code,
                f"{self._address} refuses sasl.mechanism={mechanism}; it offers {offered}",
            )

    async def _ask(self, request: Message, answer: type[M], timeout_ms: int) -> M:
        api = api_of(type(request))
        version = self.version(api.key)
        frame = await self._exchange(api, version, request, timeout_ms)
        response = self._decode(api, version, frame)
        if not isinstance(response, answer):
            raise CorruptData(f"{self._address} answered {api.name} with {type(response).__name__}")
        return response

    # ---- requests ----

    async def _exchange(
        self, api: Api, version: int, request: Message, timeout_ms: int
    ) -> bytes | bytearray:
        """Write a request and wait for the frame of its answer."""
        return await self._answered(api, self._asked(api, version, request), timeout_ms)

    def _asked(self, api: Api, version: int, request: Message) -> asyncio.Future[bytes | bytearray]:
        """Write a request; return the future of the answer's frame."""
        correlation_id = self._write(api, version, request)
        answer: asyncio.Future[bytes | bytearray] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = answer
        return answer

    async def _answered(
        self, api: Api, answer: asyncio.Future[bytes | bytearray], timeout_ms: int
    ) -> bytes | bytearray:
        try:
            async with AnswerDeadline(timeout_ms):
                await self._wire.drained()
                return await answer
        except TimeoutError:
            # Brokers answer in order, so the answers behind this one would be late as well.
            timed_out = RequestTimedOut(
                f"{self._address} did not answer {api.name} within {timeout_ms} ms: "
                "it is overloaded, stopped, or not a Kafka broker"
            )
            self._end(ConnectionLost(f"the connection to {self._address} was closed: {timed_out}"))
            raise timed_out from None
        finally:
            answer.cancel()  # If the answer still arrives, `_on_frame` drops it.

    def _write(self, api: Api, version: int, request: Message) -> int:
        if self._lost is not None:
            raise ConnectionLost(str(self._lost))
        # An int32 on the wire: it starts again from 0 rather than become negative.
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        frame = encode_request(api, version, correlation_id, self._client_id, request)
        self.meter.sent.record(sum(map(len, frame)))
        self._wire.write(frame)
        return correlation_id

    def _decode(self, api: Api, version: int, frame: bytes | bytearray) -> Message:
        try:
            return decode_response(api, version, frame)[1]
        except CorruptData as corrupt:
            self._end(ConnectionLost(f"the connection to {self._address} was closed: {corrupt}"))
            raise

    def _on_frame(self, frame: bytes | bytearray) -> None:
        """Pass a frame to the call that waits for it, which decodes it."""
        self.meter.received.record(_SIZE.size + len(frame))
        correlation_id: int = _SIZE.unpack_from(frame)[0]
        answer = self._waiting.pop(correlation_id, None)
        if answer is None:
            self._end(
                ConnectionLost(
                    f"{self._address} answered request {correlation_id}, which was never sent: "
                    "it does not follow the Kafka protocol"
                )
            )
        elif not answer.done():  # Else the caller was cancelled.
            answer.set_result(frame)

    def _on_lost(self, reason: str) -> None:
        what = "the broker stopped, or refused a request; see its log"
        if not self._has_talked:
            protocol = self._security.protocol
            what += (
                f". It closed before it answered any request: does the listener need another"
                f" security.protocol than {protocol}?"
            )
        self._end(ConnectionLost(f"the connection to {self._address} broke ({reason}): {what}"))

    def _end(self, lost: ConnectionLost) -> None:
        """Close the connection, and fail the calls that wait for an answer."""
        # Only the first reason counts: closing the socket causes further errors.
        if self._lost is not None:
            return
        self._lost = lost
        self._wire.hang_up()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(str(lost)))


class _Wire(asyncio.BufferedProtocol):
    """Cuts the bytes from the socket into frames, without decoding them.

    Small frames share one buffer of `READ_BYTES`. A frame that is not complete gets a buffer of its
    exact size, and the socket is read into the rest of that: no byte of a large fetch is copied
    again.
    """

    def __init__(
        self, on_frame: Callable[[bytes | bytearray], None], on_lost: Callable[[str], None]
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._socket: asyncio.Transport | None = None
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._held_bytes = 0
        self._partial: bytearray | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the socket, which is open now."""
        # A cast: uvloop's transports have the methods of asyncio's, but not their classes.
        self._socket = cast("asyncio.Transport", transport)
        self._socket.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the callers that wait for the socket, which is closed."""
        self._closed.set()
        self._writable.set()
        self._on_lost(str(exc) if exc else "it was closed")

    def pause_writing(self) -> None:
        """Make writers wait: the write buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let writers continue: the write buffer has room."""
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the frame knows better
        """Return the buffer for the next bytes."""
        # Never empty, which asyncio would refuse: `_cut` leaves fewer bytes than a size has, and a
        # partial frame that is full is passed on at once.
        if self._partial is not None:
            return memoryview(self._partial)[self._held_bytes :]
        return self._scratch[self._held_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were read into `get_buffer`."""
        self._held_bytes += nbytes
        if self._partial is None:
            self._cut()
        elif self._held_bytes == len(self._partial):
            frame, self._partial, self._held_bytes = self._partial, None, 0
            self._on_frame(frame)

    def write(self, buffers: list[bytes | bytearray | memoryview]) -> None:
        """Write bytes to the socket, or to its write buffer."""
        if self._socket is not None:
            self._socket.writelines(buffers)

    async def drained(self) -> None:
        """Wait while the write buffer is full."""
        if not self._writable.is_set():
            await self._writable.wait()

    def hang_up(self) -> None:
        """Close the socket after all written bytes are sent."""
        # Only once: with TLS, after a second `close` asyncio's `abort` does nothing.
        if self._socket is not None and not self._socket.is_closing():
            self._socket.close()

    async def close(self) -> None:
        """Close the socket; wait for it up to `CLOSE_TIMEOUT_MS`, then abort it.

        If the task is cancelled, the socket is aborted at once.
        """
        if self._socket is None:
            return
        self.hang_up()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                await self._closed.wait()
        except TimeoutError:
            self._socket.abort()
            await self._closed.wait()
        except asyncio.CancelledError:
            self._socket.abort()
            raise

    def _cut(self) -> None:
        """Pass on the whole frames in the shared buffer, and keep the rest."""
        position, held = 0, self._held_bytes
        while held - position >= _SIZE.size:
            size: int = _SIZE.unpack_from(self._scratch, position)[0]
            # An answer has at least a correlation id, which is as long as a size.
            if not _SIZE.size <= size <= RESPONSE_BYTES_MAX:
                self._on_lost(f"it announced an answer of {size} bytes: {what_speaks(size)}")
                return
            start, end = position + _SIZE.size, position + _SIZE.size + size
            if end > held:
                self._partial = bytearray(size)
                self._held_bytes = held - start
                self._partial[: self._held_bytes] = self._scratch[start:held]
                return
            # A copy: the call decodes it later, when the buffer has other bytes.
            self._on_frame(bytes(self._scratch[start:end]))
            position = end
        self._held_bytes = held - position
        self._scratch[: self._held_bytes] = bytes(self._scratch[position:held])


M = TypeVar("M", bound=Message)
_UNSUPPORTED = struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)


def _said(reason: OSError) -> str:
    """Return the operating system's message, which asyncio replaces by its own."""
    if reason.errno is not None and reason.errno > 0:
        return os.strerror(reason.errno)
    return reason.strerror or str(reason)


def _no_tls(address: str, reason: ssl.SSLError) -> str:
    """Return why the TLS handshake failed, and what to check."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the broker at {address} is not trusted: {reason.verify_message};"
            " ssl.ca.location names the file of trusted authorities"
        )
    said = (reason.reason or str(reason)).replace("_", " ").lower()
    return (
        f"the TLS handshake with the broker at {address} failed ({said}): if its listener has no"
        " TLS, set security.protocol to PLAINTEXT or SASL_PLAINTEXT; if it requires a client"
        " certificate, set ssl.certificate.location"
    )


def _no_handshake(address: str) -> str:
    return (
        f"the broker at {address} closed the connection in the TLS handshake: if its listener has"
        " no TLS, set security.protocol to PLAINTEXT or SASL_PLAINTEXT"
    )


def _unreachable(address: str, reason: str) -> str:
    return (
        f"can't reach the broker at {address} ({reason}): check that it is running, that it "
        "listens on this address, and that no firewall is in between"
    )
