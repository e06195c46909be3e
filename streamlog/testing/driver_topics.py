"""Topics of the test driver: records in memory, what a test writes and reads, and a last check.

A worker stores state at its first commit and reads it after a restart; a test may end before
either. At the end of a test, `check_state` and `check_outputs` therefore decode everything that the
app has stored and written.

Rule: the last check calls no function of the user's, so tests that count calls see no others; it
leaves out views and joined rows for that reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from streamlog.dsl.topic import Topic
from streamlog.durations import When, when_ms
from streamlog.errors import ProcessingError, StreamlogError, UsageError, quantity
from streamlog.nodes.stream_nodes import Entry, Sink
from streamlog.nodes.table_nodes import TableTableJoin
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.inputs.schema_headers import absorb_record
from streamlog.processing.joins.stream_table_join import GlobalTables
from streamlog.processing.table_rows import TableRows, prefix_of, tables_in
from streamlog.record import Headers, Record
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.records.control_batches import ClockTime, TimeMark
from streamlog.records.partitioners import DEFAULT, Partitioner, partition_by
from streamlog.records.record_columns import RecordColumns
from streamlog.tables.stores.store import KeyValueStore, prefix_end
from streamlog.topology import Subtopology, Topology


class MemoryTopic:
    """A topic in memory: a list of records and of time marks for each partition."""

    def __init__(self, partitions: int, partitioner: Partitioner = DEFAULT) -> None:
        self._partitioner = partitioner
        self.partitions: list[list[RawRecord]] = [[] for _ in range(partitions)]
        self.arrivals: list[tuple[int, RawRecord]] = []
        self._marks: list[list[TimeMark]] = [[] for _ in range(partitions)]
        self._turn = 0

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None,
        timestamp_ms: int,
        headers: Headers = (),
        partition: int | None = None,
    ) -> tuple[int, int]:
        """Append a record, and return its partition and offset.

        Without a partition and a key, the partitions take turns.
        """
        if partition is None:
            partition = self._next() if key is None else self.partition_of(key)
        if not 0 <= partition < len(self.partitions):
            raise UsageError(
                f"there is no partition {partition}: the topic has "
                f"{quantity(len(self.partitions), 'partition')}"
            )
        records = self.partitions[partition]
        # Marks have offsets too, so the offset is not the record's index.
        record = RawRecord(self.end(partition), timestamp_ms, key, value, headers)
        records.append(record)
        self.arrivals.append((partition, record))
        return partition, record.offset

    def end(self, partition: int) -> int:
        """Return the offset of the next record; time marks have offsets too."""
        return len(self.partitions[partition]) + len(self._marks[partition])

    def mark(
        self, partition: int, elapsed_ms: int, clock_times: tuple[ClockTime, ...] = ()
    ) -> None:
        """Append a time mark: nothing was appended for `elapsed_ms` milliseconds."""
        self._marks[partition].append(TimeMark(self.end(partition), elapsed_ms, clock_times))

    def since(self, partition: int, offset: int) -> tuple[list[RawRecord], list[TimeMark]]:
        """Return the records and the time marks from an offset on."""
        records, marks = self.partitions[partition], self._marks[partition]
        first = bisect_left(records, offset, key=_offset_of)
        return records[first:], marks[bisect_left(marks, offset, key=_offset_of) :]

    def partition_of(self, key: bytes) -> int:
        """Return the partition of a serialized key."""
        return partition_by(self._partitioner, key, len(self.partitions))

    def _next(self) -> int:
        self._turn += 1
        return (self._turn - 1) % len(self.partitions)


def _offset_of(entry: RawRecord | TimeMark) -> int:
    return entry.offset


class ListedTables:
    """The global tables of an app, filled from topics in memory."""

    def __init__(self, topology: Topology, topics: Mapping[str, MemoryTopic]) -> None:
        self.tables = GlobalTables(topology.global_tables)
        self._topics = {name: topics[name] for name in self.tables.topics}
        self._read = dict.fromkeys(self._topics, 0)

    def follow(self) -> None:
        """Apply the records that were appended since the last call."""
        for name, topic in self._topics.items():
            records = [record for _, record in topic.arrivals[self._read[name] :]]
            self._read[name] += len(records)
            self.tables.apply(name, RecordColumns.of(records))


def check_state(subtopology: Subtopology, store: KeyValueStore) -> None:
    """Decode all rows of the tables of a task.

    Raises:
        ProcessingError: a row is not of the table's types.
    """
    for name, rows in tables_in(subtopology).items():
        if not rows.views and not isinstance(rows.owner, TableTableJoin):
            _check_table(rows, prefix_of(subtopology, name), store)


def check_outputs(topology: Topology, topics: Mapping[str, MemoryTopic]) -> None:
    """Decode all records of topics that the app writes and does not read.

    Raises:
        ProcessingError: a record is not of the topic's types.
    """
    read = {node.topic.name for node in topology.nodes if isinstance(node, Entry)}
    read |= {table.topic.name for table in topology.global_tables}
    written = {node.topic.name: node.topic for node in topology.nodes if isinstance(node, Sink)}
    for name, spec in written.items():
        if name not in read:
            _check_topic(spec, topics[name])


def _check_table(rows: TableRows, prefix: bytes, store: KeyValueStore) -> None:
    for key, data in store.range(prefix, prefix_end(prefix)):
        row_key = key[len(prefix) :]
        try:
            list(rows.seen([(row_key, data)]))
        except StreamlogError as error:
            text = f"the row of {rows.name!r} with key {row_key!r} can't be read: {error}"
            raise ProcessingError(text, node=rows.name) from error


def _check_topic(spec: TopicSpec, topic: MemoryTopic) -> None:
    for partition, written in topic.arrivals:
        record = absorb_record(spec, written)
        parts = (("key", spec.key, record.key), ("value", spec.value, record.value))
        for what, serde, data in parts:
            if data is None:
                continue
            try:
                serde.loads(data)
            except Exception as error:  # noqa: BLE001 - user code: raised again
                caught = error
            else:
                continue
            raise ProcessingError(
                f"the {what} at offset {record.offset} of {spec.name}-{partition}, which the app "
                f"has written, can't be read: {caught}",
                topic=spec.name,
                partition=partition,
                offset=record.offset,
                node=spec.name,
            ) from caught


K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""


class Entrance(Protocol):
    """Port: the driver, as far as `TestTopicIn` needs it."""

    @property
    def now_ms(self) -> int:
        """The driver's time, in milliseconds since the epoch."""

    def topic(self, name: str) -> MemoryTopic:
        """A topic of the app."""

    def check_runs(self) -> None:
        """Raise UsageError if the driver does not run."""

    def settle(self) -> None:
        """Run tasks and agents until nothing is left to do."""


class Exit(Protocol):
    """Port: the driver, as far as `TestTopicOut` needs it."""

    def topic(self, name: str) -> MemoryTopic:
        """A topic of the app."""

    def popped(self, name: str) -> int:
        """Return how many records were popped from a topic."""

    def pop(self, name: str) -> None:
        """Count one more popped record of a topic."""


class TestTopicIn(Generic[K, V]):
    """Writes records to a topic of a test."""

    __test__ = False

    def __init__(self, driver: Entrance, topic: Topic[K, V]) -> None:
        self._driver = driver
        self._topic = topic

    def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        at: When | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> None:
        """Write one record, and run the app until everything that follows has happened.

        Args:
            value: the value; None deletes the key from tables.
            key: the key, which decides the partition; without a key, the partitions take turns.
            at: the record's timestamp; by default, the driver's time.
            headers: bytes by header name.
            partition: a partition number that replaces the choice by key.

        Raises:
            SerdeError: key or value does not have the topic's type.
            ProcessingError: the app failed on the record.
        """
        raw_key, raw_value = self._topic.encoded(key, value)
        driver = self._driver
        driver.check_runs()
        driver.topic(self._topic.name).append(
            raw_value,
            key=raw_key,
            timestamp_ms=driver.now_ms if at is None else when_ms(at),
            headers=tuple((headers or {}).items()),
            partition=partition,
        )
        driver.settle()


class TestTopicOut(Generic[K, V]):
    """Reads the records of a topic of a test, decoded by the topic's types."""

    __test__ = False

    def __init__(self, driver: Exit, topic: Topic[K, V]) -> None:
        self._driver = driver
        self._topic = topic

    @property
    def records(self) -> list[Record[K, V]]:
        """The records that were not popped, in the order in which they were written."""
        topic, seen = self._topic, self._driver.popped(self._topic.name)
        arrivals = self._driver.topic(topic.name).arrivals
        return [topic.decoded(record, partition) for partition, record in arrivals[seen:]]

    @property
    def values(self) -> list[V]:
        """The values of `records`."""
        return [record.value for record in self.records]

    def pop(self) -> Record[K, V]:
        """Remove the first of `records`, and return it.

        Raises:
            UsageError: there are no records.
        """
        records = self.records
        if not records:
            raise UsageError(f"topic {self._topic.name!r} has no records left to pop")
        self._driver.pop(self._topic.name)
        return records[0]
