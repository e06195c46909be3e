"""Registry: the metrics of a process by name, counted or computed at each look.

A metric has a name, a text, and one series for each combination of label values. Counted metrics
are families of instruments; computed ones come from collectors, functions that describe the present
state. Exporters read both as `Metric`.

Rule: the number of series is bounded. Label values such as topics, client ids and users come from
outside; a family that has `series_max` of them counts further ones together, under `OTHER`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

import msgspec

from streamlog.metrics.instruments import DURATION_BOUNDS_S, Counter, Gauge, Histogram

SERIES_MAX = 1_000
"""The series of one family, unless it says otherwise."""
OTHER = "other"
"""The value of every label of the series that stands for those beyond the bound."""


class Kind(StrEnum):
    """The kind of a metric, by its name in Prometheus' text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Summary(msgspec.Struct, frozen=True):
    """Quantiles of values, with their number and sum."""

    quantiles: Mapping[float, float]
    """The value at each share of all values, for example at 0.99."""
    count: int
    sum: float


Point: TypeAlias = tuple[tuple[str, ...], "float | Histogram | Summary"]
"""The values of the labels, and what is known of this series."""


class Metric(msgspec.Struct, frozen=True):
    """A metric as an exporter reads it."""

    name: str
    """In Prometheus' form; the name of a counter ends in `_total`."""
    help: str
    kind: Kind
    labels: tuple[str, ...]
    points: Iterable[Point]
    """The series. May be computed while they are read."""


def number(name: str, text: str, value: float, *, kind: Kind = Kind.GAUGE) -> Metric:
    """Return a metric that has a single series without labels."""
    return Metric(name, text, kind, (), [((), value)])


Instrument = TypeVar("Instrument", Counter, Gauge, Histogram)


class Family(Generic[Instrument]):
    """The instruments of one metric, by label values."""

    def __init__(
        self,
        description: tuple[str, str, Kind],
        labels: tuple[str, ...],
        make: Callable[[], Instrument],
        *,
        series_max: int,
    ) -> None:
        self.name, self.help, self.kind = description
        self._labels = labels
        self._make: Callable[[], Instrument] = make
        self._series_max = series_max
        self._series: dict[tuple[str, ...], Instrument] = {}

    def series(self, *values: str) -> Instrument:
        """Return the instrument for these label values; keep it where it is used often.

        Raises:
            ValueError: there are more or fewer values than labels.
        """
        found = self._series.get(values)
        return self._add(values) if found is None else found

    def remove(self, *values: str) -> None:
        """Forget a series, for example of a deleted topic."""
        self._series.pop(values, None)

    def metric(self) -> Metric:
        """Return the present values."""
        # A copy: a series may be added while an exporter lets the loop run.
        return Metric(self.name, self.help, self.kind, self._labels, self._points())

    def _points(self) -> Iterator[Point]:
        for values, instrument in [*self._series.items()]:
            yield values, instrument if isinstance(instrument, Histogram) else instrument.value

    def _add(self, values: tuple[str, ...]) -> Instrument:
        if len(values) != len(self._labels):
            raise ValueError(f"{self.name} has the labels {self._labels}, not values {values!r}")
        if len(self._series) >= self._series_max:
            values = (OTHER,) * len(values)
        return self._series.setdefault(values, self._make())


QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""The quantiles that Kafka reports of its timers."""
MS = 1_000


def kafka_timer(name: str, text: str, times: Histogram) -> Metric:
    """Return a histogram of seconds as one of Kafka's timers: quantiles in ms since the start."""
    quantiles = {share: times.quantile(share) * MS for share in QUANTILES}
    summary = Summary(quantiles, times.count, times.sum * MS)
    return Metric(name, f"{text} In ms, since the start.", Kind.SUMMARY, (), [((), summary)])


def timer(name: str, seconds_name: str, text: str, times: Histogram) -> Iterator[Metric]:
    """Yield a histogram of seconds twice: as one of Kafka's timers, and as such."""
    yield kafka_timer(name, text, times)
    yield Metric(seconds_name, f"{text} In seconds.", Kind.HISTOGRAM, (), [((), times)])


T = TypeVar("T")
Look: TypeAlias = Generator[None, None, T]
"""A computation over many items that yields every `ITEMS_PER_STEP` of them, for others to run."""
ITEMS_PER_STEP = 64


def at_once(look: Look[T]) -> T:
    """Run a look to its end, and return its result."""
    # The result of a generator is only to be had by `yield from`, or from a StopIteration.
    found: list[T] = []

    def run() -> Iterator[None]:
        found.append((yield from look))

    deque(run(), maxlen=0)
    return found[0]


Collector: TypeAlias = Callable[[], Iterable[Metric | None]]
"""Describes the present state as metrics; None between two of them lets others run."""


Preparation: TypeAlias = Callable[[], Awaitable[None]]
"""Finds out what a collector reports, where that takes longer than a look may take."""


class Registry:
    """All metrics of one broker, worker or client."""

    def __init__(self) -> None:
        self._preparations: list[Preparation] = []
        self._families: dict[str, Family[Counter] | Family[Gauge] | Family[Histogram]] = {}
        self._collectors: list[Collector] = []

    def counters(
        self, name: str, text: str, *labels: str, series_max: int = SERIES_MAX
    ) -> Family[Counter]:
        """Declare counters with these labels.

        Raises:
            ValueError: the name is taken, or does not end in `_total`.
        """
        if not name.endswith("_total"):
            raise ValueError(f"the name of a counter ends in _total: {name}")
        family = Family((name, text, Kind.COUNTER), labels, Counter, series_max=series_max)
        self._declare(family)
        return family

    def counter(self, name: str, text: str) -> Counter:
        """Declare a counter without labels; raises as `counters`."""
        return self.counters(name, text).series()

    def gauges(
        self, name: str, text: str, *labels: str, series_max: int = SERIES_MAX
    ) -> Family[Gauge]:
        """Declare gauges with these labels.

        Raises:
            ValueError: the name is taken.
        """
        family = Family((name, text, Kind.GAUGE), labels, Gauge, series_max=series_max)
        self._declare(family)
        return family

    def gauge(self, name: str, text: str) -> Gauge:
        """Declare a gauge without labels; raises as `gauges`."""
        return self.gauges(name, text).series()

    def histograms(
        self,
        name: str,
        text: str,
        *labels: str,
        bounds: tuple[float, ...] = DURATION_BOUNDS_S,
        series_max: int = SERIES_MAX,
    ) -> Family[Histogram]:
        """Declare histograms with these labels.

        Raises:
            ValueError: the name is taken.
        """
        description = (name, text, Kind.HISTOGRAM)
        family = Family(description, labels, lambda: Histogram(bounds), series_max=series_max)
        self._declare(family)
        return family

    def histogram(
        self, name: str, text: str, *, bounds: tuple[float, ...] = DURATION_BOUNDS_S
    ) -> Histogram:
        """Declare a histogram without labels; raises as `histograms`."""
        return self.histograms(name, text, bounds=bounds).series()

    def collect(self, collector: Collector) -> None:
        """Compute more metrics with this function at each look."""
        self._collectors.append(collector)

    def prepare_by(self, preparation: Preparation) -> None:
        """Await this function before each look that `prepare` announces."""
        self._preparations.append(preparation)

    async def prepare(self) -> None:
        """Prepare a look at `metrics`; without it, some collectors report an earlier state."""
        for preparation in [*self._preparations]:
            await preparation()

    def metrics(self) -> Iterator[Metric]:
        """Yield all metrics with their present values."""
        return (each for each in self.steps() if each is not None)

    def steps(self) -> Iterator[Metric | None]:
        """Yield all metrics, and None where a reader in an event loop may let others run."""
        for family in [*self._families.values()]:
            yield family.metric()
        for collector in [*self._collectors]:
            yield from collector()

    def _declare(self, family: Family[Counter] | Family[Gauge] | Family[Histogram]) -> None:
        if family.name in self._families:
            raise ValueError(f"the metric {family.name} is declared twice")
        self._families[family.name] = family
