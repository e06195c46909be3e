"""Global reader: reads the topics of global tables into this worker's memory, or onto its disk.

All committed records are read before the worker joins its group, so that no task looks up a
half-read table. After that, new records are followed by a consumer without a group.

Rule: rows are applied on the event loop, or on a thread that it waits for; the engine thread looks
them up one by one. Not done here: the joins (`processing/joins/stream_table_join`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from streamlog import repeated
from streamlog.client.offset_metadata import NO_EPOCH, OffsetAndMetadata
from streamlog.client.range_reader import RangeReader
from streamlog.clock import Clock
from streamlog.errors import DamagedBatch, SourceLost
from streamlog.log import Log
from streamlog.nodes.table_nodes import GlobalTableNode
from streamlog.processing.error_handling import DamagedInputs
from streamlog.processing.joins.stream_table_join import GlobalTables
from streamlog.record import TopicPartition
from streamlog.records.record_columns import RecordColumns
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.local_disk.task_directory import TaskDirectory
from streamlog.topology import Topology
from streamlog.worker.health.worker_metrics import WorkerMetrics
from streamlog.worker.program import Program
from streamlog.worker.state.changelog_reader import is_truncated

logger = repeated.logger(__name__)

AWAY_MS_MAX = 12 * 60 * 60 * 1000
"""How old a store may be: half of the time for which compacted topics keep tombstones by default
(`delete.retention.ms`). An older store could keep deleted rows."""
_REACHED = b"\x00reached"
"""The key of a store's progress; it sorts before the keys of rows."""


class _Reached(msgspec.Struct, array_like=True):
    """The progress of a store, as it is stored."""

    cluster: str
    wall_ms: int
    offsets: dict[int, int]
    topic_id: str = ""
    """The topic id as hexadecimal text; empty if the broker has no topic ids."""
    epochs: dict[int, int] = {}
    """Partition to the leader epoch of the record before the offset."""


class GlobalStores:
    """The stores of global tables on disk, by the names of the tables."""

    def __init__(
        self,
        rocksdb: Mapping[str, RocksStore],
        directories: Mapping[str, TaskDirectory] | None = None,
        *,
        cluster: str = "",
    ) -> None:
        """Not for direct use: call `opened`. `cluster` is the id of the log's cluster."""
        self.rocksdb = rocksdb
        self._directories = directories or {}
        self._cluster = cluster
        self._ids: dict[str, str] = {}

    @classmethod
    def opened(
        cls, tables: Iterable[GlobalTableNode], path: str, *, memory_bytes: int, cluster: str
    ) -> GlobalStores:
        """Open the stores in the app's state directory; each process has stores of its own.

        Raises:
            LogDirectoryError: a directory can't be created, read or written.
        """
        names = [table.name for table in tables if table.backend == "rocksdb"]
        directories = {name: TaskDirectory(f"{path}/global/{name}") for name in names}
        stores: dict[str, RocksStore] = {}
        found = cls(stores, directories, cluster=cluster)
        try:
            for name, directory in directories.items():
                # Processes share the directory: each takes a store that no other process has
                # locked.
                budget = RocksBudget(memory_bytes // len(names))
                stores[name] = directory.open(budget, skip_locked=True, is_standby=True)
                directory.remove_old()
        except BaseException:
            found.close()
            raise
        return found

    def positions(
        self, tables: Mapping[str, Iterable[str]]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Return the read positions of each table on disk; `tables` maps topics to tables."""
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for topic, names in tables.items():
            for name in names:
                reached = self._reached(name)
                if reached is not None:
                    found[name] = {
                        TopicPartition(topic, n): OffsetAndMetadata(
                            at, leader_epoch=reached.epochs.get(n, NO_EPOCH)
                        )
                        for n, at in reached.offsets.items()
                    }
        return found

    def forget(self, names: Collection[str]) -> None:
        """Empty the stores of tables whose topics were truncated."""
        for name in names:
            logger.warning("global table %s is read again: its topic was truncated", name)
            self.rocksdb[name].delete_range(b"")

    def starts(
        self,
        tables: Mapping[str, Iterable[str]],
        begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        wall_ms: int,
        ids: Mapping[str, bytes],
    ) -> dict[TopicPartition, int]:
        """Return the offsets to read from, so that every table gets its whole topic.

        Args:
            tables: topic to the names of its tables.
            begins: the log start offsets.
            ends: the ends of the partitions.
            wall_ms: the present time, in milliseconds since 1970.
            ids: the topic ids.
        """
        self._ids = {topic: topic_id.hex() for topic, topic_id in ids.items()}
        starts = dict(ends)
        for topic, names in tables.items():
            mine = {part.partition: part for part in begins if part.topic == topic}
            for name in names:
                offsets = self._offsets(name, mine, begins, ends, wall_ms)
                for number, part in mine.items():
                    # Several tables may read one topic: the one that is furthest behind decides.
                    # The others apply some records again, which leaves the same rows.
                    starts[part] = min(starts[part], offsets.get(number, begins[part]))
        return starts

    def reached(
        self,
        tables: Mapping[str, Iterable[str]],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        wall_ms: int,
    ) -> None:
        """Store the positions up to which all records are in the stores."""
        for topic, names in tables.items():
            mine = {part.partition: at for part, at in offsets.items() if part.topic == topic}
            found = _Reached(
                self._cluster,
                wall_ms,
                {number: at.offset for number, at in mine.items()},
                self._ids.get(topic, ""),
                {number: at.leader_epoch for number, at in mine.items()},
            )
            data = msgspec.json.encode(found)
            for name in names:
                if name in self.rocksdb:
                    self.rocksdb[name].put(_REACHED, data)

    def close(self) -> None:
        """Close the stores; their content is used at the next start."""
        for store in self.rocksdb.values():
            store.close()

    def _reached(self, name: str) -> _Reached | None:
        store = self.rocksdb.get(name)
        data = None if store is None else store.get(_REACHED)
        return None if data is None else msgspec.json.decode(data, type=_Reached)

    def _offsets(
        self,
        name: str,
        mine: Mapping[int, TopicPartition],
        begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        wall_ms: int,
    ) -> dict[int, int]:
        """Return the read position of each partition; none if the table has to be read again."""
        store, reached = self.rocksdb.get(name), self._reached(name)
        if store is None:
            return {}
        if reached is not None:
            known = [(mine[n], at) for n, at in reached.offsets.items() if n in mine]
            # Below the log start, deletions may be missing; beyond the end, the log is another one.
            is_whole = all(begins[part] <= at <= ends[part] for part, at in known)
            is_recent = wall_ms - reached.wall_ms <= AWAY_MS_MAX
            topics = {part.topic for part in mine.values()}
            is_same = all(reached.topic_id == self._ids.get(topic, "") for topic in topics)
            if reached.cluster == self._cluster and is_same and is_whole and is_recent:
                # A partition without an offset was added since, and is read from its start.
                return reached.offsets
            logger.warning(
                "global table %s is read again: its store does not match the topic or is too old",
                name,
            )
        store.delete_range(b"")
        return {}


POLL_MS = 500
"""The longest wait for records; a stop may go unnoticed for this long."""
SLICE_RECORDS = 5_000
"""The records of one step. Heartbeats and agents run between two steps."""
TELL_MS = 60 * 60 * 1000
"""The interval at which the progress of tables on disk is stored without new records."""
FETCH_BYTES = 4 * 1024 * 1024
"""The size of a fetch of one partition."""


class GlobalReader:
    """Reads the topics of an app's global tables; an async context manager."""

    def __init__(
        self,
        log: Log,
        topology: Topology,
        counts: Mapping[str, int],
        clock: Clock,
        *,
        stores: GlobalStores | None = None,
    ) -> None:
        """Create a reader; `counts` are the partitions of topics, `stores` the tables on disk."""
        self.metrics = WorkerMetrics()
        """The counters of the worker."""
        self._damaged = DamagedInputs.of_global_tables(topology)
        self._stores = stores or GlobalStores({})
        self.tables = GlobalTables(topology.global_tables, self._stores.rocksdb)
        self.left: dict[str, int] = {}
        """Topic to the number of offsets left to read before tasks may start."""
        self._partitions = [
            TopicPartition(topic, number)
            for topic in self.tables.topics
            for number in range(counts[topic])
        ]
        self._clock = clock
        self._stored_ms = 0
        self._consumer = log.consumer(
            auto_offset_reset="none",
            isolation_level="read_committed",
            max_partition_fetch_bytes=FETCH_BYTES,
        )

    async def __aenter__(self) -> Self:
        """Connect if the app has global tables."""
        if self._partitions:
            await self._consumer.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._partitions:
                # After an error the positions may be ahead of the rows: the step that failed is
                # read again.
                if exc_type is None and self._stores.rocksdb and self._consumer.positions():
                    await self._tell()
                await self._consumer.__aexit__(exc_type, exc, traceback)
        finally:
            await asyncio.to_thread(self._stores.close)

    async def load(self, stop: asyncio.Event) -> None:
        """Read all records that the topics hold now, or until `stop` is set.

        Raises:
            RequestTimedOut: the read has stalled.
            ProcessingError: a batch can't be read, and the policy is `FAIL`.
        """
        if not self._partitions:
            return
        consumer = self._consumer
        ids = {topic: await consumer.topic_id(topic) for topic in self.tables.topics}
        begins = await consumer.begin_offsets(self._partitions)
        ends = await consumer.end_offsets(self._partitions)
        # Before `starts`, which would continue a truncated table at its stored position.
        await asyncio.to_thread(self._stores.forget, await self._cut(ends))
        starts = await asyncio.to_thread(
            self._stores.starts, self.tables.of_topics, begins, ends, self._clock.wall_ms(), ids
        )
        epochs = self._epochs()
        consumer.assign(self._partitions)
        for partition, offset in starts.items():
            epoch = epochs.get((partition, offset), NO_EPOCH)
            # With epoch and topic id, the next fetch finds out if the log was truncated or created
            # again since (KIP-320, KIP-516).
            consumer.seek(partition, OffsetAndMetadata(offset, "", epoch, ids[partition.topic]))
        begun_ms = self._clock.now_ms()
        reader = RangeReader(consumer, ends, self._clock)
        while not await self._is_loaded(reader) and not stop.is_set():
            await self._step()
        took_ms = self._clock.now_ms() - begun_ms
        logger.info("global tables of %s read in %d ms", ", ".join(self.tables.topics), took_ms)

    async def follow(self) -> None:
        """Apply new records until cancelled.

        Raises:
            SourceLost: a topic was created again, or truncated: tasks would see rows of both.
        """
        while self._partitions:
            try:
                await self._step()
            except SourceLost as error:
                raise SourceLost(
                    f"{error.loss}. It is the topic of a global table, whose rows on this worker "
                    "come from the old topic: restart the worker, which then reads the table again",
                    topic=error.topic,
                    partition=error.partition,
                    position=error.position,
                    ids=(error.old_id, error.new_id),
                    resume=(error.resume_at, error.resume_epoch),
                ) from error

    def _epochs(self) -> dict[tuple[TopicPartition, int], int]:
        """Return the leader epochs at the read positions of tables on disk."""
        offsets = self._stores.positions(self.tables.of_topics).values()
        return {(part, at.offset): at.leader_epoch for each in offsets for part, at in each.items()}

    async def _cut(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Return the tables on disk whose topic was truncated and written to again since."""
        cut = []
        for name, offsets in self._stores.positions(self.tables.of_topics).items():
            # An offset beyond the end needs no question: `starts` reads the table again.
            inside = {part: at for part, at in offsets.items() if at.offset <= ends.get(part, -1)}
            if await is_truncated(self._consumer, inside):
                cut.append(name)
        return cut

    async def _step(self) -> None:
        try:
            polled = await self._consumer.poll_columns(
                timeout_ms=POLL_MS, max_records=SLICE_RECORDS
            )
        except DamagedBatch as damaged:
            self._pass(damaged)
            return
        if not self._stores.rocksdb:
            self._apply(polled)
        # Also without records: a store whose progress is older than `AWAY_MS_MAX` is read again.
        elif polled or self._clock.wall_ms() - self._stored_ms >= TELL_MS:
            # The disk may block, so a thread writes the rows. The progress follows them: after a
            # crash in between, the records are applied again, and none is missing.
            await asyncio.to_thread(self._apply, polled)
            await self._tell()

    def _pass(self, damaged: DamagedBatch) -> None:
        """Continue after a damaged batch, without its rows.

        Raises:
            ProcessingError: the policy is `FAIL`.
        """
        drops = self._damaged.outbox(damaged).drops
        self.metrics.count_drops(drops)
        self.metrics.passed_batches.series(damaged.topic, str(damaged.partition)).add()
        self._consumer.seek(TopicPartition(damaged.topic, damaged.partition), damaged.next_offset)

    async def _tell(self) -> None:
        """Store the read positions of the tables on disk."""
        consumer, self._stored_ms = self._consumer, self._clock.wall_ms()
        offsets = {
            part: consumer.offset_and_metadata(part, at)
            for part, at in consumer.positions().items()
        }
        tables = self.tables.of_topics
        await asyncio.to_thread(self._stores.reached, tables, offsets, self._stored_ms)

    def _apply(self, polled: Mapping[TopicPartition, RecordColumns]) -> None:
        for partition, records in polled.items():
            self.tables.apply(partition.topic, records)

    async def _is_loaded(self, reader: RangeReader) -> bool:
        """Return whether everything up to the ends at the start is read; updates `left`."""
        is_loaded = await reader.is_at_end()
        self.left = dict.fromkeys(self.tables.topics, 0)
        for partition, offsets in reader.remaining.items():
            self.left[partition.topic] += offsets
        return is_loaded


def make_reader(
    program: Program, log: Log, counts: Mapping[str, int], clock: Clock
) -> GlobalReader:
    """Return the reader of a program, with the opened stores of its tables on disk.

    Raises:
        LogDirectoryError: a store's directory can't be created, read or written.
    """
    stores = GlobalStores.opened(
        program.topology.global_tables,
        program.state_path,
        memory_bytes=program.global_memory_bytes,
        cluster=log.cluster_id,
    )
    return GlobalReader(log, program.topology, counts, clock, stores=stores)
