"""A record is never late if Kafka Streams would take it: a law, by random histories.

Kafka's windows have one stream time, the largest timestamp of a record that has reached them;
streamlog's have one for each source, and close at the minimum over the sources. Filtered records
advance neither. But a source whose last records were filtered does not hold the others back
(decision 012, 6): because windows close without it, a later record of the source may be late
although its own source has not passed the window. The tests compare that with Kafka's definition,
computed by a loop over the records in the order in which the windows took them. Each value is a
power of two, so the sum of a window identifies its records.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamlog import App, Windowed, tumbling
from tests.processing.test_exactness import (
    GRACE_MS,
    SIZE_MS,
    Cluster,
    Input,
    closed,
    rows_of,
)

PARTITIONS = 3
FILTERED = -1
Event = tuple[int, int, bool]
"""Partition, timestamp, and whether the filter lets it pass."""
Phases = list[list[Event]]
"""Each phase is read to its end before the next one is written."""
AHEAD: Phases = [[(0, 100, False), (1, 100, True), (2, 100, True)], [(0, 50, True)]]
"""The filtered record is ahead of its source: is the record at 50 late?"""


class Result(NamedTuple):
    """A history and the windows' results."""

    inputs: Input
    order: list[int]
    """Values in the order in which the windows took them."""
    cluster: Cluster

    @property
    def times(self) -> dict[int, int]:
        """Timestamps of the records that pass the filter, by value."""
        return {value: time_ms for _, _, time_ms, value in self.inputs if value > 0}

    def rows(self) -> list[tuple[int, set[int]]]:
        """Return start and records of each final row."""
        found = rows_of(self.cluster, "final", distinct=True)
        return [(start, parts(total)) for _, start, total, _ in found]


def parts(total: int) -> set[int]:
    return {1 << bit for bit in range(total.bit_length()) if total >> bit & 1}


def closes_ms(time_ms: int) -> int:
    return time_ms // SIZE_MS * SIZE_MS + SIZE_MS + GRACE_MS


def late_in_kafka(order: list[int], times: dict[int, int]) -> set[int]:
    """Return late values by the largest timestamp of all previous records."""
    late, stream_time_ms = set(), -1
    for value in order:
        stream_time_ms = max(stream_time_ms, times[value])
        if closes_ms(times[value]) <= stream_time_ms:
            late.add(value)
    return late


def late_in_source(inputs: Input) -> set[int]:
    """Return late values by the largest timestamp of previous records of their partition."""
    late, source_ms = set(), [-1] * PARTITIONS
    for partition, _, time_ms, value in inputs:
        if value > 0:
            source_ms[partition] = max(source_ms[partition], time_ms)
            if closes_ms(time_ms) <= source_ms[partition]:
                late.add(value)
    return late


def run_phases(phases: Phases, *, seed: int, merges: bool, crashes: int = 0) -> Result:
    order: list[int] = []
    app = App("law")
    words: Any = app.topic("words", key=str, value=int)
    final = app.topic("final", key=Windowed[str], value=int)
    passing = app.stream(words).filter(lambda _, value: value >= 0)
    (
        passing.repartition(name="one", partitions=1)
        .peek(lambda record: order.append(record.value))
        .group_by_key()
        .windowed(tumbling(f"{SIZE_MS}ms", grace=f"{GRACE_MS}ms"))
        .reduce(lambda a, b: a + b, name="small")
        .changes()
        .to(final)
    )
    counts = {"words": PARTITIONS, "final": 1}
    cluster, inputs = Cluster(app.topology(), counts, Random(seed), merges=merges), Input()
    for phase in phases:
        begin = len(inputs)
        inputs += [
            (partition, "a", time_ms, 1 << begin + number if passes else FILTERED)
            for number, (partition, time_ms, passes) in enumerate(phase)
        ]
        cluster.feed(inputs[begin:])
        cluster.run(crashes=crashes)
    cluster.feed(closed([], PARTITIONS))
    cluster.run(crashes=0)
    return Result(inputs, [value for value in order if value], cluster)


events = st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 120), st.booleans())
histories = st.lists(st.lists(events, max_size=12), max_size=4)


@pytest.mark.parametrize("merges", [True, False])
@given(phases=histories, seed=st.integers(0, 10_000))
@example(phases=AHEAD, seed=0)
@settings(deadline=None)
def test_no_record_that_kafka_would_take_is_late(merges: bool, phases: Phases, seed: int) -> None:
    found = run_phases(phases, seed=seed, merges=merges)
    times = found.times
    counted = [value for _, values in found.rows() for value in values]
    assert len(counted) == len({*counted})
    assert all(start == times[v] // SIZE_MS * SIZE_MS for start, vs in found.rows() for v in vs)
    left_out = times.keys() - {*counted}
    assert found.cluster.drops["small", "late"] == len(left_out)
    assert late_in_source(found.inputs) <= left_out <= late_in_kafka(found.order, times)


@given(phases=histories, seed=st.integers(0, 10_000))
@example(phases=AHEAD, seed=0)
@settings(deadline=None)
def test_a_window_has_one_final_row_despite_crashes(phases: Phases, seed: int) -> None:
    found = run_phases(phases, seed=seed, merges=True, crashes=4)
    starts = [start for start, _ in found.rows()]
    assert len(starts) == len({*starts})
    left_out = found.times.keys() - {value for _, values in found.rows() for value in values}
    assert late_in_source(found.inputs) <= left_out


@pytest.mark.parametrize("merges", [True, False])
def test_filtered_records_make_others_late_only_at_a_source_s_end(
    merges: bool,
) -> None:
    at_once = [[event for phase in AHEAD for event in phase]]
    for phases, is_late in ((AHEAD, True), (at_once, False)):
        found = run_phases(phases, seed=0, merges=merges)
        assert found.cluster.drops["small", "late"] == is_late
        assert not is_late or late_in_kafka(found.order, found.times) == {8}
