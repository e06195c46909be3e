"""SimulatedLog: what clients of a load are given: our own client, on a machine of the network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from simulation.node import PORT, SimulatedClock
from streamlog.client.admin import Admin
from streamlog.client.cluster import Cluster
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerSettings
from streamlog.client.producer import Producer, ProducerSettings
from streamlog.transport.client_connection import TcpTransport

if TYPE_CHECKING:
    from simulation.loop import SimulatedLoop
    from simulation.process import Machine

CONNECT_TIMEOUT_MS = 5_000
REQUEST_TIMEOUT_MS = 5_000


class SimulatedLog:
    """As `streamlog.Log`, with brokers by the names of their machines."""

    def __init__(
        self,
        loop: SimulatedLoop,
        machine: Machine,
        brokers: Sequence[str],
        racks: Sequence[str] = (),
    ) -> None:
        """`racks` are where readers stand, by turns."""
        self._clock = SimulatedClock(loop, machine)
        self._addresses = [(name, PORT) for name in brokers]
        self._name = machine.name
        self._racks = cycle(racks)

    def producer(self, **options: Any) -> Producer:
        """One more."""
        return Producer(self._cluster(), ProducerSettings(**options))

    def consumer(self, **options: Any) -> Consumer:
        """One more."""
        rack = next(self._racks, "")
        return Consumer(self._cluster(), ConsumerSettings(**{"client_rack": rack, **options}))

    def admin(self) -> Admin:
        """For topics."""
        return Admin(self._cluster())

    def _cluster(self) -> Cluster:
        connect = partial(TcpTransport.connect, client_id=self._name, timeout_ms=CONNECT_TIMEOUT_MS)
        return Cluster(
            lambda: self._addresses, connect, self._clock, request_timeout_ms=REQUEST_TIMEOUT_MS
        )
