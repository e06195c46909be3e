"""ExpiringStore against a dictionary: rows expire a time after their key's newest record."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.tables.stores.store import TIME_MS_MIN
from streamlog.tables.stores.ttl_queue import FOREVER_MS, ExpiringStore
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
    | st.tuples(st.just("put_until"), keys, values, times, st.integers(1, 3 * LIFE_MS))
    | st.tuples(st.just("delete"), keys)
    | st.tuples(st.just("advance"), times)
    | st.tuples(st.just("range"), keys, st.none() | keys)
    | st.sampled_from([("commit",), ("restart",)]),
    max_size=40,
)


class CheckedStore:
    """An expiring store and a model of its contents: the end and the value of each row."""

    def __init__(self, task_store: TaskStore, life_ms: int = LIFE_MS) -> None:
        self.task_store, self.life_ms = task_store, life_ms
        self.store = self.made()
        self.rows: dict[bytes, tuple[int, bytes]] = {}
        self.now_ms = TIME_MS_MIN

    def made(self) -> ExpiringStore:
        return ExpiringStore(self.task_store.named(), ttl_ms=self.life_ms, bucket_ms_max=3)

    def put(self, key: bytes, value: bytes, timestamp_ms: int) -> None:
        end_ms = max(timestamp_ms + self.life_ms, self.rows.get(key, (TIME_MS_MIN, b""))[0])
        is_kept = self.store.put(key, value, timestamp_ms)
        self._written(key, value, end_ms, is_kept=is_kept)

    def put_until(self, key: bytes, value: bytes, timestamp_ms: int, ttl_ms: int) -> None:
        is_kept = self.store.put(key, value, timestamp_ms, ttl_ms=ttl_ms)
        self.rows.pop(key, None)
        self._written(key, value, timestamp_ms + ttl_ms, is_kept=is_kept)

    def _written(self, key: bytes, value: bytes, end_ms: int, *, is_kept: bool) -> None:
        assert is_kept is (end_ms > self.now_ms)
        if is_kept:
            self.rows[key] = end_ms, value
        assert self.store.get(key) == (value if is_kept else None)

    def delete(self, key: bytes) -> None:
        self.store.delete(key)
        self.rows.pop(key, None)
        assert self.store.get(key) is None

    def advance(self, stream_time_ms: int) -> None:
        self.store.advance(stream_time_ms)
        self.now_ms = max(self.now_ms, stream_time_ms)
        self.rows = {key: row for key, row in self.rows.items() if row[0] > self.now_ms}

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
        self.store = self.made()
        if self.now_ms > TIME_MS_MIN:
            self.store.advance(self.now_ms)


def check(task_store: TaskStore, steps: list[Step], life_ms: int = LIFE_MS) -> None:
    checked = CheckedStore(task_store, life_ms)
    perform(checked, steps)
    checked.range(b"", None)
    # Whatever can expire leaves the store; rows that live forever have no hints.
    checked.advance(1_000_000)
    checked.range(b"", None)
    assert len(list(task_store.named().range())) == len(checked.rows)


@given(steps=operations, life_ms=st.sampled_from([LIFE_MS, FOREVER_MS]))
def test_an_expiring_store_equals_a_dictionary(steps: list[Step], life_ms: int) -> None:
    with open_task_store("memory") as task_store:
        check(task_store, steps, life_ms)


@given(steps=operations, before_ms=st.integers(1, 60), after_ms=st.integers(1, 60))
def test_an_end_stays_where_it_is_when_the_time_to_live_of_the_store_changes(
    steps: list[Step], before_ms: int, after_ms: int
) -> None:
    with open_task_store("memory") as task_store:
        checked = CheckedStore(task_store, before_ms)
        perform(checked, [step for step in steps if step[0] != "put"])
        checked.life_ms = after_ms
        checked.restart()
        perform(checked, steps)
        checked.range(b"", None)
        checked.advance(1_000_000)
        assert not list(task_store.named().range())


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
