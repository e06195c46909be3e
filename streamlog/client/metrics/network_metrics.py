"""NetworkMetrics: the connections of one client, and what they carry to and from each broker.

The transports count requests and bytes; the client counts connections, and measures the latency of
the requests that its metrics are about (Produce or Fetch).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamlog.client.metrics.client_metrics import Reading, ReadingMaker
from streamlog.client.metrics.metric_names import NODE, NODE_ID
from streamlog.metrics.sampled import Sampled, SampleWindows
from streamlog.transport.client_connection import Transport
from streamlog.transport.connection_meter import ConnectionMeter, Metered

NODES_MAX: Final = 1_000
"""Brokers that are measured each by itself; further ones are measured together."""
OTHER_NODES: Final = -2
"""The id of the brokers beyond `NODES_MAX`."""


class NodeMetrics(ConnectionMeter):
    """What a client exchanges with one broker."""

    __slots__ = ("latency",)

    def __init__(self, windows: SampleWindows) -> None:
        super().__init__()
        self.sent, self.received = windows.sampled(), windows.sampled()
        self.latency = windows.sampled()
        """Times from a request to its answer in ms."""


class NetworkMetrics:
    """The connections of one client. Its time windows are those of all metrics of the client."""

    def __init__(self, now_ms: int) -> None:
        """Begin to measure at this monotonic time in ms."""
        self.windows = SampleWindows(now_ms)
        self.opened = self.windows.sampled()
        self.closed = self.windows.sampled()
        self.refused = self.windows.sampled()
        """Connections on which one side refused the other's credentials or certificate."""
        self._nodes: dict[int, NodeMetrics] = {}

    def node(self, node_id: int) -> NodeMetrics:
        """Return what is exchanged with a broker."""
        found = self._nodes.get(node_id)
        if found is None:
            if len(self._nodes) >= NODES_MAX and node_id != OTHER_NODES:
                return self.node(OTHER_NODES)
            found = self._nodes[node_id] = NodeMetrics(self.windows)
        return found

    def adopt(self, node_id: int, transport: Transport) -> None:
        """Count what a connection has carried so far, and will carry, as exchanged with a broker.

        Until then, which broker answers at an address is unknown.
        """
        if isinstance(transport, Metered):
            node = self.node(node_id)
            node.sent.absorb(transport.meter.sent)
            node.received.absorb(transport.meter.received)
            transport.meter = node

    @property
    def latencies(self) -> list[Sampled]:
        """The latencies by broker."""
        return [each.latency for each in self._nodes.values()]

    def read(self, group: str, now_ms: int) -> Iterator[Reading]:
        """Yield the readings of a client whose metrics have this group."""
        make = ReadingMaker(group, self.windows, now_ms)
        nodes = tuple(self._nodes.items())
        yield make.value("connection-count", self.opened.count - self.closed.count)
        yield from make.count("connection-creation", [self.opened])
        yield from make.count("connection-close", [self.closed])
        yield from make.count("failed-authentication", [self.refused])
        yield from make.count(
            "network-io", [each for _, node in nodes for each in (node.sent, node.received)]
        )
        yield from _traffic(make, [node for _, node in nodes])
        make = ReadingMaker(NODE[group], self.windows, now_ms)
        for node_id, node in nodes:
            # Kafka's name of a broker in metrics.
            tag = (NODE_ID, f"node-{node_id}")
            yield from _traffic(make, [node], tag)
            yield from make.spread("request-latency", [node.latency], tag)


def _traffic(
    make: ReadingMaker, nodes: list[NodeMetrics], *tags: tuple[str, str]
) -> Iterator[Reading]:
    sent, received = [each.sent for each in nodes], [each.received for each in nodes]
    yield from make.count("request", sent, *tags)
    yield from make.spread("request-size", sent, *tags)
    yield from make.count("response", received, *tags)
    yield from make.meter("outgoing-byte", sent, *tags)
    yield from make.meter("incoming-byte", received, *tags)
