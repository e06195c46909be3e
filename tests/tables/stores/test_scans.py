"""Scans: read as far as somebody reads, and as things were when they were asked for."""

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


class Numbers(dict[bytes, bytes]):
    """Has a value for whatever is asked for."""

    def __missing__(self, key: bytes) -> bytes:
        return key


def test_no_more_is_looked_at_than_is_read() -> None:
    endless = (b"%d" % number for number in count())
    scan = Scans[bytes]().begin(endless, Numbers())
    assert [next(scan), next(scan)] == [(b"0", b"0"), (b"1", b"1")]


def test_a_scan_that_nobody_holds_costs_changes_nothing() -> None:
    scans = Scans[bytes]()
    read: list[bytes] = []

    def keys() -> Iterator[bytes]:
        for key in KEYS:
            read.append(key)
            yield key

    next(scans.begin(keys(), Numbers()))
    assert scans.are_open
    scans.settle()
    assert read == KEYS[:1]
    assert not scans.are_open


@given(operations)
def test_scans_show_a_store_as_it_was_whatever_becomes_of_it(todo: list[tuple[str, int]]) -> None:
    deferred = DeferredStore(MemoryStore())
    store = StoreTransaction(deferred)
    model: dict[bytes, bytes] = {}
    begun: list[tuple[Iterator[tuple[bytes, bytes]], Iterator[tuple[bytes, bytes]]]] = []
    for step, (what, row) in enumerate(todo):
        key, value = KEYS[row], b"%d" % step
        if what == "write":
            store.write([(each, value) for each in KEYS[row:]])
            model |= dict.fromkeys(KEYS[row:], value)
        elif what == "delete":
            store.delete(key)
            model.pop(key, None)
        elif what == "delete range":
            store.delete_range(key)
            model = {each: there for each, there in model.items() if each < key}
        elif what == "scan":
            found = iter(sorted(pair for pair in model.items() if pair[0] >= key))
            begun.append((store.range(key), found))
        elif what == "read" and begun:
            scan, expected = begun[row % len(begun)]
            assert next(scan, None) == next(expected, None)
        elif what == "commit":
            store.commit(checkpoint(store.changes(), TaskProgress()), next_offset=step)
        elif what == "flush":
            deferred.flush()
    for scan, expected in begun:
        assert list(scan) == list(expected)
    assert dict(store.range(b"\x02")) == model
