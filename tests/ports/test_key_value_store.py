"""The KeyValueStore port: one suite over every implementation, with a dictionary as oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.errors import UsageError
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.state.store_transaction import DeferredStore, StoreTransaction, WaitingBudget
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import Change, KeyValueStore, NamedStore, StoreSpec

Operation = Callable[[KeyValueStore, dict[bytes, bytes]], None]
BUDGET = RocksBudget(16 << 20)
IMPLEMENTATIONS: dict[str, Callable[[str], KeyValueStore]] = {
    "memory": lambda _path: MemoryStore(),
    "rocks": lambda path: RocksStore.open(path, budget=BUDGET),
    "deferred": lambda _path: DeferredStore(MemoryStore()),
    "deferred-rocks": lambda path: DeferredStore(
        RocksStore.open(path, budget=BUDGET), WaitingBudget(500)
    ),
    "transaction": lambda _path: StoreTransaction(MemoryStore()),
    "transaction-rocks": lambda path: StoreTransaction(
        RocksStore.open(path, budget=BUDGET), cache_bytes=2_000
    ),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueStore]:
    opened = IMPLEMENTATIONS[request.param](str(tmp_path / "state"))
    yield opened
    opened.close()


# Few and short keys, so that operations collide; both ends of the order are among them.
keys = st.binary(max_size=2) | st.sampled_from([b"", b"a", b"ab", b"b", b"\xff", b"\xff\xff"])
values = st.binary(max_size=5)
changes = st.lists(st.tuples(keys, st.none() | values), max_size=8)


def put(key: bytes, value: bytes) -> Operation:
    def run(store: KeyValueStore, oracle: dict[bytes, bytes]) -> None:
        store.put(key, value)
        oracle[key] = value

    return run


def delete(key: bytes) -> Operation:
    def run(store: KeyValueStore, oracle: dict[bytes, bytes]) -> None:
        store.delete(key)
        oracle.pop(key, None)

    return run


def delete_range(low: bytes, high: bytes | None) -> Operation:
    def run(store: KeyValueStore, oracle: dict[bytes, bytes]) -> None:
        store.delete_range(low, high)
        for key in within(oracle, low, high):
            del oracle[key]

    return run


def write(batch: list[Change]) -> Operation:
    def run(store: KeyValueStore, oracle: dict[bytes, bytes]) -> None:
        store.write(iter(batch))
        for key, value in batch:
            if value is None:
                oracle.pop(key, None)
            else:
                oracle[key] = value

    return run


def check(key: bytes, low: bytes, high: bytes | None) -> Operation:
    def run(store: KeyValueStore, oracle: dict[bytes, bytes]) -> None:
        assert store.get(key) == oracle.get(key)
        expected = [(one, oracle[one]) for one in within(oracle, low, high)]
        assert list(store.range(low, high)) == expected

    return run


def check_all(wanted: list[bytes]) -> Operation:
    def run(store: KeyValueStore, oracle: dict[bytes, bytes]) -> None:
        assert store.get_all(wanted) == [oracle.get(key) for key in wanted]

    return run


def within(oracle: dict[bytes, bytes], low: bytes, high: bytes | None) -> list[bytes]:
    return sorted(key for key in oracle if key >= low and (high is None or key < high))


operations = st.lists(
    st.one_of(
        st.builds(put, keys, values),
        st.builds(delete, keys),
        st.builds(delete_range, keys, st.none() | keys),
        st.builds(write, changes),
        st.builds(check, keys, keys, st.none() | keys),
        st.builds(check_all, st.lists(keys)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_store_is_an_ordered_dictionary(name: str, tmp_path: Path) -> None:
    store = IMPLEMENTATIONS[name](str(tmp_path / "state"))

    @given(operations)
    @settings(max_examples=80)
    def run(steps: list[Operation]) -> None:
        store.delete_range(b"")
        oracle: dict[bytes, bytes] = {}
        for step in steps:
            step(store, oracle)
        assert list(store.range()) == sorted(oracle.items())

    run()
    store.close()


def test_many_keys_stay_in_order_after_deletions(store: KeyValueStore) -> None:
    keys = [(number * 7_919 % 5_003).to_bytes(4) for number in range(5_003)]
    for key in keys:
        store.put(key, key)
    assert [key for key, _ in store.range()] == sorted(keys)
    for key in keys[::3]:
        store.delete(key)
    left = sorted(set(keys) - set(keys[::3]))
    low, high = (1_000).to_bytes(4), (4_000).to_bytes(4)
    assert [key for key, _ in store.range()] == left
    assert [key for key, _ in store.range(low, high)] == [k for k in left if low <= k < high]
    store.delete_range(low, high)
    assert [key for key, _ in store.range()] == [k for k in left if not low <= k < high]


def test_a_scan_sees_the_store_at_the_time_of_the_call(store: KeyValueStore) -> None:
    for key in (b"a", b"b", b"c"):
        store.put(key, b"old")
    created, begun = store.range(), store.range()
    next(begun)
    store.put(b"b", b"new")
    store.put(b"bb", b"new")
    store.delete(b"c")
    before = [(b"a", b"old"), (b"b", b"old"), (b"c", b"old")]
    assert list(created) == before
    assert list(begun) == before[1:]
    assert list(store.range()) == [(b"a", b"old"), (b"b", b"new"), (b"bb", b"new")]


def test_a_write_that_fails_halfway_changes_nothing(store: KeyValueStore) -> None:
    def failing() -> Iterator[Change]:
        yield b"a", b"1"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(failing())
    assert list(store.range()) == []


def test_the_last_change_of_a_key_in_a_batch_wins(store: KeyValueStore) -> None:
    store.write([(b"a", b"1"), (b"b", b"1"), (b"a", None), (b"b", None), (b"b", b"2")])
    assert list(store.range()) == [(b"b", b"2")]


def test_large_and_empty_values_are_stored(store: KeyValueStore) -> None:
    large = bytes(range(256)) * 4_096
    store.write([(b"large", large), (b"none", b"")])
    assert store.get(b"large") == large
    assert store.get(b"none") == b""
    assert store.get(b"") is None


def test_many_values_are_read_at_once(store: KeyValueStore) -> None:
    numbers = range(0, 3_000, 2)
    store.write([(b"%04d" % number, b"%d" % number) for number in numbers])
    wanted = [b"%04d" % number for number in range(3_000)]
    assert store.get_all(wanted) == [b"%d" % n if n in numbers else None for n in range(3_000)]
    assert store.get_all([]) == []


def test_named_stores_are_isolated(store: KeyValueStore) -> None:
    names = ["a", "aa", "ab", "\xff", "counts"]
    named = {name: NamedStore(store, StoreSpec(name)) for name in names}
    for name, one in named.items():
        for key in (b"", b"a", b"\xff\xff"):
            one.put(key, name.encode())
    named["aa"].delete(b"a")
    named["ab"].delete_range(b"a", b"b")
    named["\xff"].delete_range()
    every = [b"", b"a", b"\xff\xff"]
    expected = {"a": every, "aa": [b"", b"\xff\xff"], "ab": [b"", b"\xff\xff"], "\xff": []}
    for name in names:
        value = name.encode()
        assert list(named[name].range()) == [(key, value) for key in expected.get(name, every)]
    assert list(named["a"].range(b"a", b"b")) == [(b"a", b"a")]
    assert named["a"].get(b"a") == b"a"
    assert named["aa"].get(b"a") is None


def test_a_closed_store_raises_and_may_be_closed_again(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    store.close()
    store.close()
    for use in (lambda: store.get(b"a"), store.range, lambda: store.delete_range(b"")):
        with pytest.raises(UsageError, match="closed"):
            use()
