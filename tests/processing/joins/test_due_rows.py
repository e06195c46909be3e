"""DueRows against a sorted list, with commits, restarts, and little memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.processing.joins import join_buffer
from streamlog.processing.joins.join_buffer import DueRow, DueRows, due_row_key
from streamlog.tables.stores.memory_store import MemoryStore
from tests.tables.stores.timed import Place, Step, keys, perform, values

operations = st.lists(
    st.tuples(st.just("add"), st.integers(0, 60), st.integers(0, 1), keys, values)
    | st.tuples(st.just("discard"), st.integers(0, 50))
    | st.tuples(st.just("take"), st.integers(0, 60))
    | st.sampled_from([("commit",), ("restart",)]),
    max_size=60,
)


class Checked:
    """Rows that are due, and what should be there."""

    def __init__(self, bytes_max: int) -> None:
        self.place = Place(MemoryStore())
        self.bytes_max = bytes_max
        self.rows = DueRows(self.place.named(), bytes_max=bytes_max)
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
            place = due_row_key(row.due_ms, row.rank, row.key, row.number)
            self.rows.discard(place)
            self.rows.discard(place)

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
        self.place.commit()

    def restart(self) -> None:
        self.rows.flush()
        self.place.restart()
        self.rows = DueRows(self.place.named(), bytes_max=self.bytes_max)
        self.rows.load()


@given(operations, st.sampled_from([0, 1 << 30]))
def test_rows_leave_when_they_are_due_and_in_order(steps: list[Step], bytes_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join_buffer, "PAGE_ROWS", 3)
        patch.setattr(join_buffer, "STALE_KEYS_MAX", 2)
        checked = Checked(bytes_max)
        perform(checked, steps)
        checked.take(61)
        checked.commit()
        assert list(checked.place.named().range()) == []
        checked.place.assert_neighbours_are_there()


def test_what_leaves_before_a_commit_is_never_written() -> None:
    place = Place(MemoryStore())
    rows = DueRows(place.named())
    at = due_row_key(5, 0, b"k", 0)
    rows.add(at, b"v", ())
    rows.discard(at)
    rows.flush()
    assert list(place.named().range()) == []


def test_rows_move_to_where_they_are_due_now() -> None:
    place = Place(MemoryStore())
    rows = DueRows(place.named())
    rows.add(due_row_key(5, 1, b"k", 7), b"v", ())
    rows.flush()
    rows = DueRows(place.named())
    rows.rewrite(lambda row: due_row_key(row.due_ms + 10, row.rank, row.key, row.number))
    rows.load()
    assert list(rows.due(15)) == []
    assert list(rows.due(16)) == [DueRow(15, 1, b"k", 7, b"v", ())]
