"""Connection: one client's requests, from the bytes of its socket to `Broker.begin` and back.

Requests of one connection are begun in the order in which they arrive, and answered in that order,
whichever of them waits. No task runs here: bytes arrive in callbacks, most answers leave in the
same callback, and an answer that waits is a future whose callback writes it.

A request takes one of two ways. On the full way the codec reads it, and the session, the ACLs and
the quota are checked; this way refuses and throttles. The fast way serves requests that repeat
earlier ones (`produce_runs`, `fetch_patterns`) and that those checks would let through; whatever
they would stop takes the full way.

The settings in `ConnectionConfig` bound what a connection can cost: one request being received, if
there is memory for it (`throttling`), `IN_FLIGHT_MAX` requests without a written response, and the
bytes of answers behind one that waits. While a bound is reached, nothing is read from the client.
`connections` bounds all connections together. Bytes that are not a request close their own
connection, with a line in the log, and disturb no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, TypeAlias, cast

from streamlog import repeated
from streamlog.broker.apis.table import api_versions
from streamlog.broker.broker import Broker
from streamlog.broker.config.connections import AdvertisedEndpoint
from streamlog.broker.future_responses import when_done
from streamlog.broker.security.principals import ANONYMOUS, RequestContext
from streamlog.broker.server.connections import Connections
from streamlog.broker.server.queued_request import Pending, QueuedRequest, Result
from streamlog.broker.server.sasl_handshake import NO_HEADER, SaslHandshake, bare
from streamlog.broker.server.socket_writer import memory_bytes
from streamlog.broker.server.tls import TlsConnection, writer_of
from streamlog.broker.subject_logs import QUOTA, REQUEST, log_response
from streamlog.errors import StreamlogError, UnsupportedVersion
from streamlog.protocol.api_table import API_VERSIONS_KEY, APIS
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import error_codes
from streamlog.protocol.fetch_patterns import (
    FetchAlike,
    FetchPattern,
    FoundRecords,
    fetch_pattern,
)
from streamlog.protocol.frame import (
    KEPT_BYTES_MAX,
    READ_BYTES,
    FrameReader,
    Request,
    decode_request,
    encode_response,
)
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

IN_FLIGHT_MAX = 32
"""Maximum requests of one connection without a written response; clients pipeline about 5."""
WRITE_BUFFER_BYTES = 256 * 1024
"""Responses go to the socket once they have this many bytes, or no request is left."""
PRODUCE, FETCH = "Produce", "Fetch"
SOFTWARE_CHARS_MAX = 255
"""The length of what a client may say of its library; the rest is cut off."""
LINGER_MS = 500
"""How long a refused client has to read the refusal, in ms."""


_log = repeated.logger(__name__)


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(
        self,
        broker: Broker,
        *,
        listener: str,
        endpoint: tuple[str, int] | None,
        connections: Connections[Client],
        gate: SaslHandshake | None,
    ) -> None:
        self.closed = asyncio.Event()
        self._broker = broker
        self._listener = listener
        self._reached = None if endpoint is None else AdvertisedEndpoint(listener, *endpoint)
        self._connections = connections
        self._number = connections.next_number()
        self._gate = gate
        self._reader = FrameReader(size_bytes_max=connections.limits.request_bytes_max)
        self._contexts: dict[int, RequestContext] = {}
        self._patterns = ProducePatterns()
        self._fetch_pattern: FetchPattern | None = None
        self._queue: deque[QueuedRequest] = deque()
        self._queued_bytes = 0
        """Memory of the answers behind one that waits; ranges of files take none."""
        self._held_bytes = 0
        """The queued bytes, and the bytes that wait for the client to read them."""
        self._is_checked = False
        """Whether a thread validates the records of a request: no request is begun meanwhile."""
        self._granted_bytes = 0
        """The memory for requests that this connection holds; see `throttling`."""
        self._meter = broker.request_metrics.meter
        self._turn = broker.turn
        self._clock = asyncio.get_running_loop().time
        self._arrived_s = self._now_s = 0.0
        """When the last bytes arrived, and the last reading of the clock, in seconds. A request
        begins when the one before it has been taken up, so one reading serves both."""
        self._reads_done = 0
        self._received_bytes = 0
        self._muted: asyncio.TimerHandle | None = None
        """Ends the throttling of a client that exceeded its quota."""
        self._out: list[Piece] = []
        self._out_bytes = 0
        self._reads = True
        self._logs_responses = False
        self._ended = False
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
        for slot in self._queue:
            if slot.answer is not None:
                slot.answer.cancel()
        self._queue.clear()
        self._queued_bytes = 0
        self._writer.close()
        if self._gate is not None:
            self._gate.close()
        if self._muted is not None:
            self._muted.cancel()
        self._count()
        self.closed.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the reader knows better
        """Return the buffer for the next bytes."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Begin the requests that the new bytes complete."""
        self._arrived_s = self._now_s = self._clock()
        self._reads_done += 1
        self._received_bytes += nbytes
        if self._reader.took(nbytes):
            self._work()

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

    def _has_memory(self) -> bool:
        """Return whether there is memory for the request being received; if not, wait for it."""
        if self._is_checked:
            return False  # The request in the thread still uses the memory that it arrived in.
        reader = self._reader
        if reader.due_bytes == self._granted_bytes == 0:
            return True
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

    def _count(self) -> None:
        """Report the memory that waits for this client to read."""
        held = self._queued_bytes
        if self._writer.blocked:
            held += self._writer.held_bytes
        if held != self._held_bytes:
            self._connections.held_bytes += held - self._held_bytes
            self._held_bytes = held

    # ---- requests ----

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

    def _go_on(self) -> None:
        """Begin requests that have waited in the receive buffer."""
        self._now_s = self._clock()
        self._work()

    def _work(self) -> None:
        """Begin the requests that have arrived, within the limits, and write the answers."""
        # Once per read and not per request: the look costs as much as a tenth of a small request's
        # measures. A changed level counts from the next read on.
        self._logs_responses = REQUEST.isEnabledFor(logging.DEBUG)
        with self._turn:
            try:
                self._take_up_frames()
            except StreamlogError as error:
                self._hang_up(str(error))
            self._end_work()

    def _end_work(self) -> None:
        """Write the answers that there are, and decide whether more is read."""
        self._write()
        self._count()
        self._read_on(self._has_room() and self._has_memory())

    def _take_up_frames(self) -> None:
        while self._has_room():
            if not self._take_up_run():
                frame = self._reader.next_frame()
                if frame is None:
                    return
                self._take_up(frame)
            # Most reads hold whole requests: a look at nothing would cost as much as the checks.
            if self._reader.is_empty:
                return

    def _take_up_run(self) -> bool:
        """Take up the next requests together, if they may be; return whether any was.

        A run has only requests that the full way (`_take_up`) would not refuse for their sender
        and not throttle, see `produce_runs`. The session, the ACLs and the quota are checked for
        each of them; the first request that one of them stops takes the full way by itself.
        """
        if self._gate is not None and not self._gate.is_served():
            return False  # Not authenticated, or no longer: the full way refuses the request.
        run = self._patterns.peek(self._reader)
        if run is None:
            return False
        pattern = run.requests[0].pattern
        context = self._context(pattern.version, pattern.client_id)
        has_quotas, now_ms = self._connections.has_quotas, 0
        # 1. The quota has room for 3 requests. 2. A run of 5 arrives. 3. The first 3 are appended
        # here and counted below. 4. The fourth takes the full way, where it is appended, exceeds
        # the quota and mutes the client. 5. The fifth stays in the receive buffer until then.
        if has_quotas:
            now_ms = self._quota_ms()
            run.cut(self._count_fitting(run, now_ms))
            if not run.requests:
                return False
        answer = self._broker.begin_run(run, context)
        if answer is None:
            # It is not learned again as long as it is refused: what is refused costs one decoding
            # and no search for patterns.
            self._patterns.forget(pattern)
            return False
        self._patterns.take(self._reader, run)
        if has_quotas:
            client = self._quota_client(pattern.client_id)
            self._connections.quotas.charge_produced(client, _sizes(run), now_ms)
        meter = self._meter(PRODUCE, pattern.version)
        self._take_answer(QueuedRequest(run, meter, self._arrived_s, self._now_s), answer)
        return True

    def _count_fitting(self, run: ProduceRun, now_ms: int) -> int:
        """Return how many requests of a run have one client id and stay within its quota."""
        client_id = run.requests[0].pattern.client_id
        others = (n for n, each in enumerate(run.requests) if each.pattern.client_id != client_id)
        run.cut(next(others, len(run.requests)))
        client = self._quota_client(client_id)
        return self._connections.quotas.count_fitting(client, _sizes(run), now_ms)

    def _has_room(self) -> bool:
        return (
            not self._ended
            and not self._is_checked
            and self._muted is None
            and not self._writer.blocked
            and not (self._gate is not None and self._gate.is_busy)
            and len(self._queue) < IN_FLIGHT_MAX
            # A connection that holds nothing may continue, whatever the others hold.
            and not (self._queued_bytes and self._is_full())
        )

    def _is_full(self) -> bool:
        """Return whether queued answers hold as much memory as they may."""
        bound = self._connections.limits.queued_response_bytes_per_connection
        self._count()
        return self._queued_bytes >= bound or self._connections.is_full

    def _repeats_fetch(self, frame: memoryview) -> bool:
        """Answer the frame as a repetition of the last Fetch; return whether that was possible."""
        pattern = self._fetch_pattern
        alike = None if pattern is None else pattern.match(frame)
        if pattern is None or alike is None:
            return False
        if self._gate is not None and not self._gate.is_served():
            return False
        context = self._context(pattern.version, pattern.client_id)
        answer = self._broker.begin_repeat(alike, context)
        if answer is None:
            self._fetch_pattern = None
            return False
        meter = self._meter(FETCH, pattern.version)
        self._take_answer(QueuedRequest(alike, meter, self._arrived_s, self._now_s), answer)
        return True

    def _take_up(self, frame: memoryview) -> None:
        if self._repeats_fetch(frame):
            return
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
        throttle_ms = self._charge(request, None)
        meter = self._meter(request.api.name, request.version)
        slot = QueuedRequest(request, meter, self._arrived_s, self._now_s)
        slot.throttle_ms = throttle_ms
        self._take_answer(slot, answer)

    def _learn(self, frame: memoryview, request: Request, context: RequestContext) -> None:
        """Remember a request that may come again, unless its sender may not make it."""
        message = request.message
        if not isinstance(message, ProduceRequest | FetchRequest):
            return
        if not self._broker.allows_repeat(message, context):
            return
        if isinstance(message, ProduceRequest):
            self._patterns.learn(frame, request)
        else:
            known = self._fetch_pattern
            if known is None or known.match(frame) is None:
                self._fetch_pattern = fetch_pattern(frame, request)

    def _take_answer(self, slot: QueuedRequest, answer: Result | Pending | None) -> None:
        """Write an answer now, or queue it behind those that wait."""
        self._now_s = slot.ready_s = slot.waits_s = self._clock()
        if answer is None:
            slot.record(slot.ready_s)
            return
        if isinstance(answer, asyncio.Future):
            self._hold_if_checked()
            slot.answer = answer
            self._queue.append(slot)
            when_done(answer, lambda _: self._on_answer(slot))
        elif self._queue:
            # Ready, but an earlier request still waits: responses leave in the order of requests.
            self._queue.append(slot)
            self._fill(slot, answer)
        else:
            self._hand_out(self._encoded(slot, answer))
            slot.record(slot.ready_s)
            if self._logs_responses:
                self._log_response(slot, slot.ready_s)

    def _hold_if_checked(self) -> None:
        checks = self._broker.checks
        if not self._is_checked and checks.is_busy(self._number):
            self._is_checked = True
            checks.when_free(self._number, self._on_checked)

    def _on_checked(self) -> None:
        self._is_checked = False
        if not self._ended:
            self._go_on()

    def _charge(self, request: Request, response: Message | None) -> int:
        """Count the records of a Produce request or, if given, of a Fetch response.

        Returns the throttle time in ms, for which nothing is read from the client; 0 within the
        quota.
        """
        if not self._connections.has_quotas:
            return 0
        user, client_id = self._quota_client(request.client_id)
        message = request.message if response is None else response
        quotas = self._connections.quotas
        return self._mute(quotas.charge(user, client_id, message, now_ms=self._quota_ms()))

    def _charge_found(self, request: FetchAlike, found: FoundRecords) -> int:
        """Count the records for a Fetch that repeats another; see `_charge`."""
        client, now_ms = self._quota_client(request.pattern.client_id), self._quota_ms()
        quotas = self._connections.quotas
        return self._mute(quotas.charge_fetched(client, len(found.records), now_ms))

    def _mute(self, throttle_ms: int) -> int:
        """Read nothing from the client for this long; return the time."""
        if throttle_ms:
            if self._muted is not None:
                self._muted.cancel()
            loop = asyncio.get_running_loop()
            self._muted = loop.call_later(throttle_ms / 1000, self._unmute)
            QUOTA.debug(
                "throttled %s at %s for %d ms: it exceeded a quota of its bytes",
                self._principal,
                self._peer,
                throttle_ms,
            )
        return throttle_ms

    def _quota_client(self, client_id: str | None) -> QuotaClient:
        return self._principal.removeprefix("User:"), client_id

    def _quota_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _encoded(self, slot: QueuedRequest, response: Result | None) -> list[Piece]:
        request = slot.request
        if response is None:
            return []  # A Produce with acks=0, whose records a thread has validated.
        if isinstance(response, list):
            if isinstance(request, ProduceRun) and request.error_codes:
                slot.meter.fail(request.error_codes)
            return response
        if isinstance(request, FetchAlike):
            if isinstance(response, FoundRecords):
                throttle_ms = (
                    self._charge_found(request, response) if self._connections.has_quotas else 0
                )
                return request.written(response, throttle_ms)
            request = request.full()
        if isinstance(request, ProduceRun) or isinstance(response, FoundRecords):
            raise TypeError(f"{type(response).__name__} is no response to {type(request).__name__}")
        slot.meter.fail(code for code in error_codes(response) if code)
        throttle_ms = slot.throttle_ms or self._charge(request, response)
        if throttle_ms and isinstance(response, ProduceResponse | FetchResponse):
            response.throttle_time_ms = throttle_ms
        if request.version == NO_HEADER:
            return bare(response)
        return encode_response(request.api, request.version, request.correlation_id, response)

    def _unmute(self) -> None:
        self._muted = None
        self._go_on()

    def _context(self, version: int, client_id: str | None) -> RequestContext:
        """Return the context for a version, cached until the client id changes."""
        known = self._contexts.get(version)
        if known is None or known.client_id != client_id:
            known = self._contexts[version] = RequestContext(
                version,
                client_id,
                f"/{self._peer}",
                principal=self._principal,
                listener=self._reached,
                connection=self._number,
                client_port=self._peer_port,
                software=self._software,
            )
        return known

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

    def _on_stranger(self) -> None:
        _log.warning("closed the connection of %s: it did not authenticate in time", self._peer)
        self.abort()

    def _turn_away(self, reason: str) -> None:
        """Close after a delay: some clients lose an error that arrives with the end of stream."""
        _log.warning("closed the connection of %s: %s", self._peer, reason)
        self._write()
        self._ended = True
        self._transport.pause_reading()
        asyncio.get_running_loop().call_later(LINGER_MS / 1000, self.stop)

    def _hang_up(self, reason: str) -> None:
        _log.warning("closed the connection of %s: %s", self._peer, reason)
        self._write()
        self.stop()

    # ---- answers ----

    def _on_answer(self, slot: QueuedRequest) -> None:
        """Write the answer of a request that waited, or close if it failed."""
        answer, slot.answer = slot.answer, None
        if answer is None or answer.cancelled():
            return
        error = answer.exception()
        if error is not None and not isinstance(error, StreamlogError):
            raise error
        if self._ended:
            return
        if error is not None:
            self._hang_up(str(error))
        else:
            self._now_s = slot.ready_s = self._clock()
            if self._queue[0] is slot:
                # The usual answer: nothing is before it, so its memory need not be counted.
                self._queue.popleft()
                self._finish(slot, self._encoded(slot, answer.result()))
            else:
                self._fill(slot, answer.result())
            self._drain()
            if self._gate is not None and self._gate.is_over:
                self._turn_away(self._gate.reason)
            elif self._reader.is_empty:
                self._end_work()  # The usual client sends no request while one waits.
            else:
                self._work()

    def _fill(self, slot: QueuedRequest, response: Result | None) -> None:
        slot.pieces = self._encoded(slot, response)
        self._queued_bytes += memory_bytes(slot.pieces)

    def _drain(self) -> None:
        """Hand out the answers at the front of the queue, up to the first that still waits."""
        while self._queue and self._queue[0].pieces is not None:
            slot = self._queue.popleft()
            pieces = slot.pieces or []
            self._queued_bytes -= memory_bytes(pieces)
            self._finish(slot, pieces)

    def _finish(self, slot: QueuedRequest, pieces: list[Piece]) -> None:
        """Hand out an answer that was waited for, and record its times."""
        self._hand_out(pieces)
        handed_out_s = self._clock()
        slot.record(handed_out_s)
        if self._logs_responses:
            self._log_response(slot, handed_out_s)

    def _log_response(self, slot: QueuedRequest, handed_out_s: float) -> None:
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

    def _hand_out(self, pieces: list[Piece]) -> None:
        """Collect pieces for the socket: the requests of one read are answered by one write."""
        self._out += pieces
        self._out_bytes += sum(map(len, pieces))
        if self._out_bytes > WRITE_BUFFER_BYTES:
            self._write()

    def _write(self) -> None:
        """Write the collected pieces to the socket."""
        if self._out:
            out, self._out, self._out_bytes = self._out, [], 0
            self._writer.write(out)

    def _on_room(self) -> None:
        """Continue after a blocked socket: the client has read everything."""
        self._count()
        if self._ended:
            self._transport.close()
        else:
            self._go_on()

    def _on_failure(self, error: OSError) -> None:
        """Close the connection: nothing more can be written."""
        if not isinstance(error, ConnectionError):
            _log.warning("closed the connection of %s: %s", self._peer, error)
        self.abort()

    def _read_on(self, wanted: bool) -> None:  # noqa: FBT001 - a state, not a switch
        if self._ended or wanted == self._reads:
            return
        self._reads = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


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
