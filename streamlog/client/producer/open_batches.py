"""OpenBatches: the short way of a record, which joins a batch that an earlier one has opened.

A producer opens a batch for every thousand records or so, and all others join one. `join` does
this in compiled code, with everything that is decided once a batch left out: whether the topic is
known, the partition exists. `deliver` completes the receipts of a batch.

Rule of the file: it may be compiled. A record for which anything has to be decided, waited for or
refused takes the long way: `join` then returns None, and has added nothing. Not done here: the
long way (`Producer.send`), and opening and closing batches (`accumulator`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from streamlog.records.murmur2 import partition_of_key
from streamlog.records.record_columns import FieldColumns, record_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from streamlog.random_source import Random

    Written_contra = TypeVar("Written_contra", contravariant=True)

    class ReceiptRun(Protocol[Written_contra]):
        """The receipts of records that came one by one."""

        def add(self) -> object:
            """Append a record; return its receipt."""
            ...

        def receipts(self) -> Sequence[tuple[int, int, object]]:
            """Return (first index, last index, receipt) for each record."""
            ...

        def deliver(self, base: Written_contra, /) -> None:
            """Take where the batch was written."""
            ...

    NewRun: TypeAlias = Callable[[list[int], int], object]
    """Makes a `ReceiptRun`, of the timestamps of a batch and the index of its first record."""

__all__ = [
    "OpenBatch", "OpenBatches", "StickyPartitions", "UsedBytes", "deliver", "expect", "metadata_of",
    "put",
]  # fmt: skip

Headers: TypeAlias = "Sequence[tuple[str, bytes | None]]"
NewFields: TypeAlias = "tuple[int | None, bytes | None, bytes | None, Headers]"
"""A record as it was handed over: its timestamp in ms since 1970, or None for the present time,
then key, value and headers."""
Written = TypeVar("Written", bound="tuple[str, int, int, int]")
"""Topic, partition, offset and timestamp of a record."""

_new_tuple = tuple.__new__  # makes a named tuple without its handling of keywords and defaults


class OpenBatch:
    """The records of a batch, and their receipts."""

    __slots__ = ("closed", "columns", "entries", "run", "size_bytes")

    def __init__(self) -> None:
        self.columns = FieldColumns()
        """The records, unless they are packed."""
        self.entries: list[object] = []
        """In the order of the records: `receipts` that cover some of them, and runs, whose records
        came one by one."""
        self.run: object | None = None
        """The run that takes the next record that comes alone."""
        self.size_bytes = 0
        self.closed = False
        """Whether the batch takes no more records: it is full, or has been sent."""

    @property
    def receipts(self) -> list[tuple[int, int, object]]:
        """(first index, last index, receipt) of the records in the batch; for changing them.

        Each record of a run gets a receipt of its own.
        """
        found: list[object] = []
        for entry in self.entries:
            if type(entry) is tuple:
                found.append(entry)
            else:
                found += entry.receipts()  # type: ignore[attr-defined]
        self.receipts = found  # type: ignore[assignment]
        return self.entries  # type: ignore[return-value]

    @receipts.setter
    def receipts(self, receipts: list[tuple[int, int, object]]) -> None:
        self.entries = receipts  # type: ignore[assignment]
        self.run = None

    def cover(self, first: int, last: int, receipt: object) -> None:
        """Add a receipt of the latest records."""
        self.entries.append((first, last, receipt))
        self.run = None


class UsedBytes:
    """Bytes of all records without an outcome, before compression."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class StickyPartitions:
    """The present partition of records without a key, per topic (KIP-480).

    A partition keeps its turn until the batch that such a record opened in it is closed.
    """

    __slots__ = ("_begun", "_chance", "_current")

    def __init__(self, chance: Random) -> None:
        """`chance` draws the first partition of each topic."""
        self._chance = chance
        self._current: dict[str, int] = {}
        self._begun: dict[str, OpenBatch] = {}
        """Topic to the batch that a record without a key opened in the present partition."""

    def choose(self, topic: str, partitions: int) -> int:
        """Return the partition of the next record without a key."""
        current = self._current.get(topic)
        if current is None:
            current = self._current[topic] = self._chance.randrange(partitions)
        batch = self._begun.get(topic)
        if batch is not None and batch.closed:
            del self._begun[topic]
            current = self._current[topic] = (current + 1) % partitions
        return current % partitions

    def begin(self, topic: str, batch: OpenBatch) -> None:
        """Note the batch that a record without a key opened; its end ends the partition's turn."""
        self._begun[topic] = batch

    def turn(self, topic: str, partition: int, partitions: int) -> None:
        """Move on to the next partition if `partition`, whose batch is full, is the present one."""
        current = self._current.get(topic)
        if current is not None and current % partitions == partition:
            self._current[topic] = (partition + 1) % partitions
            self._begun.pop(topic, None)


class _Lane:
    """Where the records of a topic wait, by partition, as far as any was written to."""

    __slots__ = ("metadata", "waiting")

    def __init__(self, metadata: object, partitions: int) -> None:
        self.metadata = metadata
        """What was known of the topic when its partitions were chosen."""
        self.waiting: list[Sequence[OpenBatch] | None] = [None] * partitions


class OpenBatches:
    """The batches of a producer that take records, by topic and partition."""

    __slots__ = (
        "_batch_bytes",
        "_buffer_bytes",
        "_lanes",
        "_new_run",
        "_newest",
        "_sticky",
        "_used",
        "_wall_ms",
        "is_open",
        "own_partitioners",
        "waiting_callers",
    )

    def __init__(
        self,
        used: UsedBytes,
        sticky: StickyPartitions,
        newest: Mapping[str, object],
        *,
        batch_bytes: int,
        buffer_bytes: int,
        new_run: NewRun,
        wall_ms: Callable[[], int],
    ) -> None:
        """Join batches within these bounds.

        Args:
            used: what the buffer holds.
            sticky: the partitions of records without a key.
            newest: topic to what is known of it at present.
            batch_bytes: size at which a batch is full.
            buffer_bytes: size at which the buffer is full.
            new_run: makes the receipts of records.
            wall_ms: reads the time in ms since 1970.
        """
        self._used = used
        self._sticky = sticky
        self._newest = newest
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._new_run = new_run
        self._wall_ms = wall_ms
        self._lanes: dict[str, _Lane] = {}
        self.is_open = False
        """Whether the producer takes records."""
        self.waiting_callers = 0
        """Callers that wait for room or for their turn: none may overtake them."""
        self.own_partitioners: frozenset[str] = frozenset()
        """Topics whose keys are not dealt by murmur2."""

    def join(self, topic: str, partition: int | None, record: NewFields) -> object | None:
        """Add a record to an open batch, if nothing has to be decided; return its receipt."""
        lane = self._lanes.get(topic)
        if lane is None or not self.is_open or self.waiting_callers:
            return None
        # A topic that was looked up again, or is to be, may have other partitions by now.
        if self._newest.get(topic) is not lane.metadata:
            return None
        timestamp_ms, key, value, headers = record
        size_bytes = record_bytes(key, value, headers)
        chosen = self._chosen(topic, partition, key, len(lane.waiting))
        batch = None if chosen < 0 else self._with_room(lane.waiting[chosen], size_bytes)
        if batch is None:
            return None
        if timestamp_ms is None:
            record = (self._wall_ms(), key, value, headers)
        put(batch, record, size_bytes)
        self._used.value += size_bytes
        return expect(batch, self._new_run)

    def _with_room(self, waiting: Sequence[OpenBatch] | None, size_bytes: int) -> OpenBatch | None:
        """Return the open batch, if there is one and a record of that size does not fill it."""
        if not waiting or self._used.value + size_bytes > self._buffer_bytes:
            return None
        batch = waiting[len(waiting) - 1]
        if batch.closed or batch.size_bytes + size_bytes >= self._batch_bytes:
            return None
        return batch

    def _chosen(self, topic: str, partition: int | None, key: bytes | None, count: int) -> int:
        """Return the partition of a record; -1 if it has to be decided."""
        if partition is not None:
            return partition if 0 <= partition < count else -1
        if key is None:
            return self._sticky.choose(topic, count)
        if type(key) is bytes and topic not in self.own_partitioners:
            return partition_of_key(key, count)
        return -1

    def admit(
        self, topic: str, metadata: object, count: int, chosen: int, waiting: Sequence[OpenBatch]
    ) -> None:
        """Let records join the batches of a partition from now on.

        Args:
            topic: the topic.
            metadata: what is known of it.
            count: its number of partitions.
            chosen: the partition, less than `count`.
            waiting: its batches that wait; the last one may be open.

        Raises:
            IndexError: there is no such partition.
        """
        if not 0 <= chosen < count:
            raise IndexError(f"topic {topic!r} has no partition {chosen} of {count}")
        lane = self._lanes.get(topic)
        if lane is None or lane.metadata is not metadata:
            lane = self._lanes[topic] = _Lane(metadata, count)
        lane.waiting[chosen] = waiting


def put(batch: OpenBatch, record: NewFields, size_bytes: int) -> None:
    """Append a record that has a timestamp to a batch; its receipt is to follow."""
    timestamp_ms, key, value, headers = record
    batch.columns.append(timestamp_ms, key, value, headers)  # type: ignore[arg-type]
    batch.size_bytes += size_bytes


def expect(batch: OpenBatch, new_run: NewRun) -> object:
    """Return the receipt of the latest record of a batch, which came alone."""
    run = batch.run
    if run is None:
        times = batch.columns.timestamps
        run = batch.run = new_run(times, len(times) - 1)
        batch.entries.append(run)
    return run.add()  # type: ignore[attr-defined]


def deliver(batch: OpenBatch, base: Written) -> None:
    """Give each receipt of a batch the place of its last record.

    Args:
        batch: the batch, which was written.
        base: the place of the batch. A negative offset is unknown, and so it is for all records;
            with a negative timestamp, each record has its own.
    """
    times = batch.columns.timestamps
    for entry in batch.entries:
        if type(entry) is tuple:
            _, last, receipt = entry
            if not receipt.done():  # Else its owner has given it up.
                receipt.set_result(metadata_of(base, last, times))
        else:
            entry.deliver(base)  # type: ignore[attr-defined]


def metadata_of(base: Written, at: int, times: list[int]) -> Written:
    """Return the place of the record at index `at` of a batch with this place and these times."""
    topic, partition, base_offset, time_ms = base
    offset = base_offset + at if base_offset >= 0 else base_offset
    # Packed records have no list of times.
    own_ms = times[at] if time_ms < 0 and at < len(times) else time_ms
    return _new_tuple(type(base), (topic, partition, offset, own_ms))
