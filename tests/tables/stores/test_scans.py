"""Scans: lazy, and consistent with the store as of their start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from streamlog.tables.state.changelog import TaskProgress, checkpoint
from streamlog.tables.state.store_transaction import DeferredStore, StoreTransaction
from streamlog.tables.stores.memory_store import MemoryStore, Scans

KEYS = [b"\x02", b"\x03a", b"\x03b", b"\x04"]

rows = st.integers(0, len(KEYS) - 1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), rows),
        st.tuples(st.just("delete"), rows),
        st.tuples(st.just("delete range"), rows),
        st.tuples(st.just("scan"), rows),
        st.tuples(st.just("read"), rows),
        st.tuples(st.just("commit"), rows),
        st.tuples(st.just("flush"), rows),
    ),
    max_size=40,
)


class Echo(dict[bytes, bytes]):
    """A mapping that returns each key as its value."""

    def __missing__(self, key: bytes) -> bytes:
        return key


def test_a_scan_reads_lazily() -> None:
    endless = (b"%d" % number for number in count())
    scan = Scans[bytes]().begin(endless, Echo())
    assert [next(scan), next(scan)] == [(b"0", b"0"), (b"1", b"1")]


def test_an_unreferenced_scan_is_not_read_further() -> None:
    scans = Scans[bytes]()
    read: list[bytes] = []

    def keys() -> Iterator[bytes]:
        for key in KEYS:
            read.append(key)
            yield key

    next(scans.begin(keys(), Echo()))
    assert scans.are_open
    scans.settle()
    assert read == KEYS[:1]
    assert not scans.are_open


@given(operations)
def test_a_scan_shows_the_store_as_of_its_start(todo: list[tuple[str, int]]) -> None:
    deferred = DeferredStore(MemoryStore())
    store = StoreTransaction(deferred)
    model: dict[bytes, bytes] = {}
    open_scans: list[tuple[Iterator[tuple[bytes, bytes]], Iterator[tuple[bytes, bytes]]]] = []
    for step, (action, row) in enumerate(todo):
        key, value = KEYS[row], b"%d" % step
        if action == "write":
            store.write([(each, value) for each in KEYS[row:]])
            model |= dict.fromkeys(KEYS[row:], value)
        elif action == "delete":
            store.delete(key)
            model.pop(key, None)
        elif action == "delete range":
            store.delete_range(key)
            model = {each: old_value for each, old_value in model.items() if each < key}
        elif action == "scan":
            found = iter(sorted(pair for pair in model.items() if pair[0] >= key))
            open_scans.append((store.range(key), found))
        elif action == "read" and open_scans:
            scan, expected = open_scans[row % len(open_scans)]
            assert next(scan, None) == next(expected, None)
        elif action == "commit":
            store.commit(checkpoint(store.changes(), TaskProgress()), next_offset=step)
        elif action == "flush":
            deferred.flush()
    for scan, expected in open_scans:
        assert list(scan) == list(expected)
    assert dict(store.range(b"\x02")) == model
