"""MemoryStore: what the port's suite does not ask, its cost."""

from __future__ import annotations

from streamlog.tables.stores.memory_store import MemoryStore


def test_windows_that_come_and_go_leave_nothing_behind() -> None:
    store = MemoryStore()
    for number in range(20_000):
        store.put(number.to_bytes(4), b"open")
        if number >= 100:
            expired, _ = next(store.range(b"", number.to_bytes(4)))
            store.delete_range(b"", expired + b"\x00")
    assert len(list(store.range())) == 100
    assert len(store._values) == 100
