"""The latency of sinks: every record counts once, when it is visible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.metrics.registry import Registry
from streamlog.processing.outbox import SinkBatch, sample
from streamlog.worker.commit.sink_latency import SinkLatency

NOW_MS = 1_000_000


def latency() -> tuple[SinkLatency, Registry]:
    registry = Registry()
    family = registry.histograms("latency", "", "topic", "since", bounds=(1.0, 10.0))
    return SinkLatency(family, ["out"]), registry


def written(topic: str, times: list[int]) -> SinkBatch:
    count = len(times)
    log_times = sample([ms - 1_000 for ms in times])
    return SinkBatch(topic, None, times, [b""] * count, [b""] * count, log_times=log_times)


def counts(registry: Registry) -> dict[tuple[str, ...], list[int]]:
    (metric,) = registry.metrics()
    return {values: histogram.counts for values, histogram in metric.points}  # type: ignore[union-attr]


@given(st.lists(st.integers(1, 100), max_size=10))
def test_each_record_counts_once(sizes: list[int]) -> None:
    sinks, registry = latency()
    for size in sizes:
        sinks.note([written("out", [NOW_MS - 500] * size), written("elsewhere", [NOW_MS])])
    assert counts(registry) == {}
    sinks.end(NOW_MS)
    expected = {("out", "record"): [sum(sizes), 0, 0], ("out", "append"): [0, sum(sizes), 0]}
    assert counts(registry) == (expected if sizes else {})
    sinks.end(NOW_MS)
    assert counts(registry) == (expected if sizes else {})


def test_a_batch_counts_by_the_spread_of_its_records() -> None:
    sinks, registry = latency()
    sinks.note([written("out", [NOW_MS - 20_000] * 500 + [NOW_MS - 500] * 500)])
    sinks.end(NOW_MS)
    assert counts(registry)["out", "record"] == [500, 0, 500]


def test_what_an_aborted_commit_had_written_does_not_count() -> None:
    sinks, registry = latency()
    sinks.note([written("out", [NOW_MS])])
    sinks.forget()
    sinks.end(NOW_MS)
    assert counts(registry) == {}


def test_a_timestamp_ahead_of_the_clock_counts_as_none() -> None:
    sinks, registry = latency()
    sinks.note([written("out", [NOW_MS + 60_000])])
    sinks.end(NOW_MS)
    assert counts(registry)["out", "record"] == [1, 0, 0]
