"""The configs topic: what its records amount to, in Kafka Connect's own form."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.herding.configs import (
    ConfigRecord,
    ConnectConfigs,
    RestartRequest,
    SessionKey,
    connector_record,
    deletion_records,
    level_record,
    restart_record,
    session_key_record,
    target_record,
    task_records,
)
from streamlog.connect.herding.lifecycle import TargetState

MALFORMED_KEYS = [
    *(b"connector-a", b"task-a-0", b"task-a-x", b"task-", b"commit-a", b"target-state-a"),
    *(b"restart-connector-a", b"logger-cluster-a", b"session-key", b"tasks-fencing-a", b"\xff"),
]


def replayed(records: Iterable[ConfigRecord]) -> ConnectConfigs:
    configs = ConnectConfigs()
    for offset, (key, value) in enumerate(records):
        configs.replay(key, value, offset)
    return configs


def test_records_are_kafka_connects() -> None:
    written = [
        connector_record("a-1", {"connector.class": "Tail"}),
        *task_records("a-1", [{"task.parts": "[]"}]),
        target_record("a-1", TargetState.STOPPED),
        restart_record("a-1", RestartRequest(include_tasks=True)),
        level_record("root", "DEBUG"),
        session_key_record(SessionKey("a2V5", "HmacSHA256", 5)),
        *deletion_records("a-1"),
    ]
    assert [(key.decode(), value and json.loads(value)) for key, value in written] == [
        ("connector-a-1", {"properties": {"connector.class": "Tail"}}),
        ("task-a-1-0", {"properties": {"task.parts": "[]"}}),
        ("commit-a-1", {"tasks": 1}),
        ("target-state-a-1", {"state": "PAUSED", "state.v2": "STOPPED"}),
        ("restart-connector-a-1", {"include-tasks": True, "only-failed": False}),
        ("logger-cluster-root", {"level": "DEBUG"}),
        ("session-key", {"key": "a2V5", "algorithm": "HmacSHA256", "creation-timestamp": 5}),
        ("target-state-a-1", None),
        ("connector-a-1", None),
    ]


def test_what_was_written_is_what_is_read() -> None:
    configs = replayed(
        [
            connector_record("a-1", {"connector.class": "Tail"}),
            *task_records("a-1", [{"n": "0"}, {"n": "1"}]),
            target_record("a-1", TargetState.PAUSED),
            restart_record("a-1", RestartRequest(only_failed=True)),
            level_record("root", "DEBUG"),
        ]
    )
    assert configs.connectors == {"a-1": {"connector.class": "Tail"}}
    assert configs.tasks == {"a-1": [{"n": "0"}, {"n": "1"}]}
    assert configs.target("a-1") is TargetState.PAUSED
    assert configs.restarts == {"a-1": (5, RestartRequest(only_failed=True))}
    assert configs.levels == {"root": "DEBUG"}
    assert configs.next_offset == 7
    assert not configs.inconsistent


def test_tasks_count_only_with_their_commit() -> None:
    first, *_ = task_records("a", [{"n": "0"}])
    configs = replayed([connector_record("a", {}), first])
    assert configs.tasks == {}


def test_a_commit_that_lacks_tasks_keeps_the_dealing_before() -> None:
    dealt = task_records("a", [{"n": "0"}, {"n": "1"}])
    configs = replayed([connector_record("a", {}), *dealt, dealt[0], dealt[-1]])
    assert configs.tasks == {"a": [{"n": "0"}, {"n": "1"}]}
    assert configs.inconsistent == {"a"}
    configs.replay(*dealt[0], 9)
    configs.replay(*dealt[1], 10)
    configs.replay(*dealt[2], 11)
    assert not configs.inconsistent


def test_a_deleted_connector_leaves_nothing() -> None:
    configs = replayed(
        [
            connector_record("a", {}),
            *task_records("a", [{}]),
            target_record("a", TargetState.PAUSED),
            *deletion_records("a"),
        ]
    )
    assert (configs.connectors, configs.tasks, configs.targets) == ({}, {}, {})


def test_a_worker_before_kip_875_wrote_one_state() -> None:
    configs = replayed([(b"target-state-a", b'{"state":"PAUSED"}')])
    assert configs.target("a") is TargetState.PAUSED


@given(
    st.sampled_from(MALFORMED_KEYS),
    st.none() | st.binary(max_size=20) | st.sampled_from([b"{}", b"[]", b'{"state":"HAPPY"}']),
)
def test_a_malformed_record_is_passed_over(key: bytes, value: bytes | None) -> None:
    configs = ConnectConfigs()
    configs.replay(key, value, 4)
    configs.replay(None, value, 5)
    assert configs.next_offset == 6
