"""The status topic: what its records amount to, in Kafka Connect's own form."""

from __future__ import annotations

import json

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
    for key in (b"status-task-x", b"status-task-x-0", b"status-topic-x", b"\xff", None):
        for value in (b"", b"{}", b'{"state":"HAPPY","worker_id":"a","generation":1}'):
            statuses.replay(key, value)
    assert not statuses.statuses


def test_a_long_trace_keeps_its_beginning_and_end() -> None:
    short = short_trace("a" + "é" * TRACE_BYTES_MAX + "z")
    assert len(short.encode()) <= TRACE_BYTES_MAX
    assert short[0] == "a"
    assert short[-1] == "z"
    assert short_trace("Traceback") == "Traceback"
