"""ConsumerMetrics: what a consumer reads, how far it lags, and what its group costs.

`ConsumerMetrics` counts polls and fetches, `GroupMetrics` the requests to the coordinator. The lag
of a partition is noted when a poll returns its records, and looked up at each reading, so a
consumer that does not poll shows how far it is behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from streamlog.client.metrics.client_metrics import NS_PER_MS, Reading, ReadingMaker
from streamlog.client.metrics.metric_names import (
    CONSUMER,
    COORDINATOR,
    FETCH,
    PARTITION,
    TOPIC,
)
from streamlog.client.metrics.network_metrics import NetworkMetrics
from streamlog.metrics.registry import OTHER, SERIES_MAX
from streamlog.metrics.sampled import Sampled, SampleWindows, average, largest
from streamlog.record import TopicPartition

S_PER_HOUR: Final = 3_600
NEVER: Final = -1
"""The seconds since an event that has not happened, as in Kafka."""


class PartitionFigures(NamedTuple):
    """The present state of an assigned partition."""

    partition: TopicPartition
    lag: int | None
    """Records from the position to the end; None if it is unknown."""
    lead: int | None
    """Records from the start to the position; None if it is unknown."""
    replica: int
    """The replica that is read; -1 for the leader."""


class ReadTopic:
    """What a consumer reads of one topic."""

    __slots__ = ("bytes", "records")

    def __init__(self, windows: SampleWindows) -> None:
        self.bytes = windows.sampled()
        """Bytes of records by answer and partition."""
        self.records = windows.sampled()
        """Records by poll and partition."""


class ReadPartition:
    """The lag and the lead of a partition when polls returned its records."""

    __slots__ = ("lag", "lead_below")

    def __init__(self, windows: SampleWindows) -> None:
        self.lag = windows.sampled()
        self.lead_below = windows.sampled()
        """Negative leads, whose maximum is the smallest lead."""


class ConsumerMetrics:
    """The metrics of one consumer."""

    def __init__(self, network: NetworkMetrics) -> None:
        self.network = network
        self.windows = windows = network.windows
        self.group = GroupMetrics(windows)
        self.fetch_sizes = windows.sampled()
        """Bytes of records by answer that had some."""
        self.fetch_latency = windows.sampled()
        """Times from a fetch to its answer in ms."""
        self.throttle_times = windows.sampled()
        """Times by which brokers throttled fetches, in ms."""
        self.between_polls = windows.sampled()
        """Times from one poll to the next in ms."""
        self.idle_shares = windows.sampled()
        """Shares of time within poll."""
        self.commits_awaited = windows.sampled()
        """Times of commits that were awaited, in ms."""
        self.committed_looked_up = windows.sampled()
        """Times of look-ups of committed offsets, in ms."""
        self._topics: dict[str, ReadTopic] = {}
        self._lags: dict[TopicPartition, ReadPartition] = {}
        self._polled_ms: int | None = None
        self._since_poll_ms = 0

    def topic(self, name: str) -> ReadTopic:
        """Return what is read of a topic."""
        found = self._topics.get(name)
        if found is None:
            if len(self._topics) >= SERIES_MAX and name != OTHER:
                return self.topic(OTHER)
            found = self._topics[name] = ReadTopic(self.windows)
        return found

    def on_poll(self, now_ms: int) -> None:
        """Note the begin of a poll."""
        self.windows.advance(now_ms)
        self._since_poll_ms = 0 if self._polled_ms is None else now_ms - self._polled_ms
        self._polled_ms = now_ms
        self.between_polls.record(self._since_poll_ms)

    def on_polled(self, now_ms: int) -> None:
        """Note the end of a poll."""
        lasted_ms = now_ms - (self._polled_ms or now_ms)
        # Kafka's formula: the time from poll to poll and the time in this one.
        both_ms = lasted_ms + self._since_poll_ms
        self.idle_shares.record(lasted_ms / both_ms if both_ms else 0.0)

    def on_records(self, figures: PartitionFigures, count: int) -> None:
        """Count records of a partition that a poll returns, with the lag behind them."""
        self.topic(figures.partition.topic).records.record(count)
        noted = self._lags.get(figures.partition)
        if noted is None:
            noted = self._lags[figures.partition] = ReadPartition(self.windows)
        if figures.lag is not None:
            noted.lag.record(figures.lag)
        if figures.lead is not None:
            noted.lead_below.record(-figures.lead)

    def on_fetched(self, node_id: int, latency_ms: int, throttle_ms: int) -> None:
        """Count an answer to a fetch."""
        self.fetch_latency.record(latency_ms)
        self.network.node(node_id).latency.record(latency_ms)
        self.throttle_times.record(throttle_ms)

    def read(self, assigned: Iterable[PartitionFigures], now_ms: int) -> Iterator[Reading]:
        """Yield the readings of the consumer."""
        self.windows.advance(now_ms)
        present = tuple(assigned)
        self._forget_all_but({each.partition for each in present})
        yield from self._polls(ReadingMaker(CONSUMER, self.windows, now_ms), now_ms)
        yield from self._fetches(ReadingMaker(FETCH, self.windows, now_ms), present)
        make = ReadingMaker(COORDINATOR, self.windows, now_ms)
        yield make.value("assigned-partitions", len(present))
        yield from self.group.read(make, now_ms)
        yield from self.network.read(CONSUMER, now_ms)

    def _forget_all_but(self, assigned: set[TopicPartition]) -> None:
        """Forget the lags of partitions that were revoked."""
        for partition in self._lags.keys() - assigned:
            noted = self._lags.pop(partition)
            self.windows.forget(noted.lag)
            self.windows.forget(noted.lead_below)

    def _polls(self, make: ReadingMaker, now_ms: int) -> Iterator[Reading]:
        yield from make.spread("time-between-poll", [self.between_polls])
        yield make.value("poll-idle-ratio-avg", average([self.idle_shares]))
        yield make.value("last-poll-seconds-ago", _seconds_ago(self._polled_ms, now_ms))
        yield make.value("commit-sync-time-ns-total", self.commits_awaited.total * NS_PER_MS)
        yield make.value("committed-time-ns-total", self.committed_looked_up.total * NS_PER_MS)

    def _fetches(
        self, make: ReadingMaker, present: tuple[PartitionFigures, ...]
    ) -> Iterator[Reading]:
        topics = tuple(self._topics.items())
        yield from _consumed(make, [topic for _, topic in topics])
        yield from make.spread("fetch-size", [self.fetch_sizes])
        records = sum(topic.records.recent_total for _, topic in topics)
        yield make.value("records-per-request-avg", _by(records, self.fetch_sizes.recent_count))
        yield from make.count("fetch", [self.fetch_latency])
        yield from make.spread("fetch-latency", [self.fetch_latency])
        yield from make.spread("fetch-throttle-time", [self.throttle_times])
        lags = [largest([each.lag]) for each in self._lags.values()]
        lags += [each.lag for each in present if each.lag is not None]
        yield make.value("records-lag-max", max(_known(lags), default=float("nan")))
        leads = [-largest([each.lead_below]) for each in self._lags.values()]
        leads += [each.lead for each in present if each.lead is not None]
        yield make.value("records-lead-min", min(_known(leads), default=float("nan")))
        for name, topic in topics:
            tag = (TOPIC, name)
            yield from _consumed(make, [topic], tag)
            yield from make.spread("fetch-size", [topic.bytes], tag)
            found = _by(topic.records.recent_total, topic.bytes.recent_count)
            yield make.value("records-per-request-avg", found, tag)
        # Beyond the bound, `records-lag-max` of the consumer still covers every partition.
        for each in present[:SERIES_MAX]:
            yield from self._partition(make, each)

    def _partition(self, make: ReadingMaker, figures: PartitionFigures) -> Iterator[Reading]:
        partition, lag, lead, replica = figures
        tags = ((TOPIC, partition.topic), (PARTITION, str(partition.partition)))
        noted = self._lags.get(partition)
        lags = [] if noted is None else [noted.lag]
        leads = [] if noted is None else [noted.lead_below]
        yield make.value("preferred-read-replica", replica, *tags)
        if lag is not None:
            yield make.value("records-lag", lag, *tags)
            yield make.value("records-lag-avg", average(lags), *tags)
            yield make.value("records-lag-max", max(_known([largest(lags), lag])), *tags)
        if lead is not None:
            yield make.value("records-lead", lead, *tags)
            yield make.value("records-lead-avg", -average(leads), *tags)
            yield make.value("records-lead-min", min(_known([-largest(leads), lead])), *tags)


class GroupMetrics:
    """The requests of a group's member to its coordinator."""

    def __init__(self, windows: SampleWindows) -> None:
        self.commits = windows.sampled()
        """Times of OffsetCommit requests in ms."""
        self.joins = windows.sampled()
        """Times of joins in ms."""
        self.syncs = windows.sampled()
        """Times of syncs in ms."""
        self.heartbeats = windows.sampled()
        """Times of heartbeats in ms."""
        self.rebalances = windows.sampled()
        """Times of rebalances that gave this member an assignment, in ms."""
        self.failures = windows.sampled()
        self.assigned, self.revoked, self.lost = (windows.sampled() for _ in range(3))
        """Times of the caller's callbacks in ms."""
        self._began_ms: int | None = None
        self._ended_ms: int | None = None
        self._beat_ms: int | None = None

    def on_heartbeat(self, sent_ms: int, now_ms: int) -> None:
        """Count a heartbeat that was answered."""
        self._beat_ms = sent_ms
        self.heartbeats.record(now_ms - sent_ms)

    def begin_rebalance(self, now_ms: int) -> None:
        """Note the begin of a rebalance, unless one has begun."""
        if self._began_ms is None:
            self._began_ms = now_ms

    def end_rebalance(self, now_ms: int) -> None:
        """Note that the member has its assignment; does nothing if no rebalance has begun."""
        if self._began_ms is not None:
            self.rebalances.record(now_ms - self._began_ms)
            self._began_ms, self._ended_ms = None, now_ms

    def fail_rebalance(self) -> None:
        """Count an attempt that failed, if a rebalance has begun; it continues."""
        if self._began_ms is not None:
            self.failures.record(1)

    def read(self, make: ReadingMaker, now_ms: int) -> Iterator[Reading]:
        """Yield the readings of the member."""
        for name, series in (("commit", self.commits), ("join", self.joins), ("sync", self.syncs)):
            yield from make.count(name, [series])
        yield from make.spread("commit-latency", [self.commits])
        yield from make.spread("join-time", [self.joins])
        yield from make.spread("sync-time", [self.syncs])
        yield from make.count("heartbeat", [self.heartbeats])
        yield make.value("heartbeat-response-time-max", largest([self.heartbeats]))
        yield make.value("last-heartbeat-seconds-ago", _seconds_ago(self._beat_ms, now_ms))
        yield from _per_hour(make, "rebalance", self.rebalances)
        yield from make.spread("rebalance-latency", [self.rebalances])
        yield make.value("rebalance-latency-total", self.rebalances.total)
        yield make.value("last-rebalance-seconds-ago", _seconds_ago(self._ended_ms, now_ms))
        yield from _per_hour(make, "failed-rebalance", self.failures)
        yield from make.spread("partition-assigned-latency", [self.assigned])
        yield from make.spread("partition-revoked-latency", [self.revoked])
        yield from make.spread("partition-lost-latency", [self.lost])


def _consumed(
    make: ReadingMaker, topics: list[ReadTopic], *tags: tuple[str, str]
) -> Iterator[Reading]:
    yield from make.meter("records-consumed", [each.records for each in topics], *tags)
    yield from make.meter("bytes-consumed", [each.bytes for each in topics], *tags)


def _per_hour(make: ReadingMaker, name: str, series: Sampled) -> Iterator[Reading]:
    yield make.value(f"{name}-rate-per-hour", make.rate(series.recent_count) * S_PER_HOUR)
    yield make.value(f"{name}-total", series.count)


def _by(amount: float, count: int) -> float:
    return amount / count if count else float("nan")


def _known(values: Iterable[float]) -> Iterator[float]:
    return (each for each in values if each == each)  # noqa: PLR0124 - the test for NaN


def _seconds_ago(at_ms: int | None, now_ms: int) -> float:
    return NEVER if at_ms is None else (now_ms - at_ms) / 1000
