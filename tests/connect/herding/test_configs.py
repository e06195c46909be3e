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
DEEP = b"[" * 100_000 + b"]" * 100_000
MALFORMED_VALUES = [
    *(b"{}", b"[]", b'{"state":"HAPPY"}', b'{"tasks":-1}', b'{"tasks":1}'),
    *(b'{"properties":{"x":"\xff"}}', b'{"properties":{"x":"y"},"more":%b}' % DEEP),
    *(b'{"tasks":1,"more":%b}' % DEEP, b'{"level":"X","more":%b}' % DEEP, b"\xff"),
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


def test_a_null_forgets_what_its_key_has_said() -> None:
    level, target = level_record("root", "DEBUG"), target_record("a", TargetState.PAUSED)
    session = session_key_record(SessionKey("a2V5", "HmacSHA256", 5))
    assert ConnectConfigs().next_offset == 0
    configs = replayed([connector_record("a", {}), level, target, session])
    assert replayed([session]).session_key == SessionKey("a2V5", "HmacSHA256", 5)
    # The second time there is nothing left to forget.
    for offset in (4, 5):
        for (key, _), about in ((level, None), (target, "a"), (session, None)):
            assert configs.replay(key, None, offset) == about
        assert (configs.levels, configs.targets, configs.session_key) == ({}, {}, None)
        assert configs.target("a") is TargetState.STARTED
    assert configs.connectors == {"a": {}}


def test_a_connector_that_is_created_again_has_nothing_of_the_first() -> None:
    first, *_ = dealt = task_records("a", [{"n": "0"}])
    configs = replayed([connector_record("a", {}), *dealt, dealt[-1], first])
    assert configs.inconsistent == {"a"}
    configs.replay(*restart_record("a", RestartRequest()), 5)
    for offset, record in enumerate(deletion_records("a"), 6):
        assert configs.replay(*record, offset) == "a"
    assert (configs.inconsistent, configs.restarts) == (set(), {})
    configs.replay(*connector_record("a", {}), 8)
    assert not configs.inconsistent, "it was not dealt yet"
    # The task that was written before its deletion is none of its own.
    configs.replay(*dealt[-1], 9)
    assert (configs.tasks, configs.inconsistent) == ({}, {"a"})


def test_a_dealing_behind_its_commits_null_begins_anew() -> None:
    first, commit = task_records("a", [{"n": "0"}])
    configs = replayed([connector_record("a", {}), first])
    assert configs.replay(commit[0], None, 2) == "a"
    assert not configs.inconsistent
    configs.replay(*commit, 3)
    assert (configs.tasks, configs.inconsistent) == ({}, {"a"})


def test_a_dealing_of_no_connector_is_passed_over() -> None:
    assert replayed(task_records("a", [{"n": "0"}])).tasks == {}
    configs = replayed(
        [connector_record("a", {}), *task_records("a", []), connector_record("a", {})]
    )
    assert (configs.tasks, configs.inconsistent) == ({"a": []}, set())


def test_each_record_says_which_connector_it_is_about() -> None:
    configs = ConnectConfigs()
    records = [
        connector_record("a-1", {}),
        *task_records("a-1", [{}]),
        target_record("a-1", TargetState.PAUSED),
        restart_record("a-1", RestartRequest()),
    ]
    assert {configs.replay(*record, 0) for record in records} == {"a-1"}
    for key in (b"restart-connector-a", b"task-a-0", b"other", None):
        assert configs.replay(key, None, 0) is None


def test_what_java_leaves_out_is_read_as_it_means_it() -> None:
    configs = replayed(
        [
            (b"connector-a", b'{"properties":{"x":"1","y":null}}'),
            (b"restart-connector-a", b"{}"),
            (b"target-state-a", b'{"state":"PAUSED","state.v2":"STOPPED"}'),
        ]
    )
    assert configs.connectors == {"a": {"x": "1"}}
    assert configs.restarts == {"a": (1, RestartRequest(include_tasks=False, only_failed=False))}
    assert configs.target("a") is TargetState.STOPPED


def test_a_worker_before_kip_875_wrote_one_state() -> None:
    configs = replayed([(b"target-state-a", b'{"state":"PAUSED"}')])
    assert configs.target("a") is TargetState.PAUSED


@given(
    st.sampled_from(MALFORMED_KEYS),
    st.none() | st.binary(max_size=20) | st.sampled_from(MALFORMED_VALUES),
)
def test_a_malformed_record_is_passed_over(key: bytes, value: bytes | None) -> None:
    records = [
        connector_record("a", {"n": "0"}),
        *task_records("a", [{"n": "0"}]),
        target_record("a", TargetState.PAUSED),
        restart_record("a", RestartRequest()),
        level_record("a", "DEBUG"),
        session_key_record(SessionKey("a2V5", "HmacSHA256", 5)),
    ]
    configs, same = replayed(records), replayed(records)
    about = configs.replay(key, value, 9)
    assert configs.next_offset == 10
    if value is not None and about is None:
        same.next_offset, same.inconsistent = configs.next_offset, configs.inconsistent
        assert configs == same
    configs.replay(None, value, 10)
    assert configs.next_offset == 11


def test_a_commit_of_more_tasks_than_there_can_be_takes_no_memory() -> None:
    for count in (-1, 10**15):
        configs = replayed([connector_record("a", {}), *task_records("a", [{"n": "0"}])])
        assert configs.replay(b"commit-a", b'{"tasks":%d}' % count, 9) == "a"
        assert configs.tasks == {"a": [{"n": "0"}]}
        assert configs.inconsistent == {"a"}


NAMES = st.sampled_from(["a", "a-1", "task-a", "target-state-a"])
SETTINGS = st.dictionaries(st.sampled_from("xy"), st.sampled_from("01"), min_size=1)
WRITES = st.one_of(
    # As a leader writes them: settings, and the dealing that follows.
    st.builds(
        lambda name, settings, tasks: [
            connector_record(name, settings),
            *task_records(name, tasks),
        ],
        NAMES,
        SETTINGS,
        st.lists(SETTINGS, max_size=3),
    ),
    st.builds(task_records, NAMES, st.lists(SETTINGS, max_size=3)),
    st.builds(
        lambda name, target: [target_record(name, target)], NAMES, st.sampled_from(TargetState)
    ),
    st.builds(lambda name: [*deletion_records(name)], NAMES),
    st.builds(
        lambda name, wish: [restart_record(name, RestartRequest(wish))], NAMES, st.booleans()
    ),
    st.builds(lambda name, level: [level_record(name, level)], NAMES, st.sampled_from("XY")),
    st.builds(lambda at: [session_key_record(SessionKey("k", "a", at))], st.integers(0, 3)),
)


@given(st.lists(WRITES, max_size=12), st.data())
def test_a_compacted_topic_amounts_to_the_same(
    writes: list[list[ConfigRecord]], data: st.DataObject
) -> None:
    log = [record for records in writes for record in records]
    clean_end = data.draw(st.integers(0, len(log)))
    last = {key: offset for offset, (key, _) in enumerate(log[:clean_end])}
    compacted = ConnectConfigs()
    for offset, (key, value) in enumerate(log):
        if offset < clean_end and (last[key] != offset or value is None):
            continue
        compacted.replay(key, value, offset)
    whole = replayed(log)
    assert {name: whole.target(name) for name in whole.connectors} == {
        name: compacted.target(name) for name in compacted.connectors
    }
    assert compacted.connectors == whole.connectors
    assert compacted.tasks == whole.tasks
    assert compacted.task_count() == sum(map(len, whole.tasks.values()))
    assert compacted.inconsistent & whole.connectors.keys() == whole.inconsistent == set()
    assert (compacted.levels, compacted.session_key) == (whole.levels, whole.session_key)
    for name in whole.restarts.keys() & whole.connectors.keys():
        assert compacted.restarts[name] == whole.restarts[name]
