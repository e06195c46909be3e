"""Tables and tasks of the test driver: rows read from its tasks, and the share of each worker.

`share_tasks` is even and sticky, like the assignment of workers: a worker keeps its tasks unless it
has too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from streamlog.processing.table_rows import KeySpan, TableRows, table_named
from streamlog.processing.task import Task, TaskId
from streamlog.serdes.erased_types import UserKey, UserValue
from streamlog.testing.driver_topics import MemoryTopic


def share_tasks(
    tasks: Iterable[TaskId], owners: Mapping[TaskId, int], workers: int
) -> dict[TaskId, int]:
    """Return the worker of each task, by number from 0; `owners` are the current ones."""
    ordered = sorted(tasks)
    # Rounded up. Owners keep at most that many tasks, so no worker stays without its share.
    most = -(-len(ordered) // workers)
    loads = Counter(dict.fromkeys(range(workers), 0))
    found: dict[TaskId, int] = {}
    for task_id in ordered:
        owner = owners.get(task_id, 0)
        if owner < workers and loads[owner] < most:
            found[task_id] = owner
            loads[owner] += 1
    for task_id in ordered:
        if task_id not in found:
            found[task_id] = min(range(workers), key=lambda worker: loads[worker])
            loads[found[task_id]] += 1
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverTables:
    """`TableAccess` to the tasks of a driver."""

    tables: Mapping[str, TableRows]
    tasks: Mapping[TaskId, Task]
    topics: Mapping[str, MemoryTopic]
    counts: Mapping[str, int]
    now_ms: Callable[[], int]
    run_tasks: Callable[[], None]
    """Runs the tasks until they have nothing to do."""

    async def fetch(self, table: str, key: object, *, stale_ok: bool) -> UserValue:  # noqa: ARG002 - of the user's type; nothing is stale here
        """See `TableAccess`."""
        rows = table_named(self.tables, table)
        partition = rows.partition_of(rows.own_key(key), rows.partitions(self.counts))
        row_key = rows.row_key(key)
        task = self.tasks[TaskId(rows.subtopology, partition)]
        data = task.row(rows.owner.name, row_key, committed=False)
        found = None if data is None else rows.found(key, row_key, data)
        return None if found is None else found[1]

    async def put(self, table: str, key: object, value: object) -> None:
        """See `TableAccess`."""
        rows = table_named(self.tables, table)
        topic = rows.source
        self.topics[topic.name].append(
            None if value is None else topic.value.dumps(value),
            key=rows.own_key(key),
            timestamp_ms=self.now_ms(),
        )
        self.run_tasks()

    async def scan(
        self, table: str, *, prefix: object, at_ms: int | None
    ) -> AsyncIterator[tuple[UserKey, UserValue]]:
        """See `TableAccess`."""
        rows = table_named(self.tables, table)
        wanted = rows.span(prefix=prefix, at_ms=at_ms)
        for partition in range(rows.partitions(self.counts)):
            span: KeySpan | None = wanted
            while span is not None:
                task = self.tasks[TaskId(rows.subtopology, partition)]
                page = task.rows(rows.owner.name, span, committed=False)
                for found in rows.seen(page.rows, at_ms=at_ms):
                    yield found
                span = None if page.next_key is None else span._replace(low=page.next_key)


@dataclass(frozen=True, slots=True)
class DriverTaskRows:
    """`CommittedRowReader` of the tasks of a driver: their current rows."""

    tasks: Mapping[TaskId, Task]

    def row(self, table: TableRows, partition: int, key: bytes) -> bytes | None:
        """Return a row; None if there is none."""
        task = self.tasks[TaskId(table.subtopology, partition)]
        return task.row(table.owner.name, key, committed=False)

    def rows(self, table: TableRows, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows of a partition, in the order of their keys."""
        task = self.tasks[TaskId(table.subtopology, partition)]
        span: KeySpan | None = table.span()
        while span is not None:
            page = task.rows(table.owner.name, span, committed=False)
            yield from page.rows
            span = None if page.next_key is None else span._replace(low=page.next_key)
