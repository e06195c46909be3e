"""Registry: names, labels, and the bound on series."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.metrics.prometheus import exposition
from streamlog.metrics.registry import OTHER, Kind, Registry, number


def values(registry: Registry, name: str) -> dict[tuple[str, ...], object]:
    return {
        labels: value
        for metric in registry.metrics()
        if metric.name == name
        for labels, value in metric.points
    }


def test_each_combination_of_labels_is_counted_by_itself() -> None:
    registry = Registry()
    requests = registry.counters("requests_total", "Requests.", "api", "version")
    requests.series("Produce", "9").add(2)
    requests.series("Fetch", "9").add()
    requests.series("Produce", "9").add()
    assert values(registry, "requests_total") == {("Produce", "9"): 3, ("Fetch", "9"): 1}


def test_series_beyond_the_bound_are_counted_together() -> None:
    registry = Registry()
    bytes_in = registry.counters("bytes_in_total", "Bytes.", "topic", series_max=2)
    for topic in ("a", "b", "c", "d", "a"):
        bytes_in.series(topic).add(10)
    assert values(registry, "bytes_in_total") == {("a",): 20, ("b",): 10, (OTHER,): 20}


def test_a_removed_series_is_gone() -> None:
    registry = Registry()
    sizes = registry.gauges("size_bytes", "Size.", "topic")
    sizes.series("a").set(1)
    sizes.series("b").set(2)
    sizes.remove("a")
    sizes.remove("unknown")
    assert values(registry, "size_bytes") == {("b",): 2}


def test_collectors_are_asked_at_each_look() -> None:
    registry, calls = Registry(), iter(range(9))
    registry.collect(lambda: [number("looks", "Looks.", next(calls))])
    assert [values(registry, "looks")[()] for _ in range(3)] == [0, 1, 2]


def test_wrong_declarations_and_labels_are_refused() -> None:
    registry = Registry()
    gauges = registry.gauges("size_bytes", "Size.", "topic")
    with pytest.raises(ValueError, match="size_bytes is declared twice"):
        registry.gauge("size_bytes", "Size.")
    with pytest.raises(ValueError, match="ends in _total: requests"):
        registry.counter("requests", "Requests.")
    with pytest.raises(ValueError, match="size_bytes has the labels"):
        gauges.series("a", "b")


def test_a_registry_yields_counted_and_computed_metrics() -> None:
    registry = Registry()
    registry.histogram("took_seconds", "Time.")
    registry.counter("requests_total", "Requests.")
    registry.collect(lambda: [number("open", "Open.", 1)])
    kinds = [(metric.name, metric.kind) for metric in registry.metrics()]
    assert kinds == [
        ("took_seconds", Kind.HISTOGRAM),
        ("requests_total", Kind.COUNTER),
        ("open", Kind.GAUGE),
    ]


def test_a_look_is_prepared_before_it_is_written() -> None:
    registry, known = Registry(), [0.0]

    async def find_out() -> None:
        await asyncio.sleep(0)
        known[0] += 1

    registry.prepare_by(find_out)
    registry.collect(lambda: [number("found", "What was found out.", known[0])])

    async def main() -> None:
        assert b"\nfound 1.0\n" in await exposition(registry)
        assert b"\nfound 2.0\n" in await exposition(registry)
        # A look that is not announced shows what was found out before.
        assert [list(each.points) for each in registry.metrics()] == [[((), 2.0)]]

    asyncio.run(main())
