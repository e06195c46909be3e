"""What workers ask each other about rows, and what they answer.

Questions are about one task, which is named with the table, so that each worker answers for
itself whether it has it: who asks may have an old idea of who runs what. Rule of the file:
plain data as it travels; fields that a reader does not know are ignored, those it misses have
a default. A question is never handed on, so it takes one hop at most.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from streamlog.processing.table_rows import PAGE_ROWS_MAX, KeySpan
from streamlog.processing.task import TaskId


class NotHere(Exception):
    """Who was asked does not run the task (any more, or yet)."""


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What every question has."""

    app: str
    table: str
    """The node that keeps the rows."""
    subtopology: int
    partition: int
    stale_ok: bool = False
    """A standby copy may answer."""

    @property
    def task_id(self) -> TaskId:
        """Who is to answer."""
        return TaskId(self.subtopology, self.partition)


class RowQuery(TaskQuery, frozen=True, kw_only=True):
    """One row by its key."""

    key: bytes


class ScanQuery(TaskQuery, frozen=True, kw_only=True):
    """The next rows of a scan."""

    low: bytes = b""
    high: bytes | None = None
    head: bytes = b""
    own_at: int = 0
    rows_max: int = PAGE_ROWS_MAX

    @property
    def span(self) -> KeySpan:
        """What is looked for."""
        return KeySpan(self.low, self.high, self.head, self.own_at)


class AppliedQuery(TaskQuery, frozen=True, kw_only=True):
    """Whether the task has taken in a record and committed it."""

    topic: str
    offset: int
    wait_ms: int = 0
    """How long the answer may be waited for."""


class RowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to `RowQuery`."""

    data: bytes | None = None
    age_ms: int | None = None
    """Of a standby copy: how long ago it was like its owner; None from the owner."""


class ScanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to `ScanQuery`."""

    rows: list[tuple[bytes, bytes]] = []
    next_key: bytes | None = None
    age_ms: int | None = None


class AppliedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to `AppliedQuery`."""

    passed: bool = False
    stands: bool = False
    """The worker processes nothing just now, as its group forms anew or it is about to stop."""


class RowHolder(Protocol):
    """Port: somebody who may have rows. All calls raise NotHere if it does not."""

    async def row(self, asked: RowQuery) -> RowAnswer:
        """One row."""

    async def rows(self, asked: ScanQuery) -> ScanAnswer:
        """Some rows of a scan, in the order of their keys."""

    async def passed(self, asked: AppliedQuery) -> AppliedAnswer:
        """Whether a record has been taken in and committed."""
