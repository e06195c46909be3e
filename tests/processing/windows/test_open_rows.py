"""OpenRows against a dictionary: due rows, their order, and the rows in the store."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamlog.nodes.stream_nodes import Aggregation
from streamlog.processing.tables.aggregate import RowFormat
from streamlog.processing.windows.open_rows import OpenRows, OpenWindow
from streamlog.serdes import serde_for
from streamlog.tables.folds.folding import Row
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import prefix_end, split_window_key

SUMS = Aggregation(int, lambda a, b: a + b, lambda a: a, serde_for(int))
PREFIX = b"\x04rows"

spans = st.tuples(st.integers(0, 60), st.integers(0, 20))
keys = st.sampled_from([b"", b"a", b"a\x00", b"b"])
operations = st.lists(
    st.tuples(st.just("put"), keys, spans, st.integers(0, 9))
    | st.tuples(st.just("remove"), keys, spans)
    | st.tuples(st.just("close"), st.integers(0, 90))
    | st.sampled_from([("flush",), ("restart",)]),
    max_size=50,
)


class CheckedRows:
    """`OpenRows` and a model of its contents."""

    def __init__(self, kept_ms: int) -> None:
        self.kept_ms = kept_ms
        self.store = MemoryStore()
        self.rows = self._new()
        self.model: dict[tuple[int, int, bytes], int] = {}
        self.closed_ms = -1

    def _new(self) -> OpenRows:
        return OpenRows(self.store, PREFIX, RowFormat("rows", SUMS), kept_ms=self.kept_ms)

    def put(self, raw: bytes, span: tuple[int, int], state: int) -> None:
        start_ms, end_ms = span[0], sum(span)
        if end_ms <= self.closed_ms:
            return
        window = self.rows.load(start_ms, end_ms, raw)
        if window is None:
            window = OpenWindow(start_ms, end_ms, Row(state, end_ms, raw))
        window.row.state = state
        self.rows.put(window)
        self.model[end_ms, start_ms, raw] = state

    def remove(self, raw: bytes, span: tuple[int, int]) -> None:
        start_ms, end_ms = span[0], sum(span)
        if end_ms <= self.closed_ms:
            return
        window = self.rows.load(start_ms, end_ms, raw)
        expected = self.model.pop((end_ms, start_ms, raw), None)
        assert (None if window is None else window.row.state) == expected
        if window is not None:
            self.rows.remove(window)

    def close(self, limit_ms: int) -> None:
        limit_ms = max(limit_ms, self.closed_ms)
        due = sorted(key for key in self.model if self.closed_ms < key[0] <= limit_ms)
        closed = self.rows.close(limit_ms) if limit_ms >= self.rows.due_ms else []
        found = [(w.end_ms, w.start_ms, w.row.raw, w.row.state) for w in closed]
        assert found == [(*key, self.model[key]) for key in due]
        self.closed_ms = limit_ms
        self.model = {k: v for k, v in self.model.items() if k[0] > limit_ms - self.kept_ms}

    def flush(self) -> None:
        self.rows.flush()
        row_format = RowFormat("rows", SUMS)
        stored = {
            split_window_key(key[len(PREFIX) :]): row_format.loads(data).state
            for key, data in self.store.range(PREFIX, prefix_end(PREFIX))
        }
        assert {k: v for k, v in stored.items() if k in self.model} == self.model
        # Expired rows are removed when the next row is due.
        assert all(k[0] <= self.closed_ms for k in stored.keys() - self.model.keys())

    def restart(self) -> None:
        self.flush()
        self.rows = self._new()
        self.rows.start_at(self.closed_ms)


@given(operations, st.sampled_from([0, 7]))
def test_rows_stay_until_they_expire_and_close_in_order(
    steps: list[tuple[Any, ...]], kept_ms: int
) -> None:
    checked = CheckedRows(kept_ms)
    for name, *arguments in [*steps, ("restart",), ("close", 90)]:
        getattr(checked, name)(*arguments)


def test_a_row_replaced_between_two_flushes_is_never_written() -> None:
    checked = CheckedRows(0)
    for end_ms in range(50):
        checked.put(b"a", (0, end_ms), 1)
        if end_ms:
            checked.remove(b"a", (0, end_ms - 1))
    written = checked.rows.flush()
    assert next(iter(written.values())) is not None
    assert len(written) == 1
