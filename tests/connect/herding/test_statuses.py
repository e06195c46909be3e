"""The status topic: what its records amount to, in Kafka Connect's own form."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.herding.lifecycle import ConnectorState
from streamlog.connect.herding.statuses import (
    TRACE_BYTES_MAX,
    ConnectStatuses,
    Status,
    UsedTopic,
    short_trace,
    status_record,
    topic_record,
)

RUNNING = Status(state=ConnectorState.RUNNING, worker_id="a:1", generation=4)


def test_records_are_kafka_connects() -> None:
    use = UsedTopic("orders", "x", 1, 5)
    written = [
        status_record("x", None, RUNNING),
        status_record("x-y", 0, None),
        topic_record("orders", "x", use),
    ]
    state = {
        "state": "RUNNING",
        "worker_id": "a:1",
        "generation": 4,
        "trace": None,
        "version": None,
    }
    seen = {"name": "orders", "connector": "x", "task": 1, "discoverTimestamp": 5}
    assert [(key.decode(), value and json.loads(value)) for key, value in written] == [
        ("status-connector-x", state),
        ("status-task-x-y-0", None),
        ("status-topic-orders:connector-x", {"topic": seen}),
    ]


def test_what_was_written_is_what_is_read() -> None:
    statuses = ConnectStatuses()
    statuses.replay(*status_record("x-1", None, RUNNING))
    for task in (10, 2):
        statuses.replay(*status_record("x-1", task, RUNNING))
    statuses.replay(*topic_record("b", "x-1", UsedTopic("b", "x-1", 0, 5)))
    statuses.replay(*topic_record("a", "x-1", UsedTopic("a", "x-1", 0, 5)))
    assert statuses.connector("x-1") == RUNNING
    assert [task for task, _ in statuses.tasks_of("x-1")] == [2, 10]
    assert statuses.topics_of("x-1") == ["a", "b"]
    statuses.replay(*status_record("x-1", 2, None))
    statuses.replay(*topic_record("b", "x-1", None))
    assert [task for task, _ in statuses.tasks_of("x-1")] == [10]
    assert statuses.topics_of("x-1") == ["a"]


def test_a_worker_that_lost_a_task_does_not_report_on_it() -> None:
    statuses = ConnectStatuses()
    now = Status(state=ConnectorState.RUNNING, worker_id="b:1", generation=5)
    statuses.replay(*status_record("x", 0, now))
    failed = Status(state=ConnectorState.FAILED, worker_id="a:1", generation=4)
    assert not statuses.may_write(("x", 0), failed)
    assert statuses.may_write(("x", 1), failed)
    # The group's generations began anew: the worker's own status is replaced.
    assert statuses.may_write(
        ("x", 0), Status(state=ConnectorState.FAILED, worker_id="b:1", generation=1)
    )


def test_malformed_records_are_passed_over() -> None:
    statuses = ConnectStatuses()
    deep = b"[" * 100_000
    for key in (b"status-task-x", b"status-task-x-0", b"status-topic-x", b"\xff", None):
        for value in (
            *(b"", b"{}", b'{"state":"HAPPY","worker_id":"a","generation":1}'),
            *(b'{"more":%b' % deep, b'{"state":"RUNNING","worker_id":"\xff","generation":1}'),
        ):
            assert statuses.replay(key, value) is None
    assert not statuses.statuses


def test_records_about_what_is_not_known_leave_nothing() -> None:
    statuses = ConnectStatuses()
    assert statuses.replay(*status_record("x", 0, None)) == ("x", 0)
    assert statuses.replay(*status_record("x", None, None)) == ("x", None)
    assert statuses.replay(*topic_record("a", "x", None)) is None
    assert statuses == ConnectStatuses()


NAMES = st.sampled_from(["x", "x-1", "task-x", ""])
STATUSES = st.builds(
    lambda state, worker, generation, trace: Status(
        state=state, worker_id=worker, generation=generation, trace=trace
    ),
    st.sampled_from(ConnectorState),
    st.sampled_from(["a:1", "b:1"]),
    st.integers(1, 5),
    st.none() | st.text(max_size=5),
)
STATUS_WRITES = st.tuples(NAMES, st.none() | st.integers(0, 12), st.none() | STATUSES)
USES = st.tuples(st.sampled_from(["t", "t-1"]), NAMES, st.booleans())


@given(st.lists(STATUS_WRITES | USES, max_size=20))
def test_the_last_record_of_each_key_holds(
    writes: list[tuple[str, int | None, Status | None] | tuple[str, str, bool]],
) -> None:
    statuses = ConnectStatuses()
    known: dict[tuple[str, int | None], Status | None] = {}
    used: dict[tuple[str, str], bool] = {}
    for write in writes:
        if isinstance(write[1], str):
            topic, connector, is_used = write[0], write[1], bool(write[2])
            use = UsedTopic(topic, connector, 0, 5) if is_used else None
            statuses.replay(*topic_record(topic, connector, use))
            used[connector, topic] = is_used
        elif not isinstance(write[2], bool):
            name, task, status = write[0], write[1], write[2]
            assert statuses.replay(*status_record(name, task, status)) == (name, task)
            known[name, task] = status
    there = {key: status for key, status in known.items() if status is not None}
    assert statuses.statuses == there
    for name in {name for name, _ in known}:
        assert statuses.connector(name) == there.get((name, None))
        numbers = sorted(task for key, task in there if key == name and task is not None)
        assert [*statuses.tasks_of(name)] == [(task, there[name, task]) for task in numbers]
    for name in {name for name, _ in used}:
        topics = sorted(topic for (key, topic), is_used in used.items() if key == name and is_used)
        assert statuses.topics_of(name) == topics
    # Connectors come and go for years: what is deleted takes no memory.
    deletions = [status_record(*key, None) for key in there]
    for key, value in [*deletions, *(topic_record(topic, name, None) for name, topic in used)]:
        statuses.replay(key, value)
    assert statuses == ConnectStatuses()


@given(STATUSES, STATUSES)
def test_only_another_worker_of_an_older_generation_may_not_write(
    before: Status, after: Status
) -> None:
    statuses = ConnectStatuses()
    statuses.replay(*status_record("x", 0, before))
    is_late = after.worker_id != before.worker_id and after.generation < before.generation
    assert statuses.may_write(("x", 0), after) is not is_late


def test_a_long_trace_keeps_its_beginning_and_end() -> None:
    short = short_trace("a" + "é" * TRACE_BYTES_MAX + "z")
    assert len(short.encode()) <= TRACE_BYTES_MAX
    assert short[0] == "a"
    assert short[-1] == "z"
    assert len(short.encode()) > TRACE_BYTES_MAX - 10
    for whole in ("Traceback", "x" * TRACE_BYTES_MAX):
        assert short_trace(whole) == whole
    assert TRACE_BYTES_MAX == 16_384, "an operator reads it in an answer of the REST API"
