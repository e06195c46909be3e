"""AppRuntime: the ports through which an app's topics and tables reach the process that runs it.

A topic sends, an agent asks and a table is read through a port of `AppRuntime`, which is empty
until the app runs. A worker puts in ports that find the worker with the row; the test driver puts
in ports to its own tasks.

Rule: keys and values of tables pass as objects of the user's types, and a table has the name of its
node, because views have names too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import Headers
from streamlog.serdes.erased_types import UserKey, UserValue


class GlobalRowsAccess(Protocol):
    """Port: the rows of one global table, as bytes."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""

    def page(self, low: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return keys from `low` on with their values, in order, and the next key.

        The next key is None if there are no more rows.
        """


class GlobalAccess(Protocol):
    """Port: the global tables of an app, which each worker holds whole."""

    def rows_of(self, table: str) -> GlobalRowsAccess:
        """Return the rows of the table of this name."""


class TableAccess(Protocol):
    """Port: the rows of all tables of an app, in any worker."""

    async def fetch(self, table: str, key: object, *, stale_ok: bool) -> UserValue:
        """Return the row of this key; None if there is none.

        With `stale_ok`, a standby may answer, whose rows may be older.
        """

    async def put(self, table: str, key: object, value: object) -> None:
        """Write a row to the topic of its table; None deletes it."""

    def scan(
        self, table: str, *, prefix: object, at_ms: int | None
    ) -> AsyncIterator[tuple[UserKey, UserValue]]:
        """Yield the rows of all partitions; within a partition, in the order of their keys.

        Args:
            table: the name of the node.
            prefix: only keys that begin with this text or these bytes; None yields all keys.
            at_ms: only windows that contain this time, in ms since 1970; None yields all windows.
        """


class SchemaAssigner(Protocol):
    """Port: registers schemas; a worker implements it."""

    async def assign(self, topic: TopicSpec) -> None:
        """Give the serdes of a topic the ids of their schemas."""


class RecordSender(Protocol):
    """Port: writes one serialized record; a worker or a test driver implements it."""

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
        """Return topic, partition, offset and timestamp in ms, once the log has acknowledged."""


class RequestSender(Protocol):
    """Port: writes a record and waits for an answer; a worker or a test driver implements it."""

    def ask(
        self, topic: str, value: bytes | None, *, key: bytes | None, timeout_ms: int
    ) -> Awaitable[bytes | None]:
        """Return the serialized answer of the agent that handles the record.

        Raises:
            RequestTimedOut: no answer came within `timeout_ms`.
        """


class AppRuntime:
    """The ports of an app to the process that runs it; each is None while the app does not run."""

    def __init__(self) -> None:
        self.sender: RecordSender | None = None
        self.requests: RequestSender | None = None
        self.tables: TableAccess | None = None
        """Reads and writes rows of the app's tables."""
        self.global_tables: GlobalAccess | None = None
        """Reads rows of global tables."""
        self.schemas: SchemaAssigner | None = None
        """Gives serdes the ids of their schemas, before the first value that is sent."""

    async def prepare_schemas(self, topic: TopicSpec) -> None:
        """Give the serdes of a topic the ids of their schemas, if a registry keeps these.

        Raises:
            StreamlogError: a schema can't be registered.
        """
        serdes = (topic.key, topic.value)
        if self.schemas is not None and not all(getattr(s, "is_assigned", True) for s in serdes):
            await self.schemas.assign(topic)
