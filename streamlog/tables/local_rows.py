"""Rows at hand: what the code that runs just now may see and change of tables, without waiting.

A task, or a call of an agent, says what is at hand while the user's code runs; tables ask here.
Rule of the file: it belongs to one thread of control (a context variable), so nobody sees what is
in the hands of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from streamlog.errors import UsageError


class LocalTables(Protocol):
    """Port: rows of tables by name, as the user's objects; UsageError for those elsewhere."""

    def get(self, table: str, key: object) -> Any:  # noqa: ANN401 - of the user's type
        """The row of this key; None if there is none."""

    def put(self, table: str, key: object, value: object) -> None:
        """Set the row of this key; None deletes it."""

    def range(self, table: str) -> Iterator[tuple[Any, Any]]:
        """All rows of the partition in hand, in the order of their keys' bytes."""


LOCAL_TABLES: ContextVar[LocalTables | None] = ContextVar("streamlog_rows_at_hand", default=None)
"""None: nobody that owns keys is at work."""


@contextmanager
def use_local_tables(rows: LocalTables | None) -> Iterator[None]:
    """While this lasts, these rows are at hand."""
    token = LOCAL_TABLES.set(rows)
    try:
        yield
    finally:
        LOCAL_TABLES.reset(token)


def local_tables(table: str) -> LocalTables:
    """What is at hand now.

    Raises:
        UsageError: nobody that owns keys is at work.
    """
    found = LOCAL_TABLES.get()
    if found is None:
        raise UsageError(
            f"rows of table {table!r} are at hand only in an agent or a processor that owns their "
            "keys: from anywhere else use `await table.fetch(key)`, `await table.put(key, value)` "
            "and `async for key, value in table.scan()`"
        )
    return found
