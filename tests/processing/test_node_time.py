"""Stream time of one node: pure cases of `NodeTime`, and sources without any output."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Windowed, tumbling
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.column_batch import TimeSource
from streamlog.processing.inputs.record_queue import Input, RecordQueue
from streamlog.processing.node_clock import NodeTime
from streamlog.records.batch import LogRecord
from streamlog.records.control_batches import TimeMark
from streamlog.serdes import serde_for
from streamlog.windows.emit import UNKNOWN_MS

texts: Any = serde_for(str)


def input_() -> Input:
    return Input(TopicSpec("t", texts, texts), 0, 0)


def raw(offset: int, timestamp_ms: int, value: bytes = b"v") -> LogRecord:
    return LogRecord(offset, timestamp_ms, b"k", value)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.integers(0, 9)), max_size=30),
    st.integers(1, 7),
)
def test_node_time_follows_the_records_that_reach_the_node(
    history: list[tuple[int, bool, int]], piece: int
) -> None:
    """Each entry: a timestamp, whether it passes the filter, and the mark's time after it."""
    entry = input_()
    node = NodeTime([entry])
    queue = RecordQueue([entry], record_at_a_time=False)
    records, marks, wanted, time_ms = [], [], {}, UNKNOWN_MS
    for number, (at_ms, gets_through, elapsed_ms) in enumerate(history):
        records.append(raw(2 * number, at_ms, b"v" if gets_through else b"x"))
        marks.append(TimeMark(2 * number + 1, elapsed_ms))
        if gets_through:
            time_ms = wanted[2 * number] = max(time_ms, at_ms)
        time_ms += elapsed_ms if time_ms > UNKNOWN_MS else 0
    found: dict[int, int] = {}
    for start in range(0, len(records), piece):
        entry.arrive(records[start : start + piece], marks[start : start + piece])
        while (run := queue.next_run()) is not None:
            _, batch = run
            if not isinstance(batch, TimeMark):
                batch = node.of(batch.where([value == "v" for value in batch.values]))
                times = batch.of_origin(batch.origin.times)
                found |= zip(batch.of_origin(batch.origin.offsets), times, strict=True)
            node.follow()
    assert found == wanted
    assert node.feeds[0].time_ms == time_ms
    assert node.feeds[0].time_ms <= max(entry.time_ms, UNKNOWN_MS)


def test_stored_node_time_is_restored() -> None:
    entry = input_()
    node = NodeTime([entry])
    (feed,) = node.reached.values()
    feed.time_ms, feed.marked_ms = 7, 5
    again = NodeTime([input_()])
    again.load(node.to_data())
    assert [each.to_data() for each in again.reached.values()] == [[7, 5, 0]]


def test_a_node_without_stored_time_starts_at_its_input_s_time() -> None:
    entry = input_()
    entry.time_ms = 9
    node = NodeTime([entry])
    node.load({})
    assert node.feeds[0].time_ms == 9


def test_internal_feeds_keep_their_own_time() -> None:
    own = TimeSource(("windows", 0))
    inner = Input(TopicSpec("r", texts, texts, internal=True), 0, 0)
    assert NodeTime([own, inner]).feeds == [own, inner]


@pytest.mark.parametrize("filtered_ms", [200, 4_000_000_000_000])
def test_a_fully_filtered_source_does_not_hold_windows_open(filtered_ms: int) -> None:
    app = App("quiet")
    words = app.topic("words", key=str, value=int, partitions=2)
    counts = app.topic("counts", key=Windowed[str], value=int, partitions=1)
    kept = app.stream(words).filter(lambda _, value: value > 0)
    windows = kept.group_by(lambda key, _: key, name="by-word").windowed(tumbling("10ms"))
    windows.emit(Emit.CLOSE).count(name="n").changes().to(counts)
    with app.test() as t:
        source = t.input(words)
        source.send(1, key="a", at=5, partition=0)
        source.send(1, key="a", at=25, partition=0)
        assert t.output(counts).values == []  # Partition 1 has no record yet.
        source.send(0, key="b", at=filtered_ms, partition=1)
        assert t.output(counts).values == [1]
        source.send(1, key="c", at=26, partition=0)
        source.send(1, key="d", at=31, partition=0)
        assert t.output(counts).values == [1, 1, 1]
        assert not t.drops
