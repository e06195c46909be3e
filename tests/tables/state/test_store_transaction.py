"""StoreTransaction against two dictionaries: committed and pending rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamlog.tables.state.changelog import (
    TaskProgress,
    changelog_offset,
    checkpoint,
    stored_progress,
)
from streamlog.tables.state.store_transaction import ENTRY_BYTES, StoreTransaction
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import Change, Changes

keys = st.sampled_from([bytes([n]) for n in range(1, 6)]) | st.binary(max_size=2).map(
    b"\x03".__add__
)
values = st.binary(max_size=4)


class Model(RuleBasedStateMachine):
    """Any order of writes, reads, open commits and rollbacks."""

    cache_bytes = 0

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.transaction = StoreTransaction(self.store, cache_bytes=self.cache_bytes)
        self.stored: dict[bytes, bytes] = {}
        self.seen: dict[bytes, bytes] = {}
        self.sent: Changes | None = None
        self.offset = 0

    @rule(key=keys, value=values)
    def put(self, key: bytes, value: bytes) -> None:
        self.transaction.put(key, value)
        self.seen[key] = value

    @rule(changes=st.lists(st.tuples(keys, st.none() | values), max_size=6))
    def write(self, changes: list[Change]) -> None:
        self.transaction.write(iter(changes))
        for key, value in changes:
            if value is None:
                self.seen.pop(key, None)
            else:
                self.seen[key] = value

    @rule(changes=st.dictionaries(keys, st.none() | values, max_size=6).map(lambda d: [*d.items()]))
    def write_columns(self, changes: list[Change]) -> None:
        self.transaction.write(Changes.of(changes))
        for key, value in changes:
            self.seen.pop(key, None)
            if value is not None:
                self.seen[key] = value

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        self.transaction.delete(key)
        self.seen.pop(key, None)

    @rule(low=keys, high=keys)
    def delete_range(self, low: bytes, high: bytes) -> None:
        self.transaction.delete_range(low, high)
        self.seen = {k: v for k, v in self.seen.items() if not low <= k < high}

    @rule(key=keys)
    def get(self, key: bytes) -> None:
        assert self.transaction.get(key) == self.seen.get(key)

    @rule(low=keys, high=st.none() | keys)
    def scan(self, low: bytes, high: bytes | None) -> None:
        expected = [(k, v) for k, v in self.seen.items() if low <= k and (not high or k < high)]
        assert list(self.transaction.range(low, high)) == sorted(expected)

    @precondition(lambda self: self.sent is None)
    @rule()
    def send(self) -> None:
        changes = self.transaction.changes()
        assert len(changes) == len({key for key, _ in changes})
        self.offset += len(changes) + 1
        self.sent = checkpoint(changes, TaskProgress(offsets={("t", 0): self.offset}))

    @precondition(lambda self: self.sent is not None)
    @rule()
    def commit(self) -> None:
        assert self.sent is not None
        self.transaction.commit(self.sent, next_offset=self.offset)
        for key, value in list(self.sent)[:-1]:
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value
        self.sent = None
        assert changelog_offset(self.store) == self.offset
        assert stored_progress(self.store) == TaskProgress(offsets={("t", 0): self.offset})

    @precondition(lambda self: self.sent is None)
    @rule()
    def rollback(self) -> None:
        self.transaction.rollback()
        self.seen = dict(self.stored)
        assert not self.transaction.changes()

    @invariant()
    def nothing_reaches_the_store_before_its_commit(self) -> None:
        assert dict(self.store.range(b"\x01")) == self.stored

    @invariant()
    def pending_changes_count_towards_the_size(self) -> None:
        changes = self.transaction.changes()
        expected = sum(ENTRY_BYTES + len(key) + len(value or b"") for key, value in changes)
        assert self.transaction.size_bytes == expected
        pending = {**self.stored, **dict(changes)}
        assert {k: v for k, v in pending.items() if v is not None} == self.seen


class CachedModel(Model):
    """With a cache of about eight entries, which evicts all the time."""

    cache_bytes = 8 * (ENTRY_BYTES + 3)


TestModel = Model.TestCase
TestCachedModel = CachedModel.TestCase


class CountedStore(MemoryStore):
    """A store that counts its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(key)


def test_a_key_in_use_is_read_from_the_store_once() -> None:
    store = CountedStore()
    transaction = StoreTransaction(store, cache_bytes=100_000)
    for offset in range(1, 100):
        count = int(transaction.get(b"k") or 0)
        assert transaction.get(b"absent") is None
        transaction.put(b"k", b"%d" % (count + 1))
        records = checkpoint(transaction.changes(), TaskProgress())
        transaction.commit(records, next_offset=offset)
    assert transaction.get(b"k") == b"99"
    assert store.reads == 2


def test_the_cache_keeps_keys_in_use_within_its_bound() -> None:
    store = CountedStore()
    for number in range(10_000):
        store.put(number.to_bytes(4), bytes(100))
    transaction = StoreTransaction(store, cache_bytes=100_000)
    hot = (1).to_bytes(4)
    for number in range(10_000):
        transaction.get(number.to_bytes(4))
        transaction.get(hot)
    assert store.reads == 10_000
    cache = transaction._cache
    assert (len(cache._young) + len(cache._old)) * (ENTRY_BYTES + 104) <= 100_000


def test_writes_do_not_evict_read_keys_from_the_cache() -> None:
    store = CountedStore()
    store.put(b"read", b"1")
    transaction = StoreTransaction(store, cache_bytes=2_000)
    assert transaction.get(b"read") == b"1"
    transaction.write([(number.to_bytes(4), bytes(100)) for number in range(1_000)])
    transaction.commit(checkpoint(transaction.changes(), TaskProgress()), next_offset=1)
    assert transaction.get(b"read") == b"1"
    assert store.reads == 1


def test_a_value_larger_than_the_cache_is_never_stale() -> None:
    transaction = StoreTransaction(MemoryStore(), cache_bytes=2_000)
    for offset, value in enumerate([b"small", bytes(5_000), b"tiny"], 1):
        transaction.put(b"k", value)
        transaction.commit(checkpoint(transaction.changes(), TaskProgress()), next_offset=offset)
        assert transaction.get(b"k") == value


def test_writes_during_a_commit_stay_pending() -> None:
    transaction = StoreTransaction(MemoryStore())
    transaction.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    sent = checkpoint(transaction.changes(), TaskProgress())
    transaction.put(b"a", b"2")
    transaction.delete(b"b")
    transaction.commit(sent, next_offset=4)
    assert list(transaction.changes()) == [(b"a", b"2"), (b"b", None)]
    transaction.rollback()
    assert [transaction.get(key) for key in (b"a", b"b", b"c")] == [b"1", b"1", b"1"]


def test_a_scan_allows_writes_during_iteration() -> None:
    transaction = StoreTransaction(MemoryStore())
    transaction.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    transaction.commit(checkpoint(transaction.changes(), TaskProgress()), next_offset=4)
    transaction.put(b"bb", b"1")

    def expire() -> Iterator[bytes]:
        for key, _ in transaction.range(b"a", b"c"):
            transaction.delete(key)
            yield key

    assert list(expire()) == [b"a", b"b", b"bb"]
    assert list(transaction.range(b"\x01")) == [(b"c", b"1")]


@pytest.mark.parametrize("cache_bytes", [0, 100_000])
def test_a_rolled_back_write_is_not_in_the_cache(cache_bytes: int) -> None:
    transaction = StoreTransaction(MemoryStore(), cache_bytes=cache_bytes)
    assert transaction.get(b"k") is None
    transaction.put(b"k", b"1")
    transaction.rollback()
    assert transaction.get(b"k") is None
    assert transaction.size_bytes == 0
