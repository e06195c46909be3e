"""ClientMetrics: the values of all metrics of one client at one moment, by name.

The parts of a client measure (`network_metrics`, `producer_metrics`, `consumer_metrics`) and
describe themselves as readings; `ClientMetrics.of` names these as Kafka's clients do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, Self

from streamlog.client.metrics.metric_names import (
    CLIENT_ID,
    NODE_ID,
    PARTITION,
    TOPIC,
    MetricName,
)
from streamlog.clock import Clock
from streamlog.metrics.sampled import Sampled, SampleWindows, average, largest

NS_PER_MS: Final = 1_000_000


@contextmanager
def timed(series: Sampled, clock: Clock) -> Iterator[None]:
    """Record how long the block takes in ms, even if an error leaves it."""
    began_ms = clock.now_ms()
    try:
        yield
    finally:
        series.record(clock.now_ms() - began_ms)


class Reading(NamedTuple):
    """The value of a metric, without the client's id."""

    group: str
    name: str
    value: float
    tags: tuple[tuple[str, str], ...] = ()


class ClientMetrics(Mapping[MetricName, float]):
    """The metrics of a client, as of one moment: name to value.

    A value is NaN where nothing was measured in the kept time windows, such as an average. Rates,
    averages and maxima are over the last 30 to 60 s, as by default in Kafka's clients.

    Example:
        metrics = producer.metrics()
        metrics.value("record-error-rate")
        metrics.value("record-send-total", topic="orders")
    """

    def __init__(self, values: Mapping[MetricName, float]) -> None:
        self._values = values

    @classmethod
    def of(cls, client_id: str, readings: Iterable[Reading]) -> Self:
        """Name the readings of a client's parts."""
        own = (CLIENT_ID, client_id)
        return cls(
            {MetricName(each.group, each.name, (own, *each.tags)): each.value for each in readings}
        )

    def __getitem__(self, name: MetricName) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[MetricName]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def value(
        self,
        name: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        node_id: int | None = None,
    ) -> float:
        """Return the value of the metric with this name and exactly these tags.

        Raises:
            KeyError: there is no such metric: the name is wrong, or nothing was measured yet for
                this topic, partition or broker.
        """
        given = ((TOPIC, topic), (PARTITION, partition), (NODE_ID, node_id))
        tags = tuple((tag, str(value)) for tag, value in given if value is not None)
        for metric, value in self._values.items():
            if metric.name == name and metric.tags[1:] == tags:
                return value
        raise KeyError(f"no metric {name!r} with the tags {dict(tags)}")


class ReadingMaker:
    """Makes the readings of one group, as of one moment."""

    def __init__(self, group: str, windows: SampleWindows, now_ms: int) -> None:
        self._group = group
        self._windows = windows
        self._now_ms = now_ms

    def value(self, name: str, value: float, *tags: tuple[str, str]) -> Reading:
        """Return a reading of a value."""
        return Reading(self._group, name, value, tags)

    def meter(
        self, name: str, series: Iterable[Sampled], *tags: tuple[str, str]
    ) -> Iterator[Reading]:
        """Yield a rate and a total: of the sums of some series."""
        many = tuple(series)
        rate = self.rate(sum(each.recent_total for each in many))
        yield self.value(f"{name}-rate", rate, *tags)
        yield self.value(f"{name}-total", sum(each.total for each in many), *tags)

    def count(
        self, name: str, series: Iterable[Sampled], *tags: tuple[str, str]
    ) -> Iterator[Reading]:
        """Yield a rate and a total: of the numbers of values of some series."""
        many = tuple(series)
        rate = self.rate(sum(each.recent_count for each in many))
        yield self.value(f"{name}-rate", rate, *tags)
        yield self.value(f"{name}-total", sum(each.count for each in many), *tags)

    def spread(
        self, name: str, series: Iterable[Sampled], *tags: tuple[str, str]
    ) -> Iterator[Reading]:
        """Yield an average and a maximum of the values of some series."""
        many = tuple(series)
        yield self.value(f"{name}-avg", average(many), *tags)
        yield self.value(f"{name}-max", largest(many), *tags)

    def rate(self, amount: float) -> float:
        """Return what an amount in the kept windows is per second."""
        return self._windows.rate(amount, self._now_ms)
