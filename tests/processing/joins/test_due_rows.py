"""DueRows against a sorted list, with commits, restarts, and little memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.processing.joins import join_buffer
from streamlog.processing.joins.join_buffer import DueRow, DueRows, due_row_key
from streamlog.tables.stores.memory_store import MemoryStore
from tests.tables.stores.timed import Step, TaskStore, keys, perform, values

operations = st.lists(
    st.tuples(st.just("add"), st.integers(0, 60), st.integers(0, 1), keys, values)
    | st.tuples(st.just("discard"), st.integers(0, 50))
    | st.tuples(st.just("take"), st.integers(0, 60))
    | st.sampled_from([("commit",), ("restart",)]),
    max_size=60,
)


class CheckedRows:
    """`DueRows` and a model of its contents."""

    def __init__(self, bytes_max: int) -> None:
        self.task_store = TaskStore(MemoryStore())
        self.bytes_max = bytes_max
        self.rows = DueRows(self.task_store.named(), bytes_max=bytes_max)
        self.there: dict[int, DueRow] = {}
        self.number = 0

    def add(self, due_ms: int, rank: int, key: bytes, value: bytes) -> None:
        headers = (("h", value),) if value else ()
        row = DueRow(due_ms, rank, key, self.number, value, headers)
        self.rows.add(due_row_key(due_ms, rank, key, self.number), value, headers)
        self.there[self.number] = row
        self.number += 1

    def discard(self, number: int) -> None:
        row = self.there.pop(number, None)
        if row is not None:
            task_store = due_row_key(row.due_ms, row.rank, row.key, row.number)
            self.rows.discard(task_store)
            self.rows.discard(task_store)

    def take(self, before_ms: int) -> None:
        wanted = sorted(row for row in self.there.values() if row.due_ms < before_ms)
        next_ms = self.rows.next_ms
        assert next_ms is None or not self.there or next_ms <= min(self.there.values()).due_ms
        assert (next_ms is not None) or not self.there
        assert list(self.rows.due(before_ms)) == wanted
        for row in wanted:
            del self.there[row.number]

    def commit(self) -> None:
        self.rows.flush()
        self.task_store.commit()

    def restart(self) -> None:
        self.rows.flush()
        self.task_store.restart()
        self.rows = DueRows(self.task_store.named(), bytes_max=self.bytes_max)
        self.rows.load()


@given(operations, st.sampled_from([0, 1 << 30]))
def test_rows_are_taken_in_order_once_they_are_due(steps: list[Step], bytes_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join_buffer, "PAGE_ROWS", 3)
        patch.setattr(join_buffer, "STALE_KEYS_MAX", 2)
        checked = CheckedRows(bytes_max)
        perform(checked, steps)
        checked.take(61)
        checked.commit()
        assert list(checked.task_store.named().range()) == []
        checked.task_store.assert_neighbours_kept()


def test_a_row_that_is_discarded_before_a_commit_is_never_written() -> None:
    task_store = TaskStore(MemoryStore())
    rows = DueRows(task_store.named())
    at = due_row_key(5, 0, b"k", 0)
    rows.add(at, b"v", ())
    rows.discard(at)
    rows.flush()
    assert list(task_store.named().range()) == []


def test_rewritten_rows_come_at_their_new_due_time() -> None:
    task_store = TaskStore(MemoryStore())
    rows = DueRows(task_store.named())
    rows.add(due_row_key(5, 1, b"k", 7), b"v", ())
    rows.flush()
    rows = DueRows(task_store.named())
    rows.rewrite(lambda row: due_row_key(row.due_ms + 10, row.rank, row.key, row.number))
    rows.load()
    assert list(rows.due(15)) == []
    assert list(rows.due(16)) == [DueRow(15, 1, b"k", 7, b"v", ())]
