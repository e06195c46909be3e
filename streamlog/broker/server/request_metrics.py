"""Request metrics: the number of requests, their errors, and where their time went, per API.

The parts of a request's time are those of Kafka's `RequestMetrics`:

- queue: from its last byte to its beginning. Requests wait here while their connection is full,
  while a thread validates the records of an earlier one, or behind others of the same read.
- local: the call that begins it, such as the append to the log.
- remote: the wait for others, such as the commit by all in-sync replicas or a Fetch's `max_wait_ms`.
- response_queue: from its answer to the socket, behind earlier answers of the connection.

Throttle times are counted by quota (`limits`). A run of requests that one call answers counts each
of them with the times of the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from streamlog.metrics.instruments import Counter, Histogram
from streamlog.metrics.registry import Kind, Metric, Point, Registry, Summary
from streamlog.protocol.error_codes import ErrorCode

PREFIX = "kafka_network_requestmetrics_"
PARTS = {
    "queue": "requestqueuetimems",
    "local": "localtimems",
    "remote": "remotetimems",
    "response_queue": "responsequeuetimems",
    "total": "totaltimems",
}
"""The parts of a request's time, with their names in Kafka."""
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""The quantiles that Kafka reports."""
MS = 1_000


class ApiTimes:
    """The histograms of one API."""

    __slots__ = ("local", "queue", "remote", "response_queue", "total")

    def __init__(self) -> None:
        self.queue = Histogram()
        self.local = Histogram()
        self.remote = Histogram()
        self.response_queue = Histogram()
        self.total = Histogram()

    def record(
        self, count: int, *, queue_s: float, local_s: float, remote_s: float, response_queue_s: float
    ) -> None:
        """Count `count` requests with these times, in seconds."""
        self.queue.record_many(queue_s, count)
        self.local.record_many(local_s, count)
        self.remote.record_many(remote_s, count)
        self.response_queue.record_many(response_queue_s, count)
        self.total.record_many(queue_s + local_s + remote_s + response_queue_s, count)


class RequestMetrics:
    """Counts the requests of all connections of one broker."""

    def __init__(self, registry: Registry) -> None:
        self._requests = registry.counters(
            PREFIX + "requests_total", "Requests.", "request", "version"
        )
        self._errors = registry.counters(
            PREFIX + "errors_total",
            "Error codes in responses, of requests and of their items; NONE: requests without one.",
            "request",
            "error",
        )
        self._counters: dict[tuple[str, int], Counter] = {}
        self._successes: dict[str, Counter] = {}
        self._times: dict[str, ApiTimes] = {}
        registry.collect(self._describe)

    def begin(self, api: str, version: int, count: int = 1) -> None:
        """Count requests that begin."""
        counter = self._counters.get((api, version))
        if counter is None:
            counter = self._requests.series(api, str(version))
            self._counters[api, version] = counter
        counter.value += count

    def times(self, api: str) -> ApiTimes:
        """Return the histograms of an API."""
        found = self._times.get(api)
        if found is None:
            found = self._times[api] = ApiTimes()
        return found

    def succeed(self, api: str, count: int = 1) -> None:
        """Count requests without an error."""
        counter = self._successes.get(api)
        if counter is None:
            counter = self._successes[api] = self._errors.series(api, ErrorCode.NONE.name)
        counter.value += count

    def fail(self, api: str, code: int) -> None:
        """Count an error code in a response."""
        self._errors.series(api, _error_name(code)).add()

    def _describe(self) -> Iterator[Metric]:
        """Yield the times twice: as histograms, and as the summaries of Kafka's dashboards."""
        times = [*self._times.items()]
        for part, name in PARTS.items():
            points: list[Point] = []
            for api, found in times:
                histogram: Histogram = getattr(found, part)
                quantiles = {share: histogram.quantile(share) * MS for share in QUANTILES}
                summary = Summary(quantiles, histogram.count, histogram.sum * MS)
                points.append(((api,), summary))
            text = f"Part {part} of the time of requests since the start, in milliseconds."
            yield Metric(PREFIX + name, text, Kind.SUMMARY, ("request",), points)
        yield Metric(
            "streamlog_request_duration_seconds",
            "Time of requests by its parts; total is their sum.",
            Kind.HISTOGRAM,
            ("request", "part"),
            [((api, part), getattr(found, part)) for api, found in times for part in PARTS],
        )


@cache
def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
