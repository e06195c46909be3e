"""Connection: one client, from its socket to `Broker.begin` and back.

No task runs here: bytes arrive in callbacks, most answers leave in the same callback, and an answer
that waits is a future whose callback writes it. `request_flow` has the order of requests and
answers, and the fast way, which most requests take. Here are the beginning and the end of a
connection, what it may cost, and the full way: the codec reads the request, and the session, the
ACLs and the quota are checked; this way refuses and throttles.

The settings in `ConnectionConfig` bound what a connection can cost: one request being received, if
there is memory for it (`throttling`), `IN_FLIGHT_MAX` requests without a written response, and the
bytes of answers behind one that waits. While a bound is reached, nothing is read from the client.
`connections` bounds all connections together. Bytes that are not a request close their own
connection, with a line in the log, and disturb no other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias, cast

from streamlog import repeated
from streamlog.broker.apis.table import api_versions
from streamlog.broker.broker import Broker
from streamlog.broker.config.connections import AdvertisedEndpoint
from streamlog.broker.security.principals import ANONYMOUS, RequestContext
from streamlog.broker.server.connections import Connections
from streamlog.broker.server.request_flow import Pending, QueuedRequest, RequestFlow, Result
from streamlog.broker.server.sasl_handshake import NO_HEADER, SaslHandshake, bare
from streamlog.broker.server.tls import TlsConnection, writer_of
from streamlog.broker.subject_logs import QUOTA, log_response
from streamlog.errors import UnsupportedVersion
from streamlog.protocol.api_table import API_VERSIONS_KEY, APIS
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import error_codes
from streamlog.protocol.fetch_patterns import (
    FetchAlike,
    FetchPattern,
    FoundRecords,
    fetch_pattern,
    is_repeatable,
)
from streamlog.protocol.frame import Request, decode_request, encode_response
from streamlog.protocol.frame_reader import KEPT_BYTES_MAX, READ_BYTES
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest
from streamlog.protocol.messages.produce_and_fetch import (
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.produce_runs import ProducePattern, ProducePatterns, ProduceRun
from streamlog.protocol.schema import Message, Piece

if TYPE_CHECKING:
    from streamlog.broker.server.throttling import QuotaClient

SOFTWARE_CHARS_MAX = 255
"""The length of what a client may say of its library; the rest is cut off."""
LINGER_MS = 500
"""How long a refused client has to read the refusal, in ms."""


_log = repeated.logger(__name__)


class Connection(RequestFlow, asyncio.BufferedProtocol):
    """One client, and the full way of its requests."""

    def __init__(
        self,
        broker: Broker,
        *,
        listener: str,
        endpoint: tuple[str, int] | None,
        connections: Connections[Client],
        gate: SaslHandshake | None,
    ) -> None:
        super().__init__(broker, connections, gate, self)
        self.closed = asyncio.Event()
        self._patterns = ProducePatterns()
        self._listener = listener
        self._reached = None if endpoint is None else AdvertisedEndpoint(listener, *endpoint)
        self._peer = "?"
        self._peer_port = 0
        self._software = ("", "")
        self._principal = ANONYMOUS
        self._is_stranger = gate is not None
        """Whether the client has not authenticated yet, at a listener with SASL."""

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or close it if a limit is reached."""
        # A cast: uvloop's transports have the methods of asyncio's, but not their classes.
        self._transport = cast("asyncio.Transport", transport)
        self._writer = writer_of(
            self._transport, on_room=self._on_room, on_failure=self._on_failure
        )
        self._peer, self._peer_port = (
            transport.get_extra_info("peername") or (self._peer, self._peer_port)
        )[:2]
        self._principal = transport.get_extra_info("principal") or ANONYMOUS
        if self._gate is not None:
            receive_bytes_max = self._broker.directory.config.security.sasl_receive_bytes_max
            self._reader.size_bytes_max = receive_bytes_max
            self._gate.open(on_open=self._on_open, on_timeout=self._on_stranger)
        if self._reached is None:
            # An IPv6 socket shows an IPv4 client with a mapped address (RFC 4291).
            host, port = transport.get_extra_info("sockname")[:2]
            self._reached = AdvertisedEndpoint(self._listener, host.removeprefix("::ffff:"), port)
        if not self._connections.admit(self, self._peer, self._listener):
            self._ended = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - either way it is gone
        """Cancel the requests that wait, and release everything that the connection holds."""
        self._ended = True
        self._connections.leave(self)
        self._connections.memory.leave(self)
        self._connections.strangers_memory.leave(self)
        self._drop()
        if self._gate is not None:
            self._gate.close()
        if self._muted is not None:
            self._muted.cancel()
        self.closed.set()

    def eof_received(self) -> bool:
        """Begin no more requests; keep the transport open while the client has answers to read."""
        self.stop()
        return self._writer.blocked

    # ---- what it costs ----

    def progress(self) -> int | None:
        """See `ClientConnection`."""
        # A muted client may not send, and one that the broker owes a response need not.
        if self._muted is not None or (self._queue and not self._writer.blocked):
            return None
        return self._reads_done + self._writer.unblockings

    def end_idle(self, idle_ms: int) -> None:
        """See `ClientConnection`."""
        _log.info("closed the connection of %s: it was idle for %d ms", self._peer, idle_ms)
        self.abort()

    @property
    def is_half_open(self) -> bool:
        """See `ClientConnection`."""
        return self._is_stranger or not self._contexts

    def end_half_open(self) -> None:
        """See `ClientConnection`."""
        self._ended = True
        self.abort()

    def end_slow(self) -> None:
        """See `ClientConnection`."""
        _log.warning(
            "closed the connection of %s: it sends a large request too slowly while others"
            " wait for the memory that it holds (queued.max.request.bytes)",
            self._peer,
        )
        self.abort()

    def go_on(self, size_bytes: int) -> None:
        """See `Receiver`."""
        self._granted_bytes = size_bytes
        # Not now: another connection's work has released the memory, and is still running.
        asyncio.get_running_loop().call_soon(self._go_on)

    def give_back(self) -> int:
        """See `Receiver`."""
        self._reader.trim(kept_bytes=0)
        if not self._is_checked:
            self._granted_bytes = min(self._granted_bytes, self._reader.due_bytes)
        return self._granted_bytes

    def received_bytes(self) -> int | None:
        """See `Receiver`."""
        return self._received_bytes if self._reads else None

    def gets_memory(self) -> bool:
        """See `FullWay`."""
        reader = self._reader
        connections = self._connections
        memory = connections.strangers_memory if self._is_stranger else connections.memory
        reader.trim(kept_bytes=READ_BYTES if memory.is_short else KEPT_BYTES_MAX)
        due_bytes = reader.due_bytes
        if due_bytes == self._granted_bytes:
            return True
        # A request that does not fit into the buffer has to wait for memory. A buffer that would
        # only grow for speed stays small instead.
        cramped = reader.is_cramped
        if not memory.want(self, due_bytes, wait=cramped):
            if cramped:
                return False
            reader.stay_small()
            due_bytes = reader.due_bytes
        self._granted_bytes = due_bytes
        return True

    # ---- its end ----

    def stop(self) -> None:
        """Begin no more requests, and close once every available answer is written."""
        self._ended = True
        for slot in self._queue:
            if slot.answer is not None:
                slot.answer.cancel()
        # If it is blocked, `_on_room` closes after the last bytes.
        if not self._writer.blocked:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _on_stranger(self) -> None:
        _log.warning("closed the connection of %s: it did not authenticate in time", self._peer)
        self.abort()

    def turn_away(self, reason: str) -> None:
        """Close after a delay: some clients lose an error that arrives with the end of stream."""
        _log.warning("closed the connection of %s: %s", self._peer, reason)
        self._ended = True
        self._transport.pause_reading()
        asyncio.get_running_loop().call_later(LINGER_MS / 1000, self.stop)

    def hang_up(self, reason: str) -> None:
        """See `FullWay`."""
        _log.warning("closed the connection of %s: %s", self._peer, reason)
        self.stop()

    def _on_failure(self, error: OSError) -> None:
        """Close the connection: nothing more can be written."""
        if not isinstance(error, ConnectionError):
            _log.warning("closed the connection of %s: %s", self._peer, error)
        self.abort()

    # ---- the full way ----

    def count_fitting(self, run: ProduceRun, now_ms: int) -> int:
        """See `FullWay`."""
        client_id = run.requests[0].pattern.client_id
        others = (n for n, each in enumerate(run.requests) if each.pattern.client_id != client_id)
        run.cut(next(others, len(run.requests)))
        client = self._quota_client(client_id)
        return self._connections.quotas.count_fitting(client, _sizes(run), now_ms)

    def begin_in_full(self, frame: memoryview) -> tuple[QueuedRequest, Result | Pending | None]:
        """See `FullWay`."""
        answer: Result | Pending | None
        try:
            request = decode_request(frame) if self._gate is None else self._gate.decode(frame)
        except UnsupportedVersion as error:
            request, answer = _version_refusal(error)
        else:
            if request.api.key == API_VERSIONS_KEY:
                self._know_software(request.message)
            answer = None if self._gate is None else self._gate.answer(request)
            if answer is None:
                context = self._context(request.version, request.client_id)
                # Before the request is begun, which may change it.
                self._learn(frame, request, context)
                answer = self._broker.begin(request.message, context)
        has_quotas = self._connections.has_quotas
        throttle_ms = self._charge(request, None) if has_quotas else 0
        meter = self._metrics.meter(request.api.name, request.version)
        slot = QueuedRequest(request, meter, self._arrived_s, self._now_s)
        slot.throttle_ms = throttle_ms
        return slot, answer

    def _learn(self, frame: memoryview, request: Request, context: RequestContext) -> None:
        """Remember a request that may come again, unless its sender may not make it."""
        message = request.message
        if isinstance(message, FetchRequest):
            # Followers, and readers with sessions, send no request that another one repeats.
            if not is_repeatable(request.version, message):
                return
        elif not isinstance(message, ProduceRequest):
            return
        if not self._broker.allows_repeat(message, context):
            return
        if isinstance(message, ProduceRequest):
            self._patterns.learn(frame, request)
        else:
            known = self._fetch_pattern
            if known is None or known.match(frame) is None:
                self._fetch_pattern = fetch_pattern(frame, request)

    def _charge(self, request: Request, response: Message | None) -> int:
        """Count the records of a Produce request or, if given, of a Fetch response.

        Returns the throttle time in ms, for which nothing is read from the client; 0 within the
        quota.
        """
        user, client_id = self._quota_client(request.client_id)
        message = request.message if response is None else response
        quotas = self._connections.quotas
        return self._mute(quotas.charge(user, client_id, message, now_ms=self.quota_ms()))

    def charge_run(self, run: ProduceRun, now_ms: int) -> None:
        """See `FullWay`."""
        client = self._quota_client(run.requests[0].pattern.client_id)
        self._connections.quotas.charge_produced(client, _sizes(run), now_ms)

    def charge_found(self, request: FetchAlike, found: FoundRecords) -> int:
        """See `FullWay`."""
        client, now_ms = self._quota_client(request.pattern.client_id), self.quota_ms()
        quotas = self._connections.quotas
        return self._mute(quotas.charge_fetched(client, len(found.records), now_ms))

    def _mute(self, throttle_ms: int) -> int:
        """Read nothing from the client for this long, at least; return the time."""
        if throttle_ms:
            loop = asyncio.get_running_loop()
            until_s = loop.time() + throttle_ms / 1000
            if self._muted is not None:
                # Its Produce may have exceeded its quota by more than the answer to its Fetch.
                until_s = max(until_s, self._muted.when())
                self._muted.cancel()
            self._muted = loop.call_at(until_s, self._unmute)
            QUOTA.debug(
                "throttled %s at %s for %d ms: it exceeded a quota of its bytes",
                self._principal,
                self._peer,
                throttle_ms,
            )
        return throttle_ms

    def _quota_client(self, client_id: str | None) -> QuotaClient:
        return self._principal.removeprefix("User:"), client_id

    def quota_ms(self) -> int:
        """See `FullWay`."""
        return int(asyncio.get_running_loop().time() * 1000)

    def encoded_in_full(self, slot: QueuedRequest, response: Result | None) -> list[Piece]:
        """See `FullWay`."""
        if response is None:
            return []  # A Produce with acks=0, whose records a thread has validated.
        request = slot.request
        if isinstance(request, FetchAlike):
            request = request.full()
        if isinstance(request, ProduceRun) or isinstance(response, list | FoundRecords):
            raise TypeError(f"{type(response).__name__} is no response to {type(request).__name__}")
        failures = error_codes(response)
        if failures:
            self._metrics.fail(slot.meter.api, failures)
        throttle_ms = slot.throttle_ms
        if self._connections.has_quotas and not throttle_ms:
            throttle_ms = self._charge(request, response)
        if throttle_ms and isinstance(response, ProduceResponse | FetchResponse):
            response.throttle_time_ms = throttle_ms
        if request.version == NO_HEADER:
            return bare(response)
        return encode_response(request.api, request.version, request.correlation_id, response)

    def _unmute(self) -> None:
        self._muted = None
        self._go_on()

    def new_context(self, version: int, client_id: str | None) -> RequestContext:
        """See `FullWay`."""
        return RequestContext(
            version,
            client_id,
            f"/{self._peer}",
            principal=self._principal,
            listener=self._reached,
            connection=self._number,
            client_port=self._peer_port,
            software=self._software,
        )

    def _know_software(self, request: Message) -> None:
        """Remember the client's library, which its first request names (KIP-511)."""
        if isinstance(request, ApiVersionsRequest):
            self._software = (
                request.client_software_name[:SOFTWARE_CHARS_MAX],
                request.client_software_version[:SOFTWARE_CHARS_MAX],
            )
            # They have the software, which was not known yet.
            self._contexts.clear()

    def _on_open(self) -> None:
        self._principal = self._gate.principal if self._gate is not None else ANONYMOUS
        # They have the principal, which is another one now.
        self._contexts.clear()
        self._is_stranger = False
        self._connections.strangers_memory.leave(self)
        self._granted_bytes = 0
        self._reader.size_bytes_max = self._connections.limits.request_bytes_max

    def log_response(self, slot: QueuedRequest, handed_out_s: float) -> None:
        """See `FullWay`."""
        request, together = slot.request, ""
        about: ProducePattern | FetchPattern | Request
        if isinstance(request, ProduceRun):
            about = request.requests[0].pattern
            if len(request.requests) > 1:
                together = f" ({len(request.requests)} requests)"
        else:
            about = request.pattern if isinstance(request, FetchAlike) else request
        log_response(
            f"{about.api.name} v{about.version}{together}",
            (about.client_id, self._principal, self._peer),
            slot.times_s(handed_out_s),
        )


def _sizes(run: ProduceRun) -> list[int]:
    """Return the bytes of records in each request of a run."""
    return [len(each.records) for each in run.requests]


Client: TypeAlias = Connection | TlsConnection
"""A connection, or one whose TLS handshake is not finished."""


def _version_refusal(error: UnsupportedVersion) -> tuple[Request, Message]:
    """Return ApiVersions' refusal in version 0, which names the supported versions (KIP-511).

    Raises:
        UnsupportedVersion: the request is of another API, whose refusal closes the connection.
    """
    if error.api_key != API_VERSIONS_KEY:
        raise error
    refusal = api_versions(ErrorCode.UNSUPPORTED_VERSION)
    return Request(APIS[API_VERSIONS_KEY], 0, error.correlation_id, None, refusal), refusal
