from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, ProcessingError
from streamlog.errors import CorruptData
from streamlog.processing.outbox import SinkRecord
from streamlog.processing.provenance import (
    MARK,
    PROVENANCE,
    RECORD_BYTES,
    ProvenanceMark,
    identity,
    pack_mark,
    source_of,
    unpack_mark,
    unpack_record,
)
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.tables.stores.memory_store import MemoryStore

TOPIC = "hops-by-value-repartition"


def tasks() -> tuple[Task, Task]:
    """Return the tasks before and behind a repartition topic, with two partitions each."""
    app = App("hops")
    words = app.topic("words", key=str, value=str)
    app.stream(words).flat_map_values(str.split).group_by(lambda _, v: v, name="by-value").count(
        name="counts"
    )
    before, behind = app.topology().subtopologies
    counts = {"words": 2, TOPIC: 2}
    upstream = Task(before, TaskId(0, 1), partitions=counts)
    behind_it = Task(behind, TaskId(1, 0), partitions=counts, store=MemoryStore(), merges=False)
    return upstream, behind_it


def send(task: Task, *texts: str, first: int = 0) -> list[SinkRecord]:
    records = [
        LogRecord(at, 100 - at, b"k", text.encode(), (("h", b"x"),))
        for at, text in enumerate(texts, first)
    ]
    end = first + len(records)
    return task.process({("words", 1): records}, 0, ends={("words", 1): end}).sinks


def as_records(sinks: list[SinkRecord], first: int = 0) -> list[LogRecord]:
    return [
        LogRecord(first + n, s.timestamp_ms, s.key, s.value, s.headers) for n, s in enumerate(sinks)
    ]


def test_provenance_follows_a_record_s_own_headers() -> None:
    upstream, _ = tasks()
    sinks = send(upstream, "a b", "", "c")
    found = []
    for sink in sinks[:3]:
        (own, (name, data)) = sink.headers
        assert (own, name) == (("h", b"x"), PROVENANCE)
        assert data is not None
        assert source_of(data[RECORD_BYTES:]) == ("words", 1)
        found.append(unpack_record(data))
    # Time 100 stays: the running maximum, not the record's own 100 - offset.
    assert found == [(100, 100, 0, 0), (100, 100, 0, 1), (100, 100, 2, 0)]


def test_a_source_s_progress_is_marked_in_every_partition_once() -> None:
    upstream, _ = tasks()
    marks = [s for s in send(upstream, "a") if s.key is None]
    assert [s.partition for s in marks] == [0, 1]
    (name, data) = marks[0].headers[-1]
    assert name == MARK
    assert data is not None
    assert unpack_mark(data) == (ProvenanceMark(100, 100, 0), identity(("words", 1)))
    assert [s for s in send(upstream, "b", first=1) if s.key is None] == []


def test_repetitions_are_dropped_after_both_tasks_restart() -> None:
    upstream, behind = tasks()
    first = as_records(send(upstream, "a b", "c"))
    behind.process({(TOPIC, 0): first}, 0, ends={})
    again, _ = tasks()
    repeated = as_records(send(again, "a b", "c", "d"), first=len(first))
    outbox = behind.process({(TOPIC, 0): repeated}, 0, ends={})
    assert [(d.node, d.reason, d.count) for d in outbox.drops] == [(TOPIC, "duplicate", 3)]
    assert dict(behind.table("counts")) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert outbox.offsets == {(TOPIC, 0): first[-1].offset + 1 + len(repeated)}


def test_a_mark_of_a_source_that_is_gone_changes_nothing() -> None:
    """A topic that matched a pattern was deleted: its last marks may still be in the log."""
    data = pack_mark(ProvenanceMark(10**12, 10**12, 5), identity(("gone", 1)))
    gone = LogRecord(0, 10**12, None, None, ((MARK, data),))
    times = []
    for first in ([], [gone]):
        upstream, behind = tasks()
        records = [*first, *as_records(send(upstream, "a b"), first=len(first))]
        outbox = behind.process({(TOPIC, 0): records}, 0, ends={})
        assert dict(behind.table("counts")) == {"a": 1, "b": 1}
        assert outbox.offsets == {(TOPIC, 0): len(records)}
        times.append(behind.stream_times)
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ((), "has no provenance"),
        ((("other", b"x"),), "has no provenance"),
        (((PROVENANCE, bytes(RECORD_BYTES) + identity(("elsewhere", 0))),), "('elsewhere', 0)"),
    ],
)
def test_records_without_valid_provenance_are_refused(
    headers: tuple[tuple[str, bytes | None], ...], text: str
) -> None:
    _, behind = tasks()
    record = LogRecord(5, 1, b"k", b"\xa1v", headers)
    with pytest.raises(ProcessingError) as error:
        behind.process({(TOPIC, 0): [record]}, 0, ends={})
    assert text in str(error.value)


# Names of topics have no NUL, which separates a tag.
names = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=20)


@given(names, st.integers(0, 2**31 - 1), st.integers(-1, 2**62), st.integers(0, 9))
def test_sources_and_marks_round_trip_through_bytes(
    name: str, partition: int, time_ms: int, quiet_ms: int
) -> None:
    source = identity((name, partition))
    assert source_of(source) == (name, partition)
    mark = ProvenanceMark(time_ms + 1, time_ms, quiet_ms)
    assert unpack_mark(pack_mark(mark, source)) == (mark, source)


@given(st.binary(max_size=23))
def test_a_truncated_mark_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData):
        unpack_mark(data)
