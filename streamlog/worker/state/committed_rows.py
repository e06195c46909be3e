"""OwnRows: what the tasks of this worker have committed, for the agents beside them.

Agents read from the event loop while the engine thread is at work on the same task. So what is
read here are the rows of the last commit, which a task's store shows to others at any time. Rule of
the file: a task that is not open has no rows; whoever asks then is told so, since its record comes
again where the task is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from streamlog.agents.rows import AgentRows
from streamlog.errors import UsageError
from streamlog.processing.table_rows import TableRows, tables_of
from streamlog.processing.task import TaskId
from streamlog.tables.state.store_transaction import DeferredStore
from streamlog.tables.stores.store import prefix_end
from streamlog.topology import Topology

ROWS_MAX = 10_000
"""Of a table that somebody goes through, read at a time: the task may be closed in between."""


class CommittedRows:
    """A `CommittedRowReader` of tasks that run here."""

    def __init__(self, store_of: Callable[[TaskId], DeferredStore | None]) -> None:
        """`store_of` gives what a task has committed; None if it is not open."""
        self._store_of = store_of

    def row(self, table: TableRows, partition: int, key: bytes) -> bytes | None:
        """See `CommittedRowReader`."""
        return self._store(table, partition).get(table.owner.specs[0].prefix + key)

    def rows(self, table: TableRows, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """See `CommittedRowReader`."""
        prefix = table.owner.specs[0].prefix
        low, high = prefix, prefix_end(prefix)
        while True:
            page = list(islice(self._store(table, partition).concurrent_range(low, high), ROWS_MAX))
            yield from ((key[len(prefix) :], data) for key, data in page)
            if len(page) < ROWS_MAX:
                return
            low = page[-1][0] + b"\x00"

    def _store(self, table: TableRows, partition: int) -> DeferredStore:
        found = self._store_of(TaskId(table.subtopology, partition))
        if found is None:
            raise UsageError(
                f"the rows of table {table.name!r}, partition {partition}, are with no task of "
                "this worker just now: the record in hand comes again where they are"
            )
        return found


def rows_for_agents(
    topology: Topology,
    counts: Mapping[str, int],
    store_of: Callable[[TaskId], DeferredStore | None],
) -> AgentRows:
    """What the agents of this worker have at hand."""
    return AgentRows(tables_of(topology), counts, topology.worked_on, CommittedRows(store_of))
