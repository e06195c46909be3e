"""LocalRows: questions about rows, answered by the tasks that run in this worker.

Tasks answer between two batches, one question after the other, from what they have committed;
standby copies, if they are asked, from what they have read, with the time since they last had
all of it. Rule of the file: what waits is bounded, in number here and in cost by the pages of a
scan; one question too many is refused at once, as whoever asks can come again and a task can't.
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
from streamlog.worker.health.worker_health import Figures

T = TypeVar("T")
"""What a task answers."""


class _Aged(NamedTuple):
    """A copy, and how long ago it was like its owner."""

    store: KeyValueStore
    age_ms: int


WAITING_MAX = 256
"""Questions of all who ask that wait for this worker's tasks."""
PASSED_LOOK_MS = 20
"""How often it is looked whether a record has been committed, while somebody waits for it."""


class QueryableTasks(Protocol):
    """Port: the tasks of this worker."""

    @property
    def is_suspended(self) -> bool:
        """Whether tasks process nothing just now."""

    def runs(self, task_id: TaskId) -> bool:
        """Whether the task runs here."""

    def ask(self, task_id: TaskId, question: Callable[[Task], T]) -> Awaitable[T]:
        """Let a task answer between two batches; NotHere if it does not run here."""


class StandbyCopy(Protocol):
    """Port: a task's state that is followed here while the task runs elsewhere."""

    @property
    def store(self) -> KeyValueStore | None:
        """What it has; None while it is being made."""

    @property
    def even_ms(self) -> int | None:
        """When it last had all that its owner had committed; None before it first did."""


class LocalRows:
    """The rows of the tasks that run here."""

    def __init__(
        self,
        topology: Topology,
        tasks: QueryableTasks,
        clock: Clock,
        *,
        figures: Figures,
        copy_of: Callable[[TaskId], StandbyCopy | None],
    ) -> None:
        """`copy_of` gives the standby copies of this worker, to be used from the event loop."""
        self._topology = topology
        self._tasks = tasks
        self._clock = clock
        self._figures = figures
        self._copy_of = copy_of
        self._waiting = 0

    def has(self, task_id: TaskId) -> bool:
        """Whether this worker is who answers for the task."""
        return self._tasks.runs(task_id)

    async def row(self, asked: RowQuery) -> RowAnswer:
        """See `Holder`."""

        def look(task: Task) -> bytes | None:
            return task.row(asked.table, asked.key, committed=True)

        if (copy := self._copy(asked)) is not None:
            found = copy.store.get(self._prefix(asked) + asked.key)
            return RowAnswer(data=found, age_ms=copy.age_ms)
        return RowAnswer(data=await self._ask(asked, look))

    async def rows(self, asked: ScanQuery) -> ScanAnswer:
        """See `Holder`."""

        def look(task: Task) -> RowPage:
            return task.rows(asked.table, asked.span, committed=True, rows_max=asked.rows_max)

        if (copy := self._copy(asked)) is not None:
            page = read_page(
                copy.store.range, self._prefix(asked), asked.span, rows_max=asked.rows_max
            )
            return ScanAnswer(rows=page.rows, next_key=page.next_key, age_ms=copy.age_ms)
        page = await self._ask(asked, look)
        return ScanAnswer(rows=page.rows, next_key=page.next_key)

    async def passed(self, asked: AppliedQuery) -> AppliedAnswer:
        """See `Holder`."""
        deadline_ms = self._clock.now_ms() + asked.wait_ms
        place = (asked.topic, asked.partition)
        while True:
            positions = await self._ask(asked, lambda task: task.committed_positions)
            if positions.get(place, 0) > asked.offset:
                return AppliedAnswer(passed=True)
            if self._tasks.is_suspended:
                return AppliedAnswer(stands=True)
            if self._clock.now_ms() >= deadline_ms:
                return AppliedAnswer()
            await asyncio.sleep(PASSED_LOOK_MS / 1000)

    def _copy(self, asked: TaskQuery) -> _Aged | None:
        """The copy to answer from, if the task does not run here and a copy will do."""
        if not asked.stale_ok or self._tasks.runs(asked.task_id):
            return None
        copy = self._copy_of(asked.task_id) if asked.app == self._topology.app_id else None
        if copy is None or copy.store is None or copy.even_ms is None:
            return None
        self._figures.answered["standby"] += 1
        return _Aged(copy.store, max(self._clock.now_ms() - copy.even_ms, 0))

    def _prefix(self, asked: TaskQuery) -> bytes:
        if asked.subtopology >= len(self._topology.subtopologies):
            raise NotHere(f"this worker's app has no sub-topology {asked.subtopology}")
        return prefix_of(self._topology.subtopologies[asked.subtopology], asked.table)

    async def _ask(self, asked: TaskQuery, question: Callable[[Task], Any]) -> Any:  # noqa: ANN401 - of the question's type
        if asked.app != self._topology.app_id:
            raise NotHere(f"this worker is of app {self._topology.app_id!r}, not {asked.app!r}")
        if self._waiting >= WAITING_MAX:
            raise RequestTimedOut(
                f"this worker is asked for too many rows at once (more than {WAITING_MAX})"
            )
        self._waiting += 1
        try:
            answer = await self._tasks.ask(asked.task_id, question)
            self._figures.answered["task"] += 1
            return answer
        finally:
            self._waiting -= 1


logger = repeated.logger(__name__)

"""An answer."""

WAIT_MS = 60_000
"""Longer than the group takes to see that a worker has died, and others to take over. They wait for
their agents (`agents.HANDLE_WAIT_MS`) first, one of which may wait here for what is to move."""
RETRY_MS = 100
APPLIED_WAIT_MS = 2_000
"""How long one question whether a row has arrived waits for the owner's next commit."""


@dataclass(frozen=True, slots=True)
class RoutedRow:
    """A row."""

    key: Any
    value: Any
    age_ms: int | None
    """Of a standby copy; None from the owner."""


@dataclass(frozen=True, slots=True)
class Put:
    """A row that was written."""

    topic: str
    partition: int
    offset: int
    applied: bool
    """Whether its owner has committed it. Not waited for while the group forms anew."""


class SendQuestion(Protocol):
    """Writes one record and says where it lies: topic, partition, offset, timestamp."""

    def __call__(
        self, topic: str, value: bytes | None, *, key: bytes | None
    ) -> Awaitable[tuple[str, int, int, int]]:
        """Once it is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingDeps:
    """What the rows of an app are reached by."""

    app_id: str
    tables: Mapping[str, TableRows]
    counts: Mapping[str, int]
    peers: WorkerPeers
    local: LocalRows
    remote: Callable[[str], RowHolder]
    """The worker at an endpoint."""
    send: SendQuestion
    clock: Clock


class RoutedTables:
    """A `TableAccess` over all workers."""

    def __init__(self, reach: RoutingDeps) -> None:
        self._with = reach

    @property
    def tables(self) -> Mapping[str, TableRows]:
        """All tables by name."""
        return self._with.tables

    def partitions(self, rows: TableRows) -> int:
        """How many partitions a table has."""
        return rows.partitions(self._with.counts)

    async def fetch(self, table: str, key: object, *, stale_ok: bool) -> Any:  # noqa: ANN401 - of the user's type
        """See `TableAccess`."""
        found = await self.find(table, key, stale_ok=stale_ok)
        return None if found is None else found.value

    async def find(
        self, table: str, key: object, *, stale_ok: bool = False, wait_ms: int = WAIT_MS
    ) -> RoutedRow | None:
        """The row of a key with its age; None if there is none.

        Raises:
            UsageError: there is no such table.
            SerdeError: the key is not of its type.
            RequestTimedOut: nobody had the row in time.
            ConfigError: who has it has no server.
        """
        rows = table_named(self._with.tables, table)
        row_key = rows.row_key(key)
        asked = RowQuery(
            app=self._with.app_id,
            table=rows.owner.name,
            subtopology=rows.subtopology,
            partition=rows.partition_of(rows.own_key(key), self.partitions(rows)),
            stale_ok=stale_ok,
            key=row_key,
        )
        answer = await self._answer(asked, lambda holder: holder.row(asked), wait_ms)
        if answer.age_ms is not None:
            logger.info("table %s: from a standby copy, %d ms old", table, answer.age_ms)
        found = None if answer.data is None else rows.found(key, row_key, answer.data)
        return None if found is None else RoutedRow(*found, answer.age_ms)

    async def put(self, table: str, key: object, value: object) -> None:
        """See `TableAccess`."""
        await self.write(table, key, value)

    async def write(self, table: str, key: object, value: object, *, wait_ms: int = WAIT_MS) -> Put:
        """Write a row, and wait until its owner has committed it.

        Raises:
            UsageError: the rows are computed.
            SerdeError: key or value are not of the table's types.
            RequestTimedOut: it is written, and was not committed in time.
            ConfigError: who has the row has no server.
        """
        rows = table_named(self._with.tables, table)
        topic = rows.source
        data = None if value is None else _dumped(rows, value)
        raw = rows.own_key(key)
        _, partition, offset, _ = await self._with.send(topic.name, data, key=raw)
        deadline_ms = self._with.clock.now_ms() + wait_ms
        asked = AppliedQuery(
            app=self._with.app_id,
            table=rows.owner.name,
            subtopology=rows.subtopology,
            partition=partition,
            topic=topic.name,
            offset=offset,
            wait_ms=min(wait_ms, APPLIED_WAIT_MS),
        )
        while not (answer := await self._answer(asked, _passed_of(asked), wait_ms)).passed:
            if answer.stands:
                break
            if self._with.clock.now_ms() >= deadline_ms:
                raise RequestTimedOut(
                    f"the row of table {table!r} is written at offset {offset} of "
                    f"{topic.name}-{partition}, but task {asked.task_id} has not committed it "
                    f"within {wait_ms} ms"
                )
            await asyncio.sleep(RETRY_MS / 1000)
        return Put(topic.name, partition, offset, applied=answer.passed)

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
        """All rows with their ages, a page at a time. Raises as `find`."""
        rows = table_named(self._with.tables, table)
        span = rows.span(prefix=prefix, at_ms=at_ms)
        for partition in range(self.partitions(rows)):
            low: bytes | None = span.low
            while low is not None:
                asked = ScanQuery(
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
                answer = await self._answer(asked, _rows_of(asked), wait_ms)
                for found in rows.seen(answer.rows, at_ms=at_ms):
                    yield RoutedRow(*found, answer.age_ms)
                low = answer.next_key

    async def _answer(
        self, asked: TaskQuery, question: Callable[[RowHolder], Awaitable[T]], wait_ms: int
    ) -> T:
        """Ask those who may know until one does."""
        clock, task_id = self._with.clock, asked.task_id
        deadline_ms = clock.now_ms() + wait_ms
        while True:
            why = "it moves from one worker to another, or nobody runs it yet"
            for holder in self._holders(task_id, stale_ok=asked.stale_ok):
                try:
                    return await question(holder)
                except NotHere as error:
                    why = str(error)
            if clock.now_ms() >= deadline_ms:
                raise RequestTimedOut(
                    f"nobody has answered for task {task_id} (table {asked.table!r}) within "
                    f"{wait_ms} ms: {why}"
                )
            await asyncio.sleep(RETRY_MS / 1000)

    def _holders(self, task_id: TaskId, *, stale_ok: bool) -> Iterator[RowHolder]:
        """Who may have the task's rows, the most likely first."""
        if self._with.local.has(task_id):
            yield self._with.local
        peers = self._with.peers
        others = [peer for peer in self._owners(task_id) if not peers.is_me(peer)]
        standbys = list(peers.standbys(task_id)) if stale_ok else []
        if any(peers.is_me(peer) for peer in standbys):
            yield self._with.local
        asked = {peer.endpoint for peer in (*others, *standbys) if not peers.is_me(peer)}
        for peer in (*others, *standbys):
            if peer.endpoint in asked and peer.endpoint:
                asked.discard(peer.endpoint)
                yield self._with.remote(peer.endpoint)
        if others and not any(peer.endpoint for peer in (*others, *standbys)):
            raise ConfigError(
                f"task {task_id} runs in another worker, which has no HTTP server to be asked "
                "by: start every worker with --web HOST:PORT, or App(web=...)"
            )

    def _owners(self, task_id: TaskId) -> list[Peer]:
        """Who runs the task; everybody, if the group is too large to be told who runs what."""
        peers = self._with.peers
        owner = peers.active(task_id)
        if owner is not None:
            return [owner]
        return [] if any(peer.active for peer in peers.all) else list(peers.all)


def _rows_of(asked: ScanQuery) -> Callable[[RowHolder], Awaitable[Any]]:
    return lambda holder: holder.rows(asked)


def _passed_of(asked: AppliedQuery) -> Callable[[RowHolder], Awaitable[AppliedAnswer]]:
    return lambda holder: holder.passed(asked)


def _dumped(rows: TableRows, value: object) -> bytes:
    try:
        return rows.source.value.dumps(value)
    except StreamlogError as error:
        raise SerdeError(f"the value for table {rows.name!r}: {error}") from error
