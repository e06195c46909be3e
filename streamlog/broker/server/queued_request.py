"""Queued request: a request of a connection, its answer once there is one, and its times.

Rule of this module: compiled, because each request makes one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from streamlog.broker.request_metrics import ApiMeter
from streamlog.protocol.fetch_patterns import FetchAlike, FoundRecords
from streamlog.protocol.messages.produce_and_fetch import FetchResponse
from streamlog.protocol.produce_runs import ProduceRun
from streamlog.protocol.schema import Message, Piece

if TYPE_CHECKING:
    from streamlog.protocol.frame import Request

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
