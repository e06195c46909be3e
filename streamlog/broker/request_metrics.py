"""Request metrics: the number of requests, their errors, and where their time went, per API.

The parts of a request's time are those of Kafka's `RequestMetrics`:

- queue: from its last byte to its beginning. Requests wait here while their connection is full,
  while a thread validates the records of an earlier one, or behind others of the same read.
- local: the call that begins it, such as the append to the log.
- remote: the wait for others, such as in-sync replicas, or the `max_wait_ms` of a Fetch.
- response_queue: from its answer to the socket, behind earlier answers of the connection.

Throttle times are counted by quota (`limits`). A run of requests that one call answers counts each
of them with the times of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from streamlog.metrics.instruments import ApiMeter, Histogram
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


class RequestMetrics:
    """Measures the requests of all connections of one broker."""

    def __init__(self, registry: Registry) -> None:
        self._requests = registry.counters(
            PREFIX + "requests_total", "Requests.", "request", "version"
        )
        self._errors = registry.counters(
            PREFIX + "errors_total",
            "Error codes in responses to requests: of the whole request, or of its items.",
            "request",
            "error",
        )
        self._meters: dict[tuple[str, int], ApiMeter] = {}
        registry.collect(self._describe)

    def meter(self, api: str, version: int) -> ApiMeter:
        """Return the measures of a version of an API."""
        found = self._meters.get((api, version))
        if found is None:
            requests = self._requests.series(api, str(version))
            found = self._meters[api, version] = ApiMeter(api, requests)
        return found

    def fail(self, api: str, codes: Iterable[int]) -> None:
        """Count the error codes of responses of an API."""
        for code in codes:
            self._errors.series(api, _error_name(code)).add()

    def _describe(self) -> Iterator[Metric]:
        """Yield the times twice: as histograms, and as the summaries of Kafka's dashboards."""
        # A list: an exporter lets the loop run between two metrics, and a request of a new API adds
        # a meter meanwhile.
        times = [*_times_of([*self._meters.values()]).items()]
        for part, name in PARTS.items():
            points: list[Point] = []
            for api, found in times:
                histogram = found[part]
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
            [((api, part), found[part]) for api, found in times for part in PARTS],
        )


def _times_of(meters: Iterable[ApiMeter]) -> dict[str, dict[str, Histogram]]:
    """Return the times of each API in all its versions, by API and part."""
    times: dict[str, dict[str, Histogram]] = {}
    for meter in meters:
        # Versions are summed here and not when they are counted: a meter per version costs no look
        # at the version in the hot path.
        sums = times.setdefault(meter.api, {part: Histogram() for part in PARTS})
        for part, found in sums.items():
            found.include(getattr(meter, part))
    return times


@cache
def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
