"""WindowStore against a dictionary: windows by key and start, without expired ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.tables.stores.store import TIME_MS_MAX, TIME_MS_MIN
from streamlog.tables.stores.timed_stores import WindowStore
from streamlog.tables.stores.ttl_queue import BUCKETS, HINTS
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
    st.tuples(st.just("put"), keys, times, st.none() | values)
    | st.tuples(st.just("advance"), times)
    | st.tuples(st.just("fetch"), keys, times, times)
    | st.tuples(st.just("fetch_range"), st.none() | keys, st.none() | keys, times, times)
    | st.sampled_from([("commit",), ("restart",)]),
    max_size=40,
)


class CheckedStore:
    """A window store and a model of its contents."""

    def __init__(self, task_store: TaskStore) -> None:
        self.task_store = task_store
        self.store = WindowStore(task_store.named(), retention_ms=LIFE_MS)
        self.rows: dict[tuple[bytes, int], bytes] = {}
        self.bound_ms = TIME_MS_MIN

    def put(self, key: bytes, start_ms: int, value: bytes | None) -> None:
        is_expired = start_ms <= self.bound_ms
        assert self.store.put(key, start_ms, value) is not is_expired
        if not is_expired:
            self.rows.pop((key, start_ms), None)
            if value is not None:
                self.rows[key, start_ms] = value
        assert self.store.get(key, start_ms) == self.rows.get((key, start_ms))

    def advance(self, stream_time_ms: int) -> None:
        self.store.advance(stream_time_ms)
        self.bound_ms = max(self.bound_ms, stream_time_ms - LIFE_MS)
        self.rows = {row: value for row, value in self.rows.items() if row[1] > self.bound_ms}

    def fetch(self, key: bytes, from_ms: int, to_ms: int) -> None:
        expected = [
            (start, value)
            for (found, start), value in sorted(self.rows.items())
            if found == key and from_ms <= start <= to_ms
        ]
        assert list(self.store.fetch(key, from_ms, to_ms)) == expected

    def fetch_range(self, low: bytes | None, high: bytes | None, from_ms: int, to_ms: int) -> None:
        expected = [
            (key, start, value)
            for (key, start), value in sorted(self.rows.items())
            if (low is None or low <= key) and (high is None or key <= high)
            if from_ms <= start <= to_ms
        ]
        found = self.store.fetch_range(low, high, from_ms=from_ms, to_ms=to_ms)
        assert list(found) == expected

    def commit(self) -> None:
        self.task_store.commit()

    def restart(self) -> None:
        """Restart with the declared retention; the bucket size may change."""
        self.task_store.restart()
        self.store = WindowStore(self.task_store.named(), retention_ms=LIFE_MS)
        if self.bound_ms > TIME_MS_MIN:
            self.store.advance(self.bound_ms + LIFE_MS)

    def everything(self) -> None:
        self.fetch_range(None, None, TIME_MS_MIN, TIME_MS_MAX)


def check(task_store: TaskStore, steps: list[Step]) -> None:
    checked = CheckedStore(task_store)
    perform(checked, steps)
    checked.everything()


@given(steps=operations)
def test_a_window_store_equals_a_dictionary(steps: list[Step]) -> None:
    with open_task_store("memory") as task_store:
        check(task_store, steps)


@settings(max_examples=10)
@given(steps=operations)
def test_a_window_store_on_disk_equals_a_dictionary(
    steps: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with open_task_store("rocksdb", tmp_path_factory.mktemp("windows")) as task_store:
        check(task_store, [step for step in steps if step[0] != "restart"])


def test_expired_windows_are_removed_with_their_hints() -> None:
    with open_task_store("memory") as task_store:
        store = WindowStore(task_store.named(), retention_ms=8_000)
        bucket_ms = 8_000 // BUCKETS
        for at in range(0, 100_000, 100):
            store.advance(at)
            store.put(b"k%d" % (at % 7), at, b"v")
            if at % 5_000 == 0:
                task_store.commit()
        kept = [row for row, _ in task_store.named().range()]
        rows, hints = (
            [row for row in kept if not row.startswith(HINTS)],
            [row for row in kept if row.startswith(HINTS)],
        )
        assert 80 <= len(rows) <= (8_000 + 2 * bucket_ms) // 100
        assert len(hints) <= 7 * (BUCKETS + 3)
        store.advance(10**9)
        assert not list(task_store.named().range())


def test_windows_in_buckets_of_an_older_size_are_found(tmp_path: Path) -> None:
    """The retention changes between two versions of an app."""
    with open_task_store("rocksdb", tmp_path) as task_store:
        store = WindowStore(task_store.named(), retention_ms=80_000)
        for at in range(0, 80_000, 1_000):
            store.put(b"k", at, b"v")
        store = WindowStore(task_store.named(), retention_ms=7_000)
        store.advance(80_000)
        assert [start for start, _ in store.fetch(b"k")] == list(range(74_000, 80_000, 1_000))
        store.advance(200_000)
        assert not list(task_store.named().range())
