"""VersionedStore against a list of all its records: the value of a key as of a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.tables.stores.store import TIME_MS_MIN
from streamlog.tables.stores.timed_stores import VersionedRecord, VersionedStore
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

few_keys = st.sampled_from([b"", b"\x00", b"a"])
operations = st.lists(
    st.tuples(st.just("put"), few_keys, st.none() | values, times)
    | st.tuples(st.just("delete"), few_keys, times)
    | st.tuples(st.just("advance"), times)
    | st.tuples(st.just("get"), keys, st.none() | times)
    | st.tuples(st.just("history"), few_keys, times, times)
    | st.sampled_from([("commit",), ("restart",)]),
    max_size=40,
)


class CheckedStore:
    """A versioned store and every record that was put into it."""

    def __init__(self, task_store: TaskStore) -> None:
        self.task_store = task_store
        self.store = VersionedStore(task_store.named(), history_retention_ms=LIFE_MS)
        self.taken: dict[bytes, dict[int, bytes | None]] = {}
        self.stream_time_ms = TIME_MS_MIN

    @property
    def least_ms(self) -> int:
        """The earliest time of the kept history."""
        return max(self.stream_time_ms - LIFE_MS, TIME_MS_MIN)

    def put(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        is_known = timestamp_ms >= self.least_ms
        assert self.store.put(key, value, timestamp_ms) is is_known
        if is_known:
            self.taken.setdefault(key, {})[timestamp_ms] = value

    def delete(self, key: bytes, timestamp_ms: int) -> None:
        assert self.store.delete(key, timestamp_ms) == self.expected(key, timestamp_ms)
        if timestamp_ms >= self.least_ms:
            self.taken.setdefault(key, {})[timestamp_ms] = None

    def advance(self, stream_time_ms: int) -> None:
        self.store.advance(stream_time_ms)
        self.stream_time_ms = max(self.stream_time_ms, stream_time_ms)

    def get(self, key: bytes, as_of_ms: int | None) -> None:
        assert self.store.get(key, as_of_ms) == self.expected(key, as_of_ms)

    def history(self, key: bytes, from_ms: int, to_ms: int) -> None:
        least_ms = max(from_ms, self.least_ms)
        expected = [
            record
            for record in self.records(key)
            if record.timestamp_ms <= to_ms
            and (record.valid_to_ms is None or record.valid_to_ms > least_ms)
        ]
        assert list(self.store.history(key, from_ms, to_ms)) == expected

    def commit(self) -> None:
        self.task_store.commit()

    def restart(self) -> None:
        self.task_store.restart()
        self.store = VersionedStore(self.task_store.named(), history_retention_ms=LIFE_MS)
        if self.stream_time_ms > TIME_MS_MIN:
            self.store.advance(self.stream_time_ms)

    def records(self, key: bytes) -> list[VersionedRecord]:
        """Return every value that the key ever had, newest first."""
        taken, valid_to_ms = self.taken.get(key, {}), None
        found = []
        for at in sorted(taken, reverse=True):
            if (value := taken[at]) is not None:
                found.append(VersionedRecord(value, at, valid_to_ms))
            valid_to_ms = at
        return found

    def expected(self, key: bytes, as_of_ms: int | None) -> VersionedRecord | None:
        known = [at for at in self.taken.get(key, {}) if as_of_ms is None or at <= as_of_ms]
        if not known:
            return None
        is_newest = max(known) == max(self.taken[key])
        if as_of_ms is not None and as_of_ms < self.least_ms and not is_newest:
            return None
        return next((r for r in self.records(key) if r.timestamp_ms == max(known)), None)

    def everything(self) -> None:
        for key in self.taken:
            for as_of_ms in (None, *range(-60, 260, 7)):
                self.get(key, as_of_ms)
            self.history(key, -1_000, 1_000)


def check(task_store: TaskStore, steps: list[Step]) -> None:
    checked = CheckedStore(task_store)
    perform(checked, steps)
    checked.everything()


@given(steps=operations)
def test_a_versioned_store_equals_a_list_of_records(steps: list[Step]) -> None:
    with open_task_store("memory") as task_store:
        check(task_store, steps)


@settings(max_examples=10)
@given(steps=operations)
def test_a_versioned_store_on_disk_equals_a_list_of_records(
    steps: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with open_task_store("rocksdb", tmp_path_factory.mktemp("versions")) as task_store:
        check(task_store, [step for step in steps if step[0] != "restart"])


def test_a_late_record_takes_effect_at_its_own_time() -> None:
    with open_task_store("memory") as task_store:
        store = VersionedStore(task_store.named(), history_retention_ms=1_000)
        store.put(b"UA", b"United", 100)
        store.put(b"UA", b"United Airlines", 300)
        store.put(b"UA", None, 200)
        assert store.get(b"UA") == VersionedRecord(b"United Airlines", 300, None)
        assert store.get(b"UA", 199) == VersionedRecord(b"United", 100, 200)
        assert store.get(b"UA", 250) is None
        assert store.get(b"UA", 99) is None


def test_expired_versions_are_removed_except_the_newest() -> None:
    with open_task_store("memory") as task_store:
        store = VersionedStore(task_store.named(), history_retention_ms=8_000)
        for at in range(0, 100_000, 100):
            store.advance(at)
            store.put(b"k", b"%d" % at, at)
            store.put(b"gone", None if at >= 50_000 else b"v", at)
        assert store.get(b"k", 92_000) == VersionedRecord(b"92000", 92_000, 92_100)
        assert len(list(task_store.named().range())) < 2 * (100 + 12)
        store.advance(10**9)
        assert store.get(b"k") == VersionedRecord(b"99900", 99_900, None)
        assert store.get(b"k", 99_900) is not None
        assert store.get(b"k", 99_899) is None
        assert len(list(task_store.named().range())) == 1
