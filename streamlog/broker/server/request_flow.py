"""RequestFlow: what every request of a connection passes, from its bytes to those of its answer.

Requests are taken up in the order in which they arrive, and answered in that order, whichever of
them waits. A request takes one of two ways:

- The fast way serves requests that repeat earlier ones (`produce_runs`, `fetch_patterns`) and that
  the session, the ACLs and the quotas let through. It is here as a whole.
- The full way is the connection's: the codec reads the request, and whatever is refused or
  throttled is so there. The fast way leaves to it what it does not serve.

Rule of this module: compiled, because each request passes all of it. So nothing is here that a
request without a wait and without an error does not need.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from streamlog.broker.future_responses import PromptFuture
from streamlog.broker.server.socket_writer import memory_bytes
from streamlog.broker.subject_logs import REQUEST
from streamlog.errors import StreamlogError
from streamlog.metrics.instruments import ApiMeter
from streamlog.protocol.fetch_patterns import FetchAlike, FetchPattern, FoundRecords
from streamlog.protocol.frame_reader import KEPT_BYTES_MAX, READ_BYTES, FrameReader
from streamlog.protocol.messages.produce_and_fetch import FetchResponse
from streamlog.protocol.produce_runs import ProducePatterns, ProduceRun
from streamlog.protocol.schema import Message, Piece

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker
    from streamlog.broker.request_metrics import RequestMetrics
    from streamlog.broker.security.principals import RequestContext
    from streamlog.broker.server.connections import Connections
    from streamlog.broker.server.sasl_handshake import SaslHandshake
    from streamlog.broker.server.socket_writer import SocketWriter
    from streamlog.broker.server.tls import TlsWriter
    from streamlog.protocol.frame import Request

IN_FLIGHT_MAX = 32
"""Maximum requests of one connection without a written response; clients pipeline about 5."""
WRITE_BUFFER_BYTES = 256 * 1024
"""Responses go to the socket once they have this many bytes, or no request is left."""
PRODUCE, FETCH = "Produce", "Fetch"

# C integers when compiled.
_IN_FLIGHT_MAX = IN_FLIGHT_MAX
_WRITE_BUFFER_BYTES = WRITE_BUFFER_BYTES
_KEPT_DUE_MAX = KEPT_BYTES_MAX - READ_BYTES

Result: TypeAlias = Message | list[Piece] | FoundRecords
"""An answer: a response, responses to a run as bytes, or what a repeated Fetch has found."""
Pending: TypeAlias = (
    asyncio.Future[Message]
    | asyncio.Future[Message | None]
    | asyncio.Future[list[Piece]]
    | asyncio.Future[FoundRecords | FetchResponse]
)
"""Where an answer will be."""


class QueuedRequest:
    """A request that a connection has begun."""

    __slots__ = (
        "answer",
        "arrived_s",
        "begun_s",
        "meter",
        "pieces",
        "ready_s",
        "request",
        "throttle_ms",
        "waits_s",
    )

    def __init__(
        self,
        request: Request | ProduceRun | FetchAlike,
        meter: ApiMeter,
        arrived_s: float,
        begun_s: float,
    ) -> None:
        """`arrived_s` and `begun_s`: when its last bytes arrived and it was begun, by one clock."""
        self.request = request
        self.meter = meter
        self.arrived_s = arrived_s
        self.begun_s = begun_s
        self.waits_s = 0.0
        """When the call that began it returned."""
        self.ready_s = 0.0
        """When its answer was there."""
        self.throttle_ms = 0
        """The throttle time that the records of a Produce request have caused."""
        self.answer: Pending | None = None
        """Where its answer will be."""
        self.pieces: list[Piece] | None = None
        """Its encoded answer."""

    def record(self, handed_out_s: float) -> None:
        """Record its times; its response was handed out at `handed_out_s`."""
        request = self.request
        # The requests of a run arrived together and were answered together, so its times are those
        # of each of them; the sums grow by the number, as if they had come one by one.
        count = len(request.requests) if isinstance(request, ProduceRun) else 1
        meter = self.meter
        meter.requests.value += count
        meter.queue.record_many(self.begun_s - self.arrived_s, count)
        meter.local.record_many(self.waits_s - self.begun_s, count)
        meter.remote.record_many(self.ready_s - self.waits_s, count)
        meter.response_queue.record_many(handed_out_s - self.ready_s, count)
        meter.total.record_many(handed_out_s - self.arrived_s, count)

    def times_s(self, handed_out_s: float) -> tuple[float, float, float, float]:
        """Return its times in the queue, local, remote, and in the response queue, in seconds."""
        return (
            self.begun_s - self.arrived_s,
            self.waits_s - self.begun_s,
            self.ready_s - self.waits_s,
            handed_out_s - self.ready_s,
        )


class FullWay(Protocol):
    """What a request needs that the fast way does not serve, or that takes long."""

    def begin_in_full(self, frame: memoryview) -> tuple[QueuedRequest, Result | Pending | None]:
        """Begin a request; return it with its answer, or where that will be."""
        ...

    def encoded_in_full(self, slot: QueuedRequest, response: Result | None) -> list[Piece]:
        """Return the bytes of an answer that the codec has to write."""
        ...

    def new_context(self, version: int, client_id: str | None) -> RequestContext:
        """Return what handlers learn of the client."""
        ...

    def gets_memory(self) -> bool:
        """Return whether there is memory for the request being received; if not, wait for it."""
        ...

    def quota_ms(self) -> int:
        """Return the time by which quotas count."""
        ...

    def count_fitting(self, run: ProduceRun, now_ms: int) -> int:
        """Return how many requests of a run have one client id and stay within its quota."""
        ...

    def charge_run(self, run: ProduceRun, now_ms: int) -> None:
        """Count the records of a run."""
        ...

    def charge_found(self, request: FetchAlike, found: FoundRecords) -> int:
        """Count the records for a Fetch that repeats another; return its throttle time in ms."""
        ...

    def log_response(self, slot: QueuedRequest, handed_out_s: float) -> None:
        """Log an answer with its times."""
        ...

    def hang_up(self, reason: str) -> None:
        """Close the connection of a client that has broken the protocol."""
        ...

    def turn_away(self, reason: str) -> None:
        """Close the connection of a client that could not authenticate."""
        ...


class RequestFlow:
    """The requests and answers of one client.

    The subclass, `Connection`, sets `_transport` and `_writer` before bytes arrive, and is the full
    way.
    """

    def __init__(
        self,
        broker: Broker,
        connections: Connections[Any],
        gate: SaslHandshake | None,
        full_way: FullWay,
    ) -> None:
        self._full_way = full_way
        self._broker = broker
        self._connections = connections
        self._gate = gate
        self._number = connections.next_number()
        self._reader = FrameReader(size_bytes_max=connections.limits.request_bytes_max)
        self._writer: SocketWriter | TlsWriter
        self._transport: asyncio.Transport
        self._contexts: dict[int, RequestContext] = {}
        self._patterns: ProducePatterns
        self._fetch_pattern: FetchPattern | None = None
        self._queue: deque[QueuedRequest] = deque()
        self._queued_bytes = 0
        """Memory of the answers behind one that waits; ranges of files take none."""
        self._held_bytes = 0
        """The queued bytes, and the bytes that wait for the client to read them."""
        self._is_checked = False
        """Whether a thread validates the records of a request: no request is begun meanwhile."""
        self._checks = broker.checks
        self._granted_bytes = 0
        """The memory for requests that this connection holds; see `throttling`."""
        self._metrics: RequestMetrics = broker.request_metrics
        self._turn = broker.turn
        self._clock = asyncio.get_running_loop().time
        self._arrived_s = self._now_s = 0.0
        """When the last bytes arrived, and the last reading of the clock, in seconds. A request
        begins when the one before it has been taken up, so one reading serves both."""
        self._reads_done = 0
        self._looked_at = -1
        """After how many reads it was last asked whether there is memory for the next one."""
        self._received_bytes = 0
        self._muted: asyncio.TimerHandle | None = None
        """Ends the throttling of a client that exceeded its quota."""
        self._out: list[Piece] = []
        self._out_bytes = 0
        self._reads = True
        self._logs_responses = False
        self._ended = False

    # ---- bytes arrive ----

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
                self._write()
                self._full_way.hang_up(str(error))
            self._end_work()

    def _end_work(self) -> None:
        """Write the answers that there are, and decide whether more is read."""
        self._write()
        self._count()
        self._read_on(self._has_room() and self._has_memory())

    def _read_on(self, wanted: bool) -> None:  # noqa: FBT001 - a state, not a switch
        if self._ended or wanted == self._reads:
            return
        self._reads = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # ---- requests ----

    def _take_up_frames(self) -> None:
        while self._has_room():
            if not self._take_up_run():
                frame = self._reader.next_frame()
                if frame is None:
                    return
                if not self._repeats_fetch(frame):
                    slot, answer = self._full_way.begin_in_full(frame)
                    self._take_answer(slot, answer)
            # Most reads hold whole requests: a look at nothing would cost as much as the checks.
            if self._reader.is_empty:
                return

    def _has_room(self) -> bool:
        return (
            not self._ended
            and not self._is_checked
            and self._muted is None
            and not self._writer.blocked
            and not (self._gate is not None and self._gate.is_busy)
            and len(self._queue) < _IN_FLIGHT_MAX
            # A connection that holds nothing may continue, whatever the others hold.
            and not (self._queued_bytes > 0 and self._is_full())
        )

    def _is_full(self) -> bool:
        """Return whether queued answers hold as much memory as they may."""
        bound = self._connections.limits.queued_response_bytes_per_connection
        self._count()
        return self._queued_bytes >= bound or self._connections.is_full

    def _has_memory(self) -> bool:
        """Return whether there is memory for the request being received."""
        if self._is_checked:
            return False  # The request in the thread still uses the memory that it arrived in.
        due_bytes = self._reader.due_bytes
        # Once a read: what was granted then is still there when the answers have left. A buffer
        # that is too large to be kept is looked at each time, so that it is freed once it is empty.
        if due_bytes == self._granted_bytes and (
            due_bytes == 0 or (self._looked_at == self._reads_done and due_bytes <= _KEPT_DUE_MAX)
        ):
            return True
        self._looked_at = self._reads_done
        return self._full_way.gets_memory()

    def _take_up_run(self) -> bool:
        """Take up the next requests together, if they may be; return whether any was.

        A run has only requests that the full way would not refuse for their sender and not
        throttle, see `produce_runs`. The session, the ACLs and the quota are checked for each of
        them; the first request that one of them stops takes the full way by itself.
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
            now_ms = self._full_way.quota_ms()
            run.cut(self._full_way.count_fitting(run, now_ms))
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
            self._full_way.charge_run(run, now_ms)
        meter = self._metrics.meter(PRODUCE, pattern.version)
        self._take_answer(QueuedRequest(run, meter, self._arrived_s, self._now_s), answer)
        return True

    def _repeats_fetch(self, frame: memoryview) -> bool:
        """Answer the frame as a repetition of the last Fetch; return whether that was possible."""
        pattern = self._fetch_pattern
        if pattern is None:
            return False
        alike = pattern.match(frame)
        if alike is None or (self._gate is not None and not self._gate.is_served()):
            return False
        context = self._context(pattern.version, pattern.client_id)
        answer = self._broker.begin_repeat(alike, context)
        if answer is None:
            self._fetch_pattern = None
            return False
        meter = self._metrics.meter(FETCH, pattern.version)
        self._take_answer(QueuedRequest(alike, meter, self._arrived_s, self._now_s), answer)
        return True

    def _context(self, version: int, client_id: str | None) -> RequestContext:
        """Return the context for a version, cached until the client id changes."""
        known = self._contexts.get(version)
        if known is None or known.client_id != client_id:
            known = self._contexts[version] = self._full_way.new_context(version, client_id)
        return known

    # ---- answers ----

    def _take_answer(self, slot: QueuedRequest, answer: Result | Pending | None) -> None:
        """Write an answer now, or queue it behind those that wait."""
        self._now_s = slot.ready_s = slot.waits_s = self._clock()
        if answer is None:
            slot.record(slot.ready_s)
        elif isinstance(answer, asyncio.Future):
            self._hold_if_checked()
            slot.answer = answer
            self._queue.append(slot)
            then = partial(self._on_answer, slot)
            if isinstance(answer, PromptFuture):
                answer.when_done(then)
            else:
                answer.add_done_callback(then)
        elif self._queue:
            # Ready, but an earlier request still waits: responses leave in the order of requests.
            self._queue.append(slot)
            self._fill(slot, answer)
        else:
            self._hand_out(self._encoded(slot, answer))
            slot.record(slot.ready_s)
            if self._logs_responses:
                self._full_way.log_response(slot, slot.ready_s)

    def _hold_if_checked(self) -> None:
        checks = self._checks
        if not self._is_checked and self._number in checks.waiting:
            self._is_checked = True
            checks.when_free(self._number, self._on_checked)

    def _on_checked(self) -> None:
        self._is_checked = False
        if not self._ended:
            self._go_on()

    def _on_answer(self, slot: QueuedRequest, answer: Pending) -> None:
        """Write the answer of a request that waited, or close if it failed."""
        slot.answer = None
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self._fail(error)
        if error is not None or self._ended:
            return
        self._now_s = slot.ready_s = self._clock()
        if self._queue[0] is slot:
            # The usual answer: nothing is before it, so its memory need not be counted.
            self._queue.popleft()
            self._finish(slot, self._encoded(slot, answer.result()))
        else:
            self._fill(slot, answer.result())
        self._drain()
        if self._gate is not None and self._gate.is_over:
            self._write()
            self._full_way.turn_away(self._gate.reason)
        elif self._reader.is_empty:
            self._end_work()  # The usual client sends no request while one waits.
        else:
            self._work()

    def _fail(self, error: BaseException) -> None:
        """Close the connection: the answers behind one that never comes would wait for ever."""
        is_mistake = not isinstance(error, StreamlogError)
        if not self._ended:
            self._write()
            self._full_way.hang_up(repr(error) if is_mistake else str(error))
        if is_mistake:
            raise error  # The loop logs it, with where it comes from.

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
            self._full_way.log_response(slot, handed_out_s)

    def _encoded(self, slot: QueuedRequest, response: Result | None) -> list[Piece]:
        """Return the bytes of an answer, after the quota has counted them."""
        request = slot.request
        if isinstance(response, list):
            if isinstance(request, ProduceRun) and request.error_codes:
                self._metrics.fail(slot.meter.api, request.error_codes)
            return response
        if isinstance(response, FoundRecords) and isinstance(request, FetchAlike):
            throttle_ms = 0
            if self._connections.has_quotas:
                throttle_ms = self._full_way.charge_found(request, response)
            pattern = request.pattern
            return pattern.answer(request.correlation_id, response, throttle_ms)
        return self._full_way.encoded_in_full(slot, response)

    def _hand_out(self, pieces: list[Piece]) -> None:
        """Collect pieces for the socket: the requests of one read are answered by one write."""
        self._out += pieces
        for piece in pieces:
            self._out_bytes += len(piece)
        if self._out_bytes > _WRITE_BUFFER_BYTES:
            self._write()

    def _write(self) -> None:
        """Write the collected pieces to the socket."""
        if self._out:
            out, self._out, self._out_bytes = self._out, [], 0
            self._writer.write(out)

    def _count(self) -> None:
        """Report the memory that waits for this client to read."""
        held_bytes = self._queued_bytes
        if self._writer.blocked:
            held_bytes += self._writer.held_bytes
        if held_bytes != self._held_bytes:
            self._connections.held_bytes += held_bytes - self._held_bytes
            self._held_bytes = held_bytes

    def _on_room(self) -> None:
        """Continue after a blocked socket: the client has read everything."""
        self._count()
        if self._ended:
            self._transport.close()
        else:
            self._go_on()

    def _drop(self) -> None:
        """Cancel the requests that wait, and drop the answers of a client that is gone."""
        for slot in self._queue:
            if slot.answer is not None:
                slot.answer.cancel()
        self._queue.clear()
        self._queued_bytes = 0
        self._writer.close()
        self._count()
