"""Questions: the queries about rows that workers send to each other, and the answers.

A query names its table and its task. The worker that receives it checks whether it has the task,
because the sender's view of the assignment may be old. A worker never forwards a query, so a query
takes one hop.

Rule: plain data. A reader ignores unknown fields, and missing fields have defaults. Not done here:
the way over HTTP (`web/table_pages`), and the choice of a worker (`routed_tables`).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from streamlog.processing.table_rows import PAGE_ROWS_MAX, KeySpan
from streamlog.processing.task import TaskId


class NotHere(Exception):
    """The worker does not run the task: not yet, or no longer."""


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all queries have."""

    app: str
    table: str
    """The name of the node that holds the rows."""
    subtopology: int
    partition: int
    stale_ok: bool = False
    """Whether a standby may answer, with rows that may be old."""

    @property
    def task_id(self) -> TaskId:
        """The task that holds the rows."""
        return TaskId(self.subtopology, self.partition)


class RowQuery(TaskQuery, frozen=True, kw_only=True):
    """Asks for the row of a key."""

    key: bytes


class ScanQuery(TaskQuery, frozen=True, kw_only=True):
    """Asks for the next page of a scan."""

    low: bytes = b""
    """The first key of the page."""
    high: bytes | None = None
    """The key before which the scan ends; None: the end of the table."""
    head: bytes = b""
    """The bytes that the row's own key begins with."""
    own_at: int = 0
    """The index at which the row's own key begins: a window comes before it."""
    rows_max: int = PAGE_ROWS_MAX
    """The largest number of rows in the answer."""

    @property
    def span(self) -> KeySpan:
        """The keys of the scan."""
        return KeySpan(self.low, self.high, self.head, self.own_at)


class AppliedQuery(TaskQuery, frozen=True, kw_only=True):
    """Asks whether the task has processed a record and committed it."""

    topic: str
    offset: int
    wait_ms: int = 0
    """How long the worker may wait for the commit before it answers."""


class RowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `RowQuery`."""

    data: bytes | None = None
    """The row; None if the key has none."""
    age_ms: int | None = None
    """From a standby: the time since it last had everything that the owner had committed, in
    milliseconds. None from the owner."""


class ScanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `ScanQuery`."""

    rows: list[tuple[bytes, bytes]] = []
    next_key: bytes | None = None
    """The key at which the next page begins; None after the last page."""
    age_ms: int | None = None
    """As in `RowAnswer`."""


class AppliedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `AppliedQuery`."""

    # The names on the wire stay, so that workers of different releases can ask each other.
    is_applied: bool = msgspec.field(default=False, name="passed")
    is_suspended: bool = msgspec.field(default=False, name="stands")
    """Whether the worker processes nothing at present: its group rebalances, or it is stopping."""


class RowHolder(Protocol):
    """Port: a worker that may hold rows. All methods raise NotHere if it does not have the task."""

    async def row(self, query: RowQuery) -> RowAnswer:
        """Return the row of a key."""

    async def rows(self, query: ScanQuery) -> ScanAnswer:
        """Return a page of a scan, in the order of the keys."""

    async def check_applied(self, query: AppliedQuery) -> AppliedAnswer:
        """Return whether a record is processed and committed, after at most `query.wait_ms`."""
