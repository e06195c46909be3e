"""The text format, read back by Prometheus' own parser."""

from __future__ import annotations

import asyncio
import itertools
import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from streamlog.metrics.process import process_metrics
from streamlog.metrics.prometheus import LINES_PER_LOOK, SLICE_S, exposition
from streamlog.metrics.registry import Kind, Metric, Registry, Summary

Sample = tuple[str, tuple[tuple[str, str], ...]]


def samples(registry: Registry) -> dict[Sample, float]:
    text = asyncio.run(exposition(registry)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(
    st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False), max_size=5),
    st.text(max_size=20),
)
def test_any_label_value_text_and_number_is_read_back(
    sizes: dict[str, float], description: str
) -> None:
    registry = Registry()
    gauges = registry.gauges("size_bytes", description, "topic")
    for topic, size in sizes.items():
        gauges.series(topic).set(size)
    wanted = {("size_bytes", (("topic", topic),)): size for topic, size in sizes.items()}
    assert samples(registry) == wanted


def test_histograms_are_cumulative_and_summaries_have_quantiles() -> None:
    registry = Registry()
    took = registry.histograms("took_seconds", "Time.", "api", bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        took.series("Fetch").record(value)
    recent = Summary({0.5: 0.25, 0.99: math.nan}, 4, 7.65)
    registry.collect(lambda: [Metric("recent_ms", "Time.", Kind.SUMMARY, (), [((), recent)])])
    found = samples(registry)
    api = ("api", "Fetch")
    assert found["took_seconds_bucket", (api, ("le", "0.1"))] == 2
    assert found["took_seconds_bucket", (api, ("le", "1.0"))] == 3
    assert found["took_seconds_bucket", (api, ("le", "+Inf"))] == 4
    assert found["took_seconds_count", (api,)] == 4
    assert found["took_seconds_sum", (api,)] == 7.65
    assert found["recent_ms", (("quantile", "0.5"),)] == 0.25
    assert math.isnan(found["recent_ms", (("quantile", "0.99"),)])
    assert found["recent_ms_count", ()] == 4


def test_the_process_is_described() -> None:
    registry = Registry()
    registry.collect(process_metrics)
    found = samples(registry)
    assert found["process_cpu_seconds_total", ()] > 0
    assert found["process_resident_memory_bytes", ()] > 1_000_000
    assert 2 < found["process_open_fds", ()] <= found["process_max_fds", ()]
    assert found["process_start_time_seconds", ()] > 1_700_000_000


def test_the_event_loop_runs_while_many_series_are_written() -> None:
    registry = Registry()
    sizes = registry.gauges("size_bytes", "Size.", "topic", "partition", series_max=50_000)
    for number in range(50_000):
        sizes.series("orders", str(number)).set(number)

    async def main() -> int:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        # Each look at this clock is a quarter of a slice after the one before.
        looks = itertools.count()
        text = await exposition(registry, lambda: next(looks) * SLICE_S / 4)
        counting.cancel()
        assert text.count(b"\n") == 50_002
        return turns

    assert asyncio.run(main()) >= 50_000 // (5 * LINES_PER_LOOK)
