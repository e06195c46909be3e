"""GlobalTable: a topic that every worker has whole, to be looked into by any key.

Rule of the file: what is asked for here is answered by the copy of the worker that asks, at once,
as far as that has been read. Not done here: `Stream.lookup` (`joins`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from streamlog.dsl.app_runtime import GlobalAccess
from streamlog.dsl.stream_position import AppBuilder
from streamlog.errors import UsageError
from streamlog.nodes.table_nodes import GlobalTableNode as Definition

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""


class GlobalTable(Generic[K, V]):
    """The latest value of type V per key of type K, of a whole topic, in every worker."""

    def __init__(self, builder: AppBuilder, definition: Definition) -> None:
        self.builder = builder
        self.definition = definition

    @property
    def name(self) -> str:
        """What it is called."""
        return self.definition.name

    async def fetch(self, key: K) -> V | None:
        """The row of a key as this worker has read it; None if there is none.

        Raises:
            UsageError: nobody runs the app.
            SerdeError: the key is not of the table's type.
        """
        topic = self.definition.topic
        data = self._access().rows_of(self.name).get(topic.key.dumps(key))
        return None if data is None else topic.value.loads(data)

    async def scan(self) -> AsyncIterator[tuple[K, V]]:
        """All rows as this worker has read them, in the order of keys' bytes.

        Of a table in memory it is as of the beginning; one on disk is read some rows at a time.

        Raises:
            UsageError: nobody runs the app.
        """
        topic = self.definition.topic
        low: bytes | None = b""
        while low is not None:
            rows, low = self._access().rows_of(self.name).page(low)
            for key, data in rows:
                yield topic.key.loads(key), topic.value.loads(data)

    def _access(self) -> GlobalAccess:
        found = self.builder.outlet.global_tables
        if found is None:
            raise UsageError(
                f"nobody runs the app, so there are no rows of {self.name!r} to be had: ask from "
                "an agent, timer or crontab of a running worker, or in `with app.test()`"
            )
        return found
