"""A chunked snapshot over a model of PostgreSQL, in which commits become visible late.

The model has one table, a WAL of transactions and marks, and for each transaction the moment at
which it becomes visible, at or after its place in the WAL. A reader lives several times: it
forgets what it has not committed. In the end the log's table must be the database's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.postgres_cdc.chunked_snapshot import (
    CHUNK_ROWS_FIRST,
    ChunkedSnapshot,
    ChunkRequest,
    ChunkSize,
    TableChunk,
    VisibleTransactions,
    full_xid,
)
from streamlog.connectors.postgres_cdc.pgoutput import Relation

TABLE = "public.t"
KEYS = 6
CHUNK = 2
RELATION = Relation(1, "public", "t", "d", ())
ALL = VisibleTransactions(1 << 40, 1 << 40, frozenset())


@dataclass
class Transaction:
    xid: int
    changes: dict[int, int | None]
    is_visible: bool = False
    is_in_wal: bool = False


@dataclass
class Database:
    """A server; `wal` has transactions and contents of marks, in their order."""

    next_xid: int
    wal: list[Transaction | bytes] = field(default_factory=list)
    open: list[Transaction] = field(default_factory=list)
    visible: dict[int, int] = field(default_factory=dict)

    def begin(self, changes: dict[int, int | None]) -> None:
        # Row locks: a row is changed by one transaction at a time.
        held = {key for each in self.open for key in each.changes}
        mine = {key: value for key, value in changes.items() if key not in held}
        self.open.append(Transaction(self.next_xid, mine))
        self.next_xid += 1

    def commit(self, at: int) -> None:
        """Take the next step of a transaction: into the WAL, then into sight."""
        found = self.open[at % len(self.open)]
        if not found.is_in_wal:
            found.is_in_wal = True
            self.wal.append(found)
            return
        found.is_visible = True
        self.open.remove(found)
        for key, value in found.changes.items():
            if value is None:
                self.visible.pop(key, None)
            else:
                self.visible[key] = value

    def snapshot(self) -> VisibleTransactions:
        running = frozenset(each.xid for each in self.open)
        return VisibleTransactions(min(running, default=self.next_xid), self.next_xid, running)

    def draw(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1


@dataclass
class Reader:
    """One life: reads the WAL from a position on; `log` is what it has written since."""

    database: Database
    position: int
    snapshot: ChunkedSnapshot
    log: dict[int, int | None]
    chunk: TableChunk | None = None
    request: ChunkRequest | None = None
    asked: int = 0

    def ask(self) -> None:
        """Take the next step of a chunk: the low mark, the rows, the high mark."""
        if self.asked == 0:
            self.request = self.snapshot.request()
            if self.request is None:
                return
            self.database.wal.append(self.request.mark("low"))
        assert self.request is not None
        if self.asked == 1:
            after = -1 if self.request.after is None else int(str(self.request.after[0]))
            keys = [key for key in sorted(self.database.visible) if key > after]
            taken = keys[:CHUNK]
            rows = b"".join(b"%d\t%d\n" % (key, self.database.visible[key]) for key in taken)
            last = (taken[len(taken) - 1],) if taken else None
            seen, is_last = self.database.snapshot(), len(keys) <= CHUNK
            self.chunk = TableChunk(self.request, RELATION, rows, (0,), last, is_last, seen)
        if self.asked == 2:
            self.database.wal.append(self.request.mark("high"))
        self.asked = (self.asked + 1) % 3

    def read(self) -> None:
        """Read the next entry of the WAL, unless the rows of its mark are not there yet."""
        if self.position >= len(self.database.wal):
            return
        entry = self.database.wal[self.position]
        if isinstance(entry, Transaction):
            self.snapshot.began(entry.xid % (1 << 32))
            self.snapshot.changed(TABLE, [(b"%d" % key,) for key in entry.changes])
            self.log.update(entry.changes)
        elif self.snapshot.marked(entry) == "high":
            assert self.chunk is not None
            for line in (self.snapshot.took(self.chunk) or b"").splitlines():
                key, value = map(int, line.split())
                self.log[key] = value
        self.position += 1


def reader(database: Database, position: int, log: dict, done: set, after: tuple | None) -> Reader:
    snapshot = ChunkedSnapshot([TABLE], {*done}, after, database.draw())
    return Reader(database, position, snapshot, {**log})


changes = st.dictionaries(
    st.integers(0, KEYS - 1), st.none() | st.integers(0, 999), min_size=1, max_size=3
)
times = st.integers(1, 6)
# Most of what can go wrong needs several chunks and changes in one life, so lives are long.
steps = st.lists(
    st.one_of(
        *[st.tuples(st.just("begin"), changes)] * 2,
        *[st.tuples(st.just("commit"), st.integers(0, 5))] * 2,
        *[st.tuples(st.sampled_from(["read", "ask"]), times)] * 4,
        st.tuples(st.just("save"), times),
        st.tuples(st.sampled_from(["die", "save"]), times),
    ),
    min_size=8,
    max_size=40,
)


@given(steps, st.integers(1, 6), st.sampled_from([10, 2**32 - 4]))
def test_the_log_has_the_table_whatever_the_order_of_wal_and_visibility(  # noqa: C901 - a case a step
    history: list[tuple[str, object]], rows: int, first_xid: int
) -> None:
    database = Database(first_xid, visible={key: key * 100 for key in range(rows)})
    life = reader(database, 0, {}, set(), None)
    saved = (0, {}, set(), None)
    for what, detail in history:
        match what, detail:
            case "begin", dict():
                database.begin(detail)
            case "commit", int() if database.open:
                database.commit(detail)
            case "read", int():
                for _ in range(detail):
                    life.read()
            case "ask", int():
                for _ in range(detail):
                    life.ask()
            case "save", _:
                saved = (
                    life.position, {**life.log}, {*life.snapshot.done}, life.snapshot.after,
                )  # fmt: skip
            case "die", _:
                life = reader(database, *saved)
            case _:
                pass
    while database.open:
        database.commit(0)
    for _ in range(200):
        life.ask()
        life.read()
    assert life.snapshot.is_done
    assert {key: value for key, value in life.log.items() if value is not None} == database.visible


def test_a_commit_that_is_not_visible_yet_takes_the_chunk_again() -> None:
    snapshot = ChunkedSnapshot([TABLE], set(), None, 5)
    snapshot.began(7)
    request = snapshot.request()
    assert request is not None
    assert snapshot.request() is None
    snapshot.marked(request.mark("low"))
    snapshot.marked(request.mark("high"))
    unseen = VisibleTransactions(7, 8, frozenset({7}))
    rows = b"1\t2\n"
    assert snapshot.took(TableChunk(request, RELATION, rows, (0,), (1,), True, unseen)) is None
    assert (snapshot.retaken, snapshot.is_done) == (1, False)
    again = snapshot.request()
    assert again is not None
    snapshot.marked(again.mark("low"))
    assert snapshot.took(TableChunk(again, RELATION, rows, (0,), (1,), True, ALL)) == rows
    assert snapshot.is_done


def test_an_emptied_table_has_no_rows_of_the_chunk() -> None:
    snapshot = ChunkedSnapshot([TABLE], set(), None, 5)
    request = snapshot.request()
    assert request is not None
    snapshot.marked(request.mark("low"))
    snapshot.emptied(TABLE)
    rows = b"1\t2\n"
    assert snapshot.took(TableChunk(request, RELATION, rows, (0,), (1,), True, ALL)) == b""


def test_marks_of_an_earlier_life_are_not_this_ones() -> None:
    before, now = (ChunkedSnapshot([TABLE], set(), None, life) for life in (5, 9))
    old, request = before.request(), now.request()
    assert old is not None
    assert request is not None
    assert now.marked(old.mark("low")) is None
    assert now.marked(request.mark("low")) == "low"


def test_prepared_transactions_do_not_hold_a_snapshot_up() -> None:
    seen = VisibleTransactions.parse("3:12:3,4", prepared=[3])
    assert seen.running_below(10) == {4}
    assert [seen.sees(each) for each in (2, 3, 11, 12)] == [True, False, True, False]


@given(st.integers(2**31, 2**40), st.integers(-(2**31) + 1, 2**31 - 1))
def test_32_bits_of_a_transaction_number_are_enough(near: int, distance: int) -> None:
    wanted = near + distance
    assert full_xid(wanted % (1 << 32), near) == wanted


@given(st.lists(st.integers(0, 300), min_size=1, max_size=9), st.integers(0, 99))
def test_a_chunk_has_the_rows_that_fit_and_one_at_least(sizes: list[int], row_bytes: int) -> None:
    size = ChunkSize(row_bytes)
    lines = b"".join(bytes(each) + b"\n" for each in sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamlog.connectors.postgres_cdc.chunked_snapshot.CHUNK_BYTES", 200)
        kept, end = size.kept(lines)
    taken = [each + 1 + row_bytes for each in sizes]
    assert end + kept * row_bytes == sum(taken[:kept])
    assert kept == 1 or sum(taken[:kept]) <= 200
    assert kept == len(sizes) or sum(taken[: kept + 1]) > 200
    assert 1 <= size.rows <= 4 * CHUNK_ROWS_FIRST


def test_chunks_of_small_rows_grow_to_the_most_rows() -> None:
    size = ChunkSize(10)
    asked = []
    for _ in range(4):
        asked.append(size.rows)
        assert size.kept(b"1\t2\n" * size.rows) == (asked[-1], 4 * asked[-1])
    assert asked == [1_000, 4_000, 16_000, 40_000]


def test_rows_of_an_empty_chunk_ask_for_few_more() -> None:
    assert ChunkSize(10).kept(b"") == (0, 0)
