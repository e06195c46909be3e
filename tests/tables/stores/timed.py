"""What the tests of the stores with times share: where they live, and commits and restarts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from hypothesis import strategies as st

from streamlog.tables.local_disk.rocksdb_store import RocksStore
from streamlog.tables.state.changelog import TaskProgress, checkpoint
from streamlog.tables.state.store_transaction import StoreTransaction
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import Change, KeyValueStore, NamedStore, StoreSpec

# Keys that are the beginning of others, with zero bytes and those that escape them.
keys = st.sampled_from([b"", b"\x00", b"\x00\x01", b"\x00\xff", b"a", b"a\x00", b"a\x00b", b"ab"])
values = st.binary(max_size=3)
times = st.integers(-50, 250)
LIFE_MS = 40
NEIGHBOUR = (b"\x05other", b"not ours")


Step: TypeAlias = tuple[object, ...]
"""The name of a method, and what it is given."""


def perform(checked: object, steps: Iterable[Step]) -> None:
    for name, *arguments in steps:
        getattr(checked, str(name))(*arguments)


class Place:
    """A task's store that is committed, and restored from nothing but its changelog."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self._store.write([NEIGHBOUR])
        self._changelog: list[Change] = []
        self._transaction = StoreTransaction(store, cache_bytes=2_000)

    def named(self) -> NamedStore:
        return NamedStore(self._transaction, StoreSpec("timed"))

    def commit(self) -> None:
        records = checkpoint(self._transaction.changes(), TaskProgress())
        self._changelog += records
        self._transaction.commit(records, next_offset=len(self._changelog))

    def restart(self) -> None:
        """On another machine, from the compacted changelog."""
        self.commit()
        self._store = MemoryStore()
        self._store.write([NEIGHBOUR, *dict(self._changelog).items()])
        self._transaction = StoreTransaction(self._store)

    def assert_neighbours_are_there(self) -> None:
        assert self._transaction.get(NEIGHBOUR[0]) == NEIGHBOUR[1]


@contextmanager
def place_of(kind: str, path: Path | None = None) -> Iterator[Place]:
    store = RocksStore.open(f"{path}/state") if kind == "rocksdb" else MemoryStore()
    try:
        place = Place(store)
        yield place
        place.assert_neighbours_are_there()
    finally:
        store.close()
