"""TableAccess: the rows of tables, asked for from anywhere in the app.

A table's rows lie with the tasks that keep them, in whatever worker. Who runs the app puts an
access to them into its `Outlet`: a worker one that finds the owner, the test driver one that
looks into its own tasks. Rule of the file: keys and values cross it as the user's objects, and
a table is known by the name of its node, as views have names, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from streamlog.record import Headers
from streamlog.serdes.erased_types import UserKey, UserValue


class GlobalRowsAccess(Protocol):
    """Port: the rows of one global table, as bytes."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none."""

    def page(self, low: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Keys from `low` on with their values, in order; where to go on if these are not all."""


class GlobalAccess(Protocol):
    """Port: the global tables of an app, where it runs."""

    def rows_of(self, table: str) -> GlobalRowsAccess:
        """The rows of a table, by its name."""


class TableAccess(Protocol):
    """Port: the rows of all tables of an app."""

    async def fetch(self, table: str, key: object, *, stale_ok: bool) -> UserValue:
        """The row of this key; None if there is none."""

    async def put(self, table: str, key: object, value: object) -> None:
        """Write a row of a table that is kept from a topic; None deletes it."""

    def scan(
        self, table: str, *, prefix: object, at_ms: int | None
    ) -> AsyncIterator[tuple[UserKey, UserValue]]:
        """The rows of all partitions, of each in the order of keys."""


class RecordSender(Protocol):
    """Port: writes one record of bytes and says where it lies. A worker's or a test driver's."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        timestamp_ms: int | None,
        headers: Headers,
        partition: int | None,
    ) -> Awaitable[tuple[str, int, int, int]]:
        """Topic, partition, offset and timestamp of the record, once it is acknowledged."""


class RequestSender(Protocol):
    """Port: writes a record and waits for the answer. A worker's or a test driver's."""

    def ask(
        self, topic: str, value: bytes | None, *, key: bytes | None, timeout_ms: int
    ) -> Awaitable[bytes | None]:
        """The answer.

        Raises:
            RequestTimedOut: it has not come in time.
        """


class AppRuntime:
    """What the topics of an app are sent through, as long as the app runs."""

    def __init__(self) -> None:
        self.sender: RecordSender | None = None
        self.asker: RequestSender | None = None
        self.tables: TableAccess | None = None
        """What the rows of the app's tables are asked through."""
        self.global_tables: GlobalAccess | None = None
        """The same for tables that are here whole."""
