"""SessionStore against a dictionary: sessions by key, end and start, until they expire."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.tables.stores.store import TIME_MS_MIN
from streamlog.tables.stores.timed_stores import SessionStore
from streamlog.tables.stores.ttl_queue import BUCKETS
from tests.tables.stores.timed import (
    LIFE_MS,
    Step,
    TaskStore,
    keys,
    open_task_store,
    perform,
    times,
    values,
)

spans = st.tuples(times, st.integers(0, 60)).map(lambda span: (span[0], span[0] + span[1]))
operations = st.lists(
    st.tuples(st.just("put"), keys, spans, values)
    | st.tuples(st.just("remove"), keys, spans)
    | st.tuples(st.just("advance"), times)
    | st.tuples(st.just("find"), keys, times, times)
    | st.sampled_from([("commit",), ("restart",)]),
    max_size=40,
)


class CheckedStore:
    """A session store and a model of its contents."""

    def __init__(self, task_store: TaskStore) -> None:
        self.task_store = task_store
        self.store = SessionStore(task_store.named(), retention_ms=LIFE_MS)
        self.rows: dict[tuple[bytes, int, int], bytes] = {}
        self.bound_ms = TIME_MS_MIN

    def put(self, key: bytes, span: tuple[int, int], value: bytes) -> None:
        start_ms, end_ms = span
        is_expired = end_ms <= self.bound_ms
        assert self.store.put(key, start_ms, end_ms, value) is not is_expired
        if not is_expired:
            self.rows[key, end_ms, start_ms] = value
        assert self.store.get(key, start_ms, end_ms) == self.rows.get((key, end_ms, start_ms))

    def remove(self, key: bytes, span: tuple[int, int]) -> None:
        start_ms, end_ms = span
        self.store.remove(key, start_ms, end_ms)
        self.rows.pop((key, end_ms, start_ms), None)
        assert self.store.get(key, start_ms, end_ms) is None

    def advance(self, stream_time_ms: int) -> None:
        self.store.advance(stream_time_ms)
        self.bound_ms = max(self.bound_ms, stream_time_ms - LIFE_MS)
        self.rows = {row: value for row, value in self.rows.items() if row[1] > self.bound_ms}

    def find(self, key: bytes, earliest_end_ms: int, latest_start_ms: int) -> None:
        expected = [
            (key, start, end, value)
            for (found, end, start), value in sorted(self.rows.items())
            if found == key and end >= earliest_end_ms and start <= latest_start_ms
        ]
        assert list(self.store.find(key, earliest_end_ms, latest_start_ms)) == expected

    def commit(self) -> None:
        self.task_store.commit()

    def restart(self) -> None:
        self.task_store.restart()
        self.store = SessionStore(self.task_store.named(), retention_ms=LIFE_MS)
        if self.bound_ms > TIME_MS_MIN:
            self.store.advance(self.bound_ms + LIFE_MS)

    def everything(self) -> None:
        assert list(self.store.all()) == [
            (key, start, end, value) for (key, end, start), value in sorted(self.rows.items())
        ]


def check(task_store: TaskStore, steps: list[Step]) -> None:
    checked = CheckedStore(task_store)
    perform(checked, steps)
    checked.everything()


@given(steps=operations)
def test_a_session_store_equals_a_dictionary(steps: list[Step]) -> None:
    with open_task_store("memory") as task_store:
        check(task_store, steps)


@settings(max_examples=10)
@given(steps=operations)
def test_a_session_store_on_disk_equals_a_dictionary(
    steps: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with open_task_store("rocksdb", tmp_path_factory.mktemp("sessions")) as task_store:
        check(task_store, [step for step in steps if step[0] != "restart"])


def test_expired_sessions_are_removed_with_their_hints() -> None:
    with open_task_store("memory") as task_store:
        store = SessionStore(task_store.named(), retention_ms=8_000)
        for at in range(0, 100_000, 100):
            store.advance(at)
            store.put(b"k%d" % (at % 7), at - 50, at, b"v")
        bucket_ms = 8_000 // BUCKETS
        assert len(list(task_store.named().range())) <= (8_000 + 2 * bucket_ms) // 100 + 7 * 11
        store.advance(10**9)
        assert not list(task_store.named().range())
