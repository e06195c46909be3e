"""Chunked snapshot: copies tables key by key while their changes stream, without a long lock.

For each chunk the server is asked three things in turn: a low mark in the WAL, the rows behind the
last key, a high mark (the watermarks of DBLog). In the stream, a key that changes between the marks
is newer than its row of the chunk, so that row is left out; the others stand at the high mark, as
if they had been read there.

Why the order of the WAL is not enough. A transaction is in the WAL before it becomes visible: with
synchronous replication seconds before. A scenario:

1. T commits: row 7 is "new" in the WAL, and the stream delivers it.
2. The low mark is written; the chunk is read. T is not visible yet, so row 7 is "old" in it.
3. The high mark. Row 7 did not change between the marks, so the chunk would follow T's change with
   "old", and the log would keep it for good.

So each chunk says what its snapshot saw. If a transaction that was delivered before the low mark is
missing there, the chunk is taken again. What an earlier life has delivered is not known any more;
a chunk therefore also has to see the end of every transaction that ran when this life began.

Rule: pure. The shell reads rows and marks, in any time it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from streamlog.connect import Json
from streamlog.connect.row_spans.copied_rows import copied_fields, copied_within
from streamlog.connectors.postgres_cdc.pgoutput import Relation

CHUNK_ROWS: Final = 40_000
"""The most rows of a chunk."""
CHUNK_ROWS_FIRST: Final = 1_000
"""The most rows of a table's first chunk, when their size is not known."""
CHUNK_BYTES: Final = 6 * 1024 * 1024
"""The size of a chunk: all of it is one Read, which is larger as JSON."""
PREFIX: Final = "streamlog"
"""The prefix of the marks' messages."""
_XID_SPAN: Final = 1 << 32
Key: TypeAlias = tuple[object, ...]
Mark: TypeAlias = Literal["low", "high"]


@dataclass(frozen=True, slots=True)
class VisibleTransactions:
    """What a snapshot of the server sees: `pg_current_snapshot()`.

    Attributes:
        xmin: transactions below have ended.
        xmax: transactions from here on had not begun to end.
        running: those between that were running.
        prepared: of all that run, those that are prepared; they end when someone says so.
    """

    xmin: int
    xmax: int
    running: frozenset[int]
    prepared: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str, prepared: Iterable[int] = ()) -> VisibleTransactions:
        """Return a snapshot from its text, such as "10:20:10,14".

        Args:
            text: the text.
            prepared: the 32-bit numbers of prepared transactions.
        """
        low, high, running = text.split(":")
        xmax = int(high)
        numbers = frozenset(int(each) for each in running.split(",") if each)
        waiting = frozenset(full_xid(each, xmax) for each in prepared)
        return cls(int(low), xmax, numbers, waiting)

    def sees(self, xid: int) -> bool:
        """Whether the end of a transaction is visible.

        Args:
            xid: its number, 64 bits.
        """
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def running_below(self, xid: int) -> frozenset[int]:
        """Return the older transactions that still run, without prepared ones."""
        return frozenset(each for each in self.running if each < xid) - self.prepared


def full_xid(xid: int, near: int) -> int:
    """Return the 64-bit number of a transaction from its 32 bits.

    Args:
        xid: the 32 bits.
        near: a 64-bit number at most 2^31 away.
    """
    found = near - near % _XID_SPAN + xid
    if found - near > _XID_SPAN // 2:
        return found - _XID_SPAN
    return found + _XID_SPAN if near - found > _XID_SPAN // 2 else found


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A chunk to read.

    Attributes:
        number: its number.
        life: a number that no other life of the source has.
        table: the table.
        after: the last key that was taken; None from the beginning.
    """

    number: int
    life: int
    table: str
    after: tuple[Json, ...] | None

    def mark(self, which: Mark) -> bytes:
        """Return the content of a mark; marks of an earlier life may still be in the stream."""
        return f"{which}:{self.life}:{self.number}".encode()


@dataclass(slots=True)
class ChunkSize:
    """How many rows of a table to ask for: as many as make a chunk of `CHUNK_BYTES`.

    Args:
        row_bytes: what a row takes beside its text: the names of its columns.
    """

    row_bytes: int
    rows: int = field(default_factory=lambda: min(CHUNK_ROWS_FIRST, CHUNK_ROWS))

    def kept(self, lines: bytes) -> tuple[int, int]:
        """Return how many of the rows that came make a chunk, and where they end.

        The next one asks for as many.

        Args:
            lines: the rows as COPY writes them.
        """
        count, end = copied_within(lines, CHUNK_BYTES, self.row_bytes)
        # At most four times as many at once: rows further on may be larger.
        fitting = CHUNK_BYTES * count // max(end + self.row_bytes * count, 1)
        self.rows = max(1, min(fitting, 4 * self.rows, CHUNK_ROWS))
        return count, end


@dataclass(frozen=True, slots=True)
class TableChunk:
    """The rows of a chunk.

    Attributes:
        request: what was asked for.
        relation: the table as the rows have it.
        lines: the rows as COPY writes them in its text format, one after another, in the order of
            the key.
        key_at: where the columns of the key stand in a row.
        last_key: the key of the last row as JSON; None without rows.
        is_last: whether the table has no more.
        visible: what the rows' snapshot saw.
    """

    request: ChunkRequest
    relation: Relation
    lines: bytes
    key_at: tuple[int, ...]
    last_key: tuple[Json, ...] | None
    is_last: bool
    visible: VisibleTransactions

    def without(self, keys: set[Key]) -> bytes:
        """Return the rows without those that have one of these keys."""
        # Their ends alone end them: within a value, COPY escapes them.
        lines = (line + b"\n" for line in self.lines.split(b"\n") if line)
        return b"".join(line for line in lines if key_of(line, self.key_at) not in keys)


def key_of(line: bytes, key_at: Sequence[int]) -> tuple[bytes | None, ...]:
    """Return the text of a key, from a line of COPY and where the key's columns stand in it."""
    fields = copied_fields(line)
    return tuple(fields[at] for at in key_at)


@dataclass(slots=True)
class ChunkedSnapshot:
    """The progress of a snapshot, over all tables.

    Args:
        tables: the tables to copy, in order.
        done: those that are copied.
        after: of the first table that is not, the last key that was taken.
        began_at: a 64-bit transaction number, drawn when this life began.
    """

    tables: Sequence[str]
    done: set[str]
    after: tuple[Json, ...] | None
    began_at: int
    retaken: int = 0
    """How many chunks had to be taken again."""
    _number: int = 0
    _request: ChunkRequest | None = None
    _is_between: bool = False
    _changed: set[Key] = field(default_factory=set)
    _is_emptied: bool = False
    _delivered: list[int] = field(default_factory=list)
    _before_low: int = 0

    @property
    def is_between(self) -> bool:
        """Whether the stream is between the marks of a chunk, where keys that change count."""
        return self._is_between

    @property
    def table(self) -> str | None:
        """The table that is being copied; None if all are."""
        return next((each for each in self.tables if each not in self.done), None)

    @property
    def is_done(self) -> bool:
        """Whether all tables are copied."""
        return self.table is None

    @property
    def offset(self) -> Mapping[str, Json]:
        """How far the snapshot is, for the offset of a Read."""
        done: list[Json] = [*sorted(self.done)]
        return {"done": done, "after": None if self.after is None else [*self.after]}

    def request(self) -> ChunkRequest | None:
        """Return the next chunk to read; None while one is under way, or all tables are copied."""
        table = self.table
        if table is None or self._request is not None:
            return None
        self._number += 1
        self._request = ChunkRequest(self._number, self.began_at, table, self.after)
        return self._request

    def began(self, xid: int) -> None:
        """Note that the stream delivers a transaction.

        Args:
            xid: its number, 32 bits.
        """
        if not self.is_done:
            self._delivered.append(full_xid(xid, self.began_at))

    def changed(self, table: str, keys: Iterable[Key]) -> None:
        """Note that rows of a table change here in the stream."""
        # Before the low mark, the chunk has the change; behind the high one, it is newer.
        if self._is_between and table == self.table:
            self._changed.update(keys)

    def emptied(self, table: str) -> None:
        """Note that a table is emptied here in the stream."""
        if self._is_between and table == self.table:
            self._is_emptied = True

    def marked(self, content: bytes) -> Mark | None:
        """Note a mark in the stream; return which, or None if it is none of this chunk."""
        request = self._request
        if request is None:
            return None
        if content == request.mark("low"):
            self._is_between = True
            self._changed.clear()
            self._is_emptied = False
            # What comes between the marks is left out by its keys, seen or not.
            self._before_low = len(self._delivered)
            return "low"
        return "high" if content == request.mark("high") else None

    def took(self, chunk: TableChunk) -> bytes | None:
        """Return the rows to send at the high mark; None if the chunk has to be taken again.

        Args:
            chunk: the chunk whose high mark the stream has just delivered.
        """
        request, self._request = self._request, None
        self._is_between = False
        if request != chunk.request or not self._is_complete(chunk.visible):
            self.retaken += 1
            return None
        # A transaction that a snapshot sees is seen by all later ones.
        self._delivered = [each for each in self._delivered if not chunk.visible.sees(each)]
        if chunk.is_last:
            self.done.add(request.table)
            self.after = None
        else:
            self.after = chunk.last_key
        if self._is_emptied:
            # What was read may be from before; what came behind is in the stream.
            return b""
        return chunk.without(self._changed) if self._changed else chunk.lines

    def _is_complete(self, visible: VisibleTransactions) -> bool:
        delivered = self._delivered[: self._before_low]
        saw_all = all(visible.sees(each) for each in delivered)
        return saw_all and not visible.running_below(self.began_at)
