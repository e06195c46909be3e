"""MemoryStore: its cost, which the port's suite does not cover."""

from __future__ import annotations

from streamlog.tables.stores.memory_store import MemoryStore


def test_expired_windows_leave_nothing_in_memory() -> None:
    store = MemoryStore()
    for number in range(20_000):
        store.put(number.to_bytes(4), b"open")
        if number >= 100:
            expired, _ = next(store.range(b"", number.to_bytes(4)))
            store.delete_range(b"", expired + b"\x00")
    assert len(list(store.range())) == 100
    assert len(store._values) == 100
