"""Shared by tests of stores with times: keys, steps, and a store with commits and restarts."""

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

# Keys that are prefixes of others, with zero bytes and their escape bytes.
keys = st.sampled_from([b"", b"\x00", b"\x00\x01", b"\x00\xff", b"a", b"a\x00", b"a\x00b", b"ab"])
values = st.binary(max_size=3)
times = st.integers(-50, 250)
LIFE_MS = 40
NEIGHBOUR = (b"\x05other", b"not ours")


Step: TypeAlias = tuple[object, ...]
"""The name of a method and its arguments."""


def perform(checked: object, steps: Iterable[Step]) -> None:
    for name, *arguments in steps:
        getattr(checked, str(name))(*arguments)


class TaskStore:
    """A task's store that commits, and that is restored from its changelog alone."""

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
        """Restore the state from the compacted changelog, as on another machine."""
        self.commit()
        self._store = MemoryStore()
        self._store.write([NEIGHBOUR, *dict(self._changelog).items()])
        self._transaction = StoreTransaction(self._store)

    def assert_neighbours_kept(self) -> None:
        assert self._transaction.get(NEIGHBOUR[0]) == NEIGHBOUR[1]


@contextmanager
def open_task_store(kind: str, path: Path | None = None) -> Iterator[TaskStore]:
    store = RocksStore.open(f"{path}/state") if kind == "rocksdb" else MemoryStore()
    try:
        task_store = TaskStore(store)
        yield task_store
        task_store.assert_neighbours_kept()
    finally:
        store.close()
