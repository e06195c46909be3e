"""ConnectionMeter: the requests and answers that a connection has carried, with their sizes."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from streamlog.metrics.sampled import Sampled


class ConnectionMeter:
    """The sizes of requests and answers in bytes; 0 where nothing is encoded."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.sent = Sampled()
        self.received = Sampled()


@runtime_checkable
class Metered(Protocol):
    """A transport that measures what it carries; the owner may replace the meter."""

    meter: ConnectionMeter
