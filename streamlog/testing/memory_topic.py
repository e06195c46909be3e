"""MemoryTopic: a topic as lists, for the driver."""

from __future__ import annotations

from collections.abc import Callable

from streamlog.errors import UsageError
from streamlog.record import Headers
from streamlog.records.batch import Record as RawRecord


class MemoryTopic:
    """A topic as lists."""

    def __init__(self, partitions: int, partition_of: Callable[[bytes, int], int]) -> None:
        self._partition_of_key = partition_of
        self.partitions: list[list[RawRecord]] = [[] for _ in range(partitions)]
        self.arrivals: list[tuple[int, RawRecord]] = []
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
            partition = self._partition_of(key)
        if not 0 <= partition < len(self.partitions):
            raise UsageError(
                f"there is no partition {partition}: the topic has {len(self.partitions)}"
            )
        records = self.partitions[partition]
        record = RawRecord(len(records), timestamp_ms, key, value, headers)
        records.append(record)
        self.arrivals.append((partition, record))
        return partition, record.offset

    def _partition_of(self, key: bytes | None) -> int:
        if key is not None:
            return self._partition_of_key(key, len(self.partitions))
        self._turn += 1
        return (self._turn - 1) % len(self.partitions)
