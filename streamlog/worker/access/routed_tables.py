"""Routed tables: the rows of all tables, wherever their tasks run.

`RoutedTables` finds the worker that has a row: this one, the task's owner, or a standby if old rows
will do. It repeats a query while the task moves. `LocalRows` answers for the tasks of this worker:
a task answers between two batches, one query at a time, from its committed state; a standby answers
from what it has read, and says how old its rows may be.

Rule: queries that wait are bounded, in number here and in cost by the pages of a scan. A query
beyond the bound is refused immediately, as its sender can repeat it while the task has to process
records. Not done here: HTTP (`web/table_pages`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.errors import ConfigError, RequestTimedOut, SerdeError, StreamlogError
from streamlog.processing.table_rows import (
    PAGE_ROWS_MAX,
    RowPage,
    TableRows,
    prefix_of,
    read_page,
    table_named,
)
from streamlog.processing.task import Task, TaskId
from streamlog.tables.stores.store import KeyValueStore
from streamlog.topology import Topology
from streamlog.worker.access.questions import (
    AppliedAnswer,
    AppliedQuery,
    NotHere,
    RowAnswer,
    RowHolder,
    RowQuery,
    ScanAnswer,
    ScanQuery,
    TaskQuery,
)
from streamlog.worker.assignment.streams_assignor import Peer, WorkerPeers
from streamlog.worker.health.worker_metrics import WorkerMetrics

T = TypeVar("T")
"""The type of an answer."""


class _Aged(NamedTuple):
    """The store of a standby, and the time since it last had everything that the owner had."""

    store: KeyValueStore
    age_ms: int


WAITING_MAX = 256
"""The largest number of queries that wait for this worker's tasks."""
PASSED_LOOK_MS = 20
"""The pause between two checks whether a record is committed."""


class QueryableTasks(Protocol):
    """Port: the tasks of this worker."""

    @property
    def is_suspended(self) -> bool:
        """Whether the tasks process nothing at present."""

    def runs(self, task_id: TaskId) -> bool:
        """Return whether the task runs here."""

    def ask(self, task_id: TaskId, question: Callable[[Task], T]) -> Awaitable[T]:
        """Call `question` with the task between two batches.

        Raises:
            NotHere: the task does not run here.
        """


class StandbyCopy(Protocol):
    """Port: the state of a task that runs on another worker."""

    @property
    def store(self) -> KeyValueStore | None:
        """The store; None while it is being created."""

    @property
    def even_ms(self) -> int | None:
        """The time at which it last had everything that the owner had committed, or None."""


class LocalRows:
    """The rows of the tasks that run on this worker; a `RowHolder`."""

    def __init__(
        self,
        topology: Topology,
        tasks: QueryableTasks,
        clock: Clock,
        *,
        metrics: WorkerMetrics,
        copy_of: Callable[[TaskId], StandbyCopy | None],
    ) -> None:
        """Create the holder; `copy_of` returns the standby of a task, if this worker has one."""
        self._topology = topology
        self._tasks = tasks
        self._clock = clock
        self._metrics = metrics
        self._copy_of = copy_of
        self._waiting = 0

    def has(self, task_id: TaskId) -> bool:
        """Return whether the task runs on this worker."""
        return self._tasks.runs(task_id)

    async def row(self, query: RowQuery) -> RowAnswer:
        """See `RowHolder`."""

        def look(task: Task) -> bytes | None:
            return task.row(query.table, query.key, committed=True)

        if (copy := self._copy(query)) is not None:
            # A standby applies records on this event loop, so its store needs no engine thread.
            found = copy.store.get(self._prefix(query) + query.key)
            return RowAnswer(data=found, age_ms=copy.age_ms)
        return RowAnswer(data=await self._ask(query, look))

    async def rows(self, query: ScanQuery) -> ScanAnswer:
        """See `RowHolder`."""

        def look(task: Task) -> RowPage:
            return task.rows(query.table, query.span, committed=True, rows_max=query.rows_max)

        if (copy := self._copy(query)) is not None:
            page = read_page(
                copy.store.range, self._prefix(query), query.span, rows_max=query.rows_max
            )
            return ScanAnswer(rows=page.rows, next_key=page.next_key, age_ms=copy.age_ms)
        page = await self._ask(query, look)
        return ScanAnswer(rows=page.rows, next_key=page.next_key)

    async def check_applied(self, query: AppliedQuery) -> AppliedAnswer:
        """See `RowHolder`."""
        deadline_ms = self._clock.now_ms() + query.wait_ms
        part = (query.topic, query.partition)
        while True:
            positions = await self._ask(query, lambda task: task.committed_positions)
            # A position is the offset after the last committed record: it has to be beyond the
            # row's.
            if positions.get(part, 0) > query.offset:
                return AppliedAnswer(is_applied=True)
            # 1. An agent has written a row, and waits here until the row's task has committed it.
            # 2. A rebalance begins: tasks stop, and the group waits for the agent.
            # 3. No commit comes before the rebalance ends, so neither would end without this.
            if self._tasks.is_suspended:
                return AppliedAnswer(is_suspended=True)
            if self._clock.now_ms() >= deadline_ms:
                return AppliedAnswer()
            await asyncio.sleep(PASSED_LOOK_MS / 1000)

    def _copy(self, query: TaskQuery) -> _Aged | None:
        """Return the standby to answer from, if the task runs elsewhere and old rows will do."""
        if not query.stale_ok or self._tasks.runs(query.task_id):
            return None
        copy = self._copy_of(query.task_id) if query.app == self._topology.app_id else None
        if copy is None or copy.store is None or copy.even_ms is None:
            return None
        self._metrics.table_answers.series("standby").add()
        return _Aged(copy.store, max(self._clock.now_ms() - copy.even_ms, 0))

    def _prefix(self, query: TaskQuery) -> bytes:
        if query.subtopology >= len(self._topology.subtopologies):
            raise NotHere(f"this worker's app has no sub-topology {query.subtopology}")
        return prefix_of(self._topology.subtopologies[query.subtopology], query.table)

    async def _ask(self, query: TaskQuery, question: Callable[[Task], Any]) -> Any:  # noqa: ANN401 - of the question's type
        if query.app != self._topology.app_id:
            raise NotHere(f"this worker is of app {self._topology.app_id!r}, not {query.app!r}")
        if self._waiting >= WAITING_MAX:
            raise RequestTimedOut(
                f"this worker already has {WAITING_MAX} waiting queries for rows: try again later"
            )
        self._waiting += 1
        try:
            answer = await self._tasks.ask(query.task_id, question)
            self._metrics.table_answers.series("task").add()
            return answer
        finally:
            self._waiting -= 1


logger = repeated.logger(__name__)


WAIT_MS = 60_000
"""How long a query is repeated while its task moves. It covers the detection of a dead worker and
the take-over of its tasks. Other workers let their agents finish first (`agents.HANDLE_WAIT_MS`),
and such an agent may itself wait here for a row of the task that moves."""
RETRY_MS = 100
APPLIED_WAIT_MS = 2_000
"""How long one `AppliedQuery` waits for the owner's next commit."""


@dataclass(frozen=True, slots=True)
class RoutedRow:
    """A row with its age."""

    key: Any
    value: Any
    age_ms: int | None
    """From a standby: the time since it last had everything that the owner had committed, in
    milliseconds. None from the owner."""


@dataclass(frozen=True, slots=True)
class Put:
    """The record of a row that was written."""

    topic: str
    partition: int
    offset: int
    applied: bool
    """Whether the row's task has committed it; false if the write did not wait for that, because
    the group rebalances."""


class SendQuestion(Protocol):
    """Writes a record."""

    def __call__(
        self, topic: str, value: bytes | None, *, key: bytes | None
    ) -> Awaitable[tuple[str, int, int, int]]:
        """Return the acknowledged record's topic, partition, offset and timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingDeps:
    """The tables of an app, and the ways to their rows."""

    app_id: str
    tables: Mapping[str, TableRows]
    counts: Mapping[str, int]
    peers: WorkerPeers
    local: LocalRows
    remote: Callable[[str], RowHolder]
    """Returns the worker at an endpoint, HOST:PORT."""
    send: SendQuestion
    clock: Clock


class RoutedTables:
    """The rows of all workers; a `TableAccess`."""

    def __init__(self, deps: RoutingDeps) -> None:
        self._with = deps

    @property
    def tables(self) -> Mapping[str, TableRows]:
        """All tables by name."""
        return self._with.tables

    def partitions(self, rows: TableRows) -> int:
        """Return the number of partitions of a table."""
        return rows.partitions(self._with.counts)

    async def fetch(self, table: str, key: object, *, stale_ok: bool) -> Any:  # noqa: ANN401 - of the user's type
        """See `TableAccess`."""
        found = await self.find(table, key, stale_ok=stale_ok)
        return None if found is None else found.value

    async def find(
        self, table: str, key: object, *, stale_ok: bool = False, wait_ms: int = WAIT_MS
    ) -> RoutedRow | None:
        """Return the row of a key with its age, or None if the key has no row.

        Args:
            table: the name of the table.
            key: the key.
            stale_ok: whether a standby may answer.
            wait_ms: how long to repeat the query while the task moves.

        Raises:
            UsageError: there is no such table.
            SerdeError: the key is not of the table's key type.
            RequestTimedOut: no worker with the task answered in time.
            ConfigError: the worker with the task has no HTTP server.
        """
        rows = table_named(self._with.tables, table)
        row_key = rows.row_key(key)
        query = RowQuery(
            app=self._with.app_id,
            table=rows.owner.name,
            subtopology=rows.subtopology,
            partition=rows.partition_of(rows.own_key(key), self.partitions(rows)),
            stale_ok=stale_ok,
            key=row_key,
        )
        answer = await self._answer(query, lambda holder: holder.row(query), wait_ms)
        if answer.age_ms is not None:
            logger.info("table %s: row from a standby, %d ms old", table, answer.age_ms)
        found = None if answer.data is None else rows.found(key, row_key, answer.data)
        return None if found is None else RoutedRow(*found, answer.age_ms)

    async def put(self, table: str, key: object, value: object) -> None:
        """See `TableAccess`."""
        await self.write(table, key, value)

    async def write(self, table: str, key: object, value: object, *, wait_ms: int = WAIT_MS) -> Put:
        """Write a row, and wait until its task has committed it.

        Args:
            table: the name of the table.
            key: the key.
            value: the value; None deletes the row.
            wait_ms: how long to wait for the commit.

        Raises:
            UsageError: the table's rows are computed, or there is no such table.
            SerdeError: key or value are not of the table's types.
            RequestTimedOut: the row is written, but was not committed in time.
            ConfigError: the worker with the task has no HTTP server.
        """
        rows = table_named(self._with.tables, table)
        topic = rows.source
        data = None if value is None else _dump(rows, value)
        raw = rows.own_key(key)
        _, partition, offset, _ = await self._with.send(topic.name, data, key=raw)
        deadline_ms = self._with.clock.now_ms() + wait_ms
        query = AppliedQuery(
            app=self._with.app_id,
            table=rows.owner.name,
            subtopology=rows.subtopology,
            partition=partition,
            topic=topic.name,
            offset=offset,
            # Short waits, repeated: each query looks up the owner anew, as the task may move
            # meanwhile.
            wait_ms=min(wait_ms, APPLIED_WAIT_MS),
        )
        while not (answer := await self._answer(query, _applied_of(query), wait_ms)).is_applied:
            # The row is in the log, and its task will process it. Waiting on could block a
            # rebalance that waits for this caller (`LocalRows.check_applied`).
            if answer.is_suspended:
                break
            if self._with.clock.now_ms() >= deadline_ms:
                raise RequestTimedOut(
                    f"the row of table {table!r} is written at offset {offset} of "
                    f"{topic.name}-{partition}, but task {query.task_id} has not committed it "
                    f"within {wait_ms} ms"
                )
            await asyncio.sleep(RETRY_MS / 1000)
        return Put(topic.name, partition, offset, applied=answer.is_applied)

    async def scan(
        self, table: str, *, prefix: object, at_ms: int | None
    ) -> AsyncIterator[tuple[Any, Any]]:
        """See `TableAccess`."""
        async for found in self.walk(table, prefix=prefix, at_ms=at_ms):
            yield found.key, found.value

    async def walk(
        self,
        table: str,
        *,
        prefix: object = None,
        at_ms: int | None = None,
        stale_ok: bool = False,
        page_rows: int = PAGE_ROWS_MAX,
        wait_ms: int = WAIT_MS,
    ) -> AsyncIterator[RoutedRow]:
        """Yield all rows with their ages; reads `page_rows` at a time. Raises as `find`."""
        rows = table_named(self._with.tables, table)
        span = rows.span(prefix=prefix, at_ms=at_ms)
        for partition in range(self.partitions(rows)):
            low: bytes | None = span.low
            while low is not None:
                query = ScanQuery(
                    app=self._with.app_id,
                    table=rows.owner.name,
                    subtopology=rows.subtopology,
                    partition=partition,
                    stale_ok=stale_ok,
                    low=low,
                    high=span.high,
                    head=span.head,
                    own_at=span.own_at,
                    rows_max=page_rows,
                )
                answer = await self._answer(query, _rows_of(query), wait_ms)
                for found in rows.seen(answer.rows, at_ms=at_ms):
                    yield RoutedRow(*found, answer.age_ms)
                # A page begins at a key, not at a cursor of the worker: the task may move between
                # two pages, and its next owner continues the scan.
                low = answer.next_key

    async def _answer(
        self, query: TaskQuery, question: Callable[[RowHolder], Awaitable[T]], wait_ms: int
    ) -> T:
        """Ask the workers that may have the task until one answers."""
        clock, task_id = self._with.clock, query.task_id
        deadline_ms = clock.now_ms() + wait_ms
        while True:
            # The directory is read anew in each round: a rebalance may have moved the task.
            reason = "the task moves from one worker to another, or no worker runs it yet"
            for holder in self._holders(task_id, stale_ok=query.stale_ok):
                try:
                    return await question(holder)
                except NotHere as error:
                    reason = str(error)
            if clock.now_ms() >= deadline_ms:
                raise RequestTimedOut(
                    f"no worker answered for task {task_id} (table {query.table!r}) within "
                    f"{wait_ms} ms: {reason}"
                )
            await asyncio.sleep(RETRY_MS / 1000)

    def _holders(self, task_id: TaskId, *, stale_ok: bool) -> Iterator[RowHolder]:
        """Yield the workers that may have the task's rows, the most likely first."""
        if self._with.local.has(task_id):
            yield self._with.local
        peers = self._with.peers
        others = [peer for peer in self._owners(task_id) if not peers.is_me(peer)]
        standbys = list(peers.standbys(task_id)) if stale_ok else []
        # Before the other workers: this answer costs no request.
        if any(peers.is_me(peer) for peer in standbys):
            yield self._with.local
        # A worker may be in both lists; it is asked once.
        unasked = {peer.endpoint for peer in (*others, *standbys) if not peers.is_me(peer)}
        for peer in (*others, *standbys):
            if peer.endpoint in unasked and peer.endpoint:
                unasked.discard(peer.endpoint)
                yield self._with.remote(peer.endpoint)
        # Reached only if no holder above has answered. Without an endpoint no retry can help.
        if others and not any(peer.endpoint for peer in (*others, *standbys)):
            raise ConfigError(
                f"task {task_id} runs on another worker, which has no HTTP server: start every "
                "worker with --web HOST:PORT, or set App(web=...)"
            )

    def _owners(self, task_id: TaskId) -> list[Peer]:
        """Return the worker that runs the task; all workers if the directory names no tasks.

        The directory of a large group holds addresses only (`DIRECTORIES_BYTES_MAX`).
        """
        peers = self._with.peers
        owner = peers.active(task_id)
        if owner is not None:
            return [owner]
        return [] if any(peer.active for peer in peers.all) else list(peers.all)


def _rows_of(query: ScanQuery) -> Callable[[RowHolder], Awaitable[Any]]:
    return lambda holder: holder.rows(query)


def _applied_of(query: AppliedQuery) -> Callable[[RowHolder], Awaitable[AppliedAnswer]]:
    return lambda holder: holder.check_applied(query)


def _dump(rows: TableRows, value: object) -> bytes:
    try:
        return rows.source.value.dumps(value)
    except StreamlogError as error:
        raise SerdeError(f"the value for table {rows.name!r}: {error}") from error
