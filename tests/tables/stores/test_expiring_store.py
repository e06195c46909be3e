"""ExpiringStore against a dictionary: rows expire a time after their key's newest record."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.tables.stores.store import TIME_MS_MIN
from streamlog.tables.stores.ttl_queue import ExpiringStore
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

operations = st.lists(
    st.tuples(st.just("put"), keys, values, times)
    | st.tuples(st.just("delete"), keys)
    | st.tuples(st.just("advance"), times)
    | st.tuples(st.just("range"), keys, st.none() | keys)
    | st.sampled_from([("commit",), ("restart",)]),
    max_size=40,
)


class CheckedStore:
    """An expiring store and a model of its contents."""

    def __init__(self, task_store: TaskStore) -> None:
        self.task_store = task_store
        self.store = ExpiringStore(task_store.named(), ttl_ms=LIFE_MS)
        self.rows: dict[bytes, tuple[int, bytes]] = {}
        self.bound_ms = TIME_MS_MIN

    def put(self, key: bytes, value: bytes, timestamp_ms: int) -> None:
        newest_ms = max(timestamp_ms, self.rows.get(key, (timestamp_ms, b""))[0])
        is_expired = newest_ms <= self.bound_ms
        assert self.store.put(key, value, timestamp_ms) is not is_expired
        if not is_expired:
            self.rows[key] = newest_ms, value
            assert self.store.get(key) == value

    def delete(self, key: bytes) -> None:
        self.store.delete(key)
        self.rows.pop(key, None)
        assert self.store.get(key) is None

    def advance(self, stream_time_ms: int) -> None:
        self.store.advance(stream_time_ms)
        self.bound_ms = max(self.bound_ms, stream_time_ms - LIFE_MS)
        self.rows = {key: row for key, row in self.rows.items() if row[0] > self.bound_ms}

    def range(self, low: bytes, high: bytes | None) -> None:
        expected = [
            (key, value)
            for key, (_, value) in sorted(self.rows.items())
            if low <= key and (high is None or key < high)
        ]
        assert list(self.store.range(low, high)) == expected

    def commit(self) -> None:
        self.task_store.commit()

    def restart(self) -> None:
        self.task_store.restart()
        self.store = ExpiringStore(self.task_store.named(), ttl_ms=LIFE_MS)
        if self.bound_ms > TIME_MS_MIN:
            self.store.advance(self.bound_ms + LIFE_MS)


def check(task_store: TaskStore, steps: list[Step]) -> None:
    checked = CheckedStore(task_store)
    perform(checked, steps)
    checked.range(b"", None)


@given(steps=operations)
def test_an_expiring_store_equals_a_dictionary(steps: list[Step]) -> None:
    with open_task_store("memory") as task_store:
        check(task_store, steps)


@settings(max_examples=10)
@given(steps=operations)
def test_an_expiring_store_on_disk_equals_a_dictionary(
    steps: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with open_task_store("rocksdb", tmp_path_factory.mktemp("expiring")) as task_store:
        check(task_store, [step for step in steps if step[0] != "restart"])


def test_an_updated_row_stays_and_has_one_hint() -> None:
    with open_task_store("memory") as task_store:
        store = ExpiringStore(task_store.named(), ttl_ms=8_000)
        store.put(b"once", b"v", 0)
        for at in range(0, 100_000, 100):
            store.advance(at)
            store.put(b"always", b"%d" % at, at)
            assert (store.get(b"once") is not None) is (at < 8_000)
        assert store.get(b"always") == b"99900"
        assert len(list(task_store.named().range())) == 2
        store.advance(10**9)
        assert not list(task_store.named().range())


def test_a_late_record_does_not_shorten_a_row_s_life() -> None:
    with open_task_store("memory") as task_store:
        store = ExpiringStore(task_store.named(), ttl_ms=100)
        store.put(b"k", b"new", 1_000)
        assert store.put(b"k", b"late", 500)
        store.advance(1_099)
        assert store.get(b"k") == b"late"
        store.advance(1_100)
        assert store.get(b"k") is None
        assert not store.put(b"k", b"later still", 1_000)
