"""ProducerMetrics: what a producer sends, what becomes of it, and what it waits for.

The sender counts batches by topic; the values of the whole producer are the sums over the topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamlog.client.metrics.client_metrics import NS_PER_MS, Reading, ReadingMaker
from streamlog.client.metrics.metric_names import PRODUCER, PRODUCER_TOPIC, TOPIC
from streamlog.client.metrics.network_metrics import NetworkMetrics
from streamlog.metrics.registry import OTHER, SERIES_MAX
from streamlog.metrics.sampled import SampleWindows, average


class TopicFlow:
    """What a producer sends to one topic."""

    __slots__ = ("bytes", "errors", "ratios", "records", "retries", "uncompressed")

    def __init__(self, windows: SampleWindows) -> None:
        self.bytes = windows.sampled()
        """Sizes of batches as sent, in bytes."""
        self.uncompressed = windows.sampled()
        """Sizes of their records before compression, in bytes."""
        self.ratios = windows.sampled()
        """Compressed by uncompressed sizes."""
        self.records = windows.sampled()
        """Numbers of records by batch."""
        self.retries = windows.sampled()
        """Numbers of records by batch that is sent again."""
        self.errors = windows.sampled()
        """Numbers of records by batch that is given up."""

    def on_sent(self, records: int, size_bytes: int, uncompressed_bytes: int) -> None:
        """Count a batch that is sent, for the first time or again."""
        self.records.record(records)
        self.bytes.record(size_bytes)
        self.uncompressed.record(uncompressed_bytes)
        if uncompressed_bytes:
            self.ratios.record(size_bytes / uncompressed_bytes)


class BufferState(NamedTuple):
    """The present state of a producer's buffer and requests."""

    total_bytes: int
    used_bytes: int
    waiting_callers: int
    requests_in_flight: int
    metadata_age_ms: int | None
    """Milliseconds since brokers and leaders were looked up; None if they never were."""


class ProducerMetrics:
    """The metrics of one producer."""

    def __init__(self, network: NetworkMetrics) -> None:
        self.network = network
        self.windows = windows = network.windows
        self._topics: dict[str, TopicFlow] = {}
        self.splits = windows.sampled()
        self.queue_times = windows.sampled()
        """Times of batches in the buffer before they are sent, in ms."""
        self.records_per_request = windows.sampled()
        self.throttle_times = windows.sampled()
        """Times by which brokers throttled requests, in ms."""
        self.buffer_waits = windows.sampled()
        """Times of callers that waited for the buffer, in ms."""
        self.metadata_waits = windows.sampled()
        """Times of callers that waited for a topic's metadata, in ms."""
        self.flushes = windows.sampled()
        """Times of flushes in ms."""
        self.txn_times = {
            step: windows.sampled() for step in ("init", "begin", "send-offsets", "commit", "abort")
        }
        """Times of the steps of transactions in ms."""

    def topic(self, name: str) -> TopicFlow:
        """Return what is sent to a topic."""
        found = self._topics.get(name)
        if found is None:
            if len(self._topics) >= SERIES_MAX and name != OTHER:
                return self.topic(OTHER)
            found = self._topics[name] = TopicFlow(self.windows)
        return found

    def on_answer(self, node_id: int, latency_ms: int, throttle_ms: int) -> None:
        """Count an answer to a Produce request."""
        self.network.node(node_id).latency.record(latency_ms)
        self.throttle_times.record(throttle_ms)

    def read(self, state: BufferState, now_ms: int) -> Iterator[Reading]:
        """Yield the readings of the producer."""
        self.windows.advance(now_ms)
        make = ReadingMaker(PRODUCER, self.windows, now_ms)
        flows = tuple(self._topics.values())
        yield from _outcomes(make, flows)
        yield from make.spread("request-latency", self.network.latencies)
        yield from make.spread("batch-size", [each.bytes for each in flows])
        yield make.value("compression-rate-avg", average(each.ratios for each in flows))
        yield from make.count("batch-split", [self.splits])
        yield from make.spread("record-queue-time", [self.queue_times])
        size = sum(each.uncompressed.recent_total for each in flows)
        records = sum(each.records.recent_total for each in flows)
        yield make.value("record-size-avg", size / records if records else float("nan"))
        yield make.value("records-per-request-avg", average([self.records_per_request]))
        yield from make.spread("produce-throttle-time", [self.throttle_times])
        yield from self._waits(make, state)
        topics = ReadingMaker(PRODUCER_TOPIC, self.windows, now_ms)
        for name, flow in self._topics.items():
            tag = (TOPIC, name)
            yield from _outcomes(topics, (flow,), tag)
            yield from topics.meter("byte", [flow.bytes], tag)
            yield topics.value("compression-rate", average([flow.ratios]), tag)
        yield from self.network.read(PRODUCER, now_ms)

    def _waits(self, make: ReadingMaker, state: BufferState) -> Iterator[Reading]:
        age_ms = state.metadata_age_ms
        yield make.value("metadata-age", float("nan") if age_ms is None else age_ms / 1000)
        yield make.value("requests-in-flight", state.requests_in_flight)
        yield make.value("buffer-total-bytes", state.total_bytes)
        # A record that is larger than the buffer is sent alone, beyond the buffer's size.
        yield make.value("buffer-available-bytes", max(state.total_bytes - state.used_bytes, 0))
        yield make.value("waiting-threads", state.waiting_callers)
        waited_s = self.buffer_waits.recent_total / 1000
        yield make.value("bufferpool-wait-ratio", make.rate(waited_s))
        for name, series in (
            ("bufferpool-wait", self.buffer_waits),
            ("metadata-wait", self.metadata_waits),
            ("flush", self.flushes),
            *((f"txn-{step}", times) for step, times in self.txn_times.items()),
        ):
            yield make.value(f"{name}-time-ns-total", series.total * NS_PER_MS)


def _outcomes(
    make: ReadingMaker, flows: tuple[TopicFlow, ...], *tags: tuple[str, str]
) -> Iterator[Reading]:
    yield from make.meter("record-send", [each.records for each in flows], *tags)
    yield from make.meter("record-retry", [each.retries for each in flows], *tags)
    yield from make.meter("record-error", [each.errors for each in flows], *tags)
