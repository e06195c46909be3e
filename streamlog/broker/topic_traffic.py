"""Topic traffic: messages and bytes in and out, by topic (Kafka's `BrokerTopicMetrics`).

The hot paths add to numbers of `TopicTraffic`, which all partitions of a topic share; metrics are
computed at each look. The series without a topic is the sum of all topics since the start, deleted
ones included. Beyond `TOPICS_MAX` topics, the ones with the least bytes share the topic `other`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamlog.metrics.registry import OTHER, Kind, Metric, Point, Registry

PREFIX = "kafka_server_brokertopicmetrics_"
TOPICS_MAX = 1_000
FIGURES = {
    "messages_in": ("messagesin", "Records that clients have appended."),
    "bytes_in": ("bytesin", "Bytes of batches that clients have appended."),
    "bytes_out": ("bytesout", "Bytes of batches that consumers have read."),
    "replication_bytes_in": ("replicationbytesin", "Bytes of batches copied from leaders."),
    "replication_bytes_out": ("replicationbytesout", "Bytes of batches that followers have read."),
}
"""Attribute to the middle of the metric's name, and its text."""


class TopicTraffic:
    """The traffic of one topic on this broker, since the start."""

    __slots__ = tuple(FIGURES)

    messages_in: int
    bytes_in: int
    bytes_out: int
    replication_bytes_in: int
    replication_bytes_out: int

    def __init__(self) -> None:
        for name in FIGURES:
            setattr(self, name, 0)

    def include(self, other: TopicTraffic) -> None:
        """Add the traffic of another topic."""
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class TrafficMetrics:
    """The traffic of all topics of one broker."""

    def __init__(self, registry: Registry) -> None:
        self._topics: dict[str, TopicTraffic] = {}
        self._deleted = TopicTraffic()
        registry.collect(self._describe)

    def topic(self, name: str) -> TopicTraffic:
        """Return the traffic of a topic."""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = TopicTraffic()
        return found

    def forget(self, name: str) -> None:
        """Show no series of a deleted topic any more."""
        # The sum over all topics is a counter: without the deleted ones it would fall, and
        # Prometheus would take that for a restart.
        gone = self._topics.pop(name, None)
        if gone is not None:
            self._deleted.include(gone)

    def _describe(self) -> Iterator[Metric]:
        topics = sorted(
            self._topics.items(),
            key=lambda each: each[1].bytes_in + each[1].bytes_out,
            reverse=True,
        )
        total = _sum([self._deleted, *(traffic for _, traffic in topics)])
        # By bytes, so that the topics that matter have series of their own. A topic that leaves the
        # first ones takes its series with it; the total counts it all along.
        shown = [("", total), *topics[:TOPICS_MAX]]
        if len(topics) > TOPICS_MAX:
            shown.append((OTHER, _sum(traffic for _, traffic in topics[TOPICS_MAX:])))
        for attribute, (name, text) in FIGURES.items():
            points: list[Point] = [
                ((topic,), getattr(traffic, attribute)) for topic, traffic in shown
            ]
            yield Metric(f"{PREFIX}{name}_total", text, Kind.COUNTER, ("topic",), points)


def _sum(parts: Iterable[TopicTraffic]) -> TopicTraffic:
    total = TopicTraffic()
    for traffic in parts:
        total.include(traffic)
    return total
