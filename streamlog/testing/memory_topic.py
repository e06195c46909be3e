"""MemoryTopic: a topic as lists, for the driver."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from streamlog.errors import UsageError
from streamlog.processing.joins.stream_table_join import GlobalTables
from streamlog.record import Headers
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.records.control_batches import MarkTold, TimeMark
from streamlog.records.partitioners import DEFAULT, Partitioner, partition_by
from streamlog.topology import Topology


class MemoryTopic:
    """A topic as lists."""

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
        """Add a record; partition and offset where it lies."""
        if partition is None:
            partition = self._next() if key is None else self.partition_of(key)
        if not 0 <= partition < len(self.partitions):
            raise UsageError(
                f"there is no partition {partition}: the topic has {len(self.partitions)}"
            )
        records = self.partitions[partition]
        record = RawRecord(self.end(partition), timestamp_ms, key, value, headers)
        records.append(record)
        self.arrivals.append((partition, record))
        return partition, record.offset

    def end(self, partition: int) -> int:
        """The offset of what comes next."""
        return len(self.partitions[partition]) + len(self._marks[partition])

    def mark(self, partition: int, elapsed_ms: int, told: tuple[MarkTold, ...] = ()) -> None:
        """Add a time mark: nothing has come for so long."""
        self._marks[partition].append(TimeMark(self.end(partition), elapsed_ms, told))

    def since(self, partition: int, offset: int) -> tuple[list[RawRecord], list[TimeMark]]:
        """The records and the time marks from an offset on."""
        records, marks = self.partitions[partition], self._marks[partition]
        first = bisect_left(records, offset, key=_offset_of)
        return records[first:], marks[bisect_left(marks, offset, key=_offset_of) :]

    def partition_of(self, key: bytes) -> int:
        """Where the topic's partitioner puts a key."""
        return partition_by(self._partitioner, key, len(self.partitions))

    def _next(self) -> int:
        self._turn += 1
        return (self._turn - 1) % len(self.partitions)


def _offset_of(entry: RawRecord | TimeMark) -> int:
    return entry.offset


class ListedTables:
    """The global tables of an app without a log."""

    def __init__(self, topology: Topology, topics: Mapping[str, MemoryTopic]) -> None:
        self.tables = GlobalTables(topology.global_tables)
        self._topics = {name: topics[name] for name in self.tables.topics}
        self._read = dict.fromkeys(self._topics, 0)

    def follow(self) -> None:
        """Take in what has come to the topics since the last time."""
        for name, topic in self._topics.items():
            records = [record for _, record in topic.arrivals[self._read[name] :]]
            self._read[name] += len(records)
            keys, values = [r.key for r in records], [r.value for r in records]
            self.tables.apply(name, keys, values)
