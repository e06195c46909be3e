"""GlobalTable: a table that every worker holds whole, readable by any key.

Rule of the file: every read uses the copy of the calling worker, as far as that worker has read the
topic. Not done here: `Stream.lookup` (`stream`).
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
    """A table that every worker holds whole: the latest value of type V per key of type K."""

    def __init__(self, builder: AppBuilder, definition: Definition) -> None:
        self.builder = builder
        self.definition = definition

    @property
    def name(self) -> str:
        """The table's name."""
        return self.definition.name

    async def fetch(self, key: K) -> V | None:
        """Return the row of a key as this worker has read it; None if there is no row.

        Raises:
            UsageError: the app does not run.
            SerdeError: the key does not have the table's type.
        """
        topic = self.definition.topic
        data = self._access().rows_of(self.name).get(topic.key.dumps(key))
        return None if data is None else topic.value.loads(data)

    async def scan(self) -> AsyncIterator[tuple[K, V]]:
        """Yield all rows as this worker has read them, in the order of key bytes.

        The scan of a table in memory shows the rows at its start. The scan of a table on disk reads
        some rows at a time, so it may show later changes.

        Raises:
            UsageError: the app does not run.
        """
        topic = self.definition.topic
        low: bytes | None = b""
        while low is not None:
            rows, low = self._access().rows_of(self.name).page(low)
            for key, data in rows:
                yield topic.key.loads(key), topic.value.loads(data)

    def _access(self) -> GlobalAccess:
        found = self.builder.runtime.global_tables
        if found is None:
            raise UsageError(
                f"the app is not running, so no rows of {self.name!r} can be read: read them in an "
                "agent, timer or crontab of a running worker, or in `with app.test()`"
            )
        return found
