"""Local rows: the table rows that the running code may read and write without waiting.

A task, or a call of an agent, sets its local rows while the user's code runs; tables look them up
here. Rule of the file: they belong to one thread of control (a context variable), so concurrent
code never sees another's rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from streamlog.errors import UsageError
from streamlog.serdes.erased_types import UserKey, UserValue


class LocalTables(Protocol):
    """Port: rows of tables by name, as the user's objects; UsageError for rows of other tasks."""

    def get(self, table: str, key: object) -> UserValue:
        """Return the row of this key; None if there is none."""

    def put(self, table: str, key: object, value: object) -> None:
        """Set the row of this key; None deletes it."""

    def range(self, table: str) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over all rows of the local partition, in the order of their keys' bytes."""


LOCAL_TABLES: ContextVar[LocalTables | None] = ContextVar("streamlog_rows_at_hand", default=None)
"""The rows of the running code; None if it owns no keys."""


@contextmanager
def use_local_tables(rows: LocalTables | None) -> Iterator[None]:
    """Make these rows local while the context lasts."""
    token = LOCAL_TABLES.set(rows)
    try:
        yield
    finally:
        LOCAL_TABLES.reset(token)


def local_tables(table: str) -> LocalTables:
    """Return the local rows.

    Raises:
        UsageError: no code that owns keys is running.
    """
    found = LOCAL_TABLES.get()
    if found is None:
        raise UsageError(
            f"rows of table {table!r} are local only in an agent or a processor that owns their "
            "keys: from anywhere else use `await table.fetch(key)`, `await table.put(key, value)` "
            "and `async for key, value in table.scan()`"
        )
    return found
