"""LogReader: partitions of a log, one at a time, from one offset to another.

As a worker reads them: committed records only, with the time marks between them, and whatever
lies between two records (ends of transactions, what compaction has left out) is passed over.
Synchronous on the outside: whoever runs a history owns the loop on which the log lives, and it
turns while there is something to wait for. Not done here: what is taken of it (`record_queue`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Generator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from streamlog.errors import DamagedBatch, UsageError
from streamlog.history.task_run import Arrival
from streamlog.processing.error_handling import DamagedInputs
from streamlog.record import TopicPartition
from streamlog.records.epoch_chains import EpochChain
from streamlog.records.record_columns import RecordColumns
from streamlog.transport.security import Security

if TYPE_CHECKING:
    from streamlog.client.consumer import Consumer
    from streamlog.client.producer import Producer
    from streamlog.log import Log


POLL_RECORDS = 5_000
"""Of a partition at a time."""
POLL_MS = 500
FETCH_BYTES = 4 * 1024 * 1024

T = TypeVar("T")
"""What a coroutine gives."""


class LogReader:
    """An open log and the loop it lives on; a context manager."""

    def __init__(self, url: str, security: Security | None = None) -> None:
        """`url` and `security` are those of the app."""
        self._opening = (url, security)
        self._runner = asyncio.Runner()
        self._log: Log | None = None

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            UsageError: an event loop is running here already.
            StreamlogError: there is no such log.
        """
        if _in_loop():
            raise UsageError(
                "a history is run by a thread of its own and waits for it: in async code call "
                "`await asyncio.to_thread(job.run)`"
            )
        url, security = self._opening
        try:
            self._log = self.run(_opened(url, security))
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        log, self._log = self._log, None
        try:
            if log is not None:
                self.run(log.close())
        finally:
            self._runner.close()

    @property
    def log(self) -> Log:
        """The log.

        Raises:
            UsageError: it is not open.
        """
        if self._log is None:
            raise UsageError("the log is read inside `with LogReader(...) as reader:` only")
        return self._log

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something on the loop of the log."""
        return self._runner.run(work)

    def partitions(self) -> dict[str, int]:
        """How many partitions each topic has."""
        return {t.name: t.partitions for t in self.run(self.log.admin().list_topics())}

    def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """First offset and end, of what is committed, of each."""

        async def ask() -> dict[TopicPartition, tuple[int, int]]:
            async with self._consumer() as consumer:
                begins = await consumer.begin_offsets(partitions)
                ends = await consumer.end_offsets(partitions)
            return {at: (begins[at], ends[at]) for at in partitions}

        return self.run(ask())

    def topic_ids(self, topics: Collection[str]) -> dict[str, bytes]:
        """The ids of those of these topics that there are; zero where brokers tell none."""
        found = self.run(self.log.admin().find_topics(topics))
        return {topic.name: topic.topic_id for topic in found}

    def leader_epochs(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochChain]:
        """The last leader epochs before each offset; empty where nobody knows."""
        return self.run(self.log.admin().leader_epochs(offsets))

    def divergences(
        self, places: Mapping[TopicPartition, tuple[int, EpochChain]]
    ) -> dict[TopicPartition, int]:
        """The logs that had other epochs before an offset, and where they differ; -1: unknown."""
        return self.run(self.log.admin().divergences(places))

    def starts(
        self, partitions: Collection[TopicPartition], since_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Where the first record stands that is not older; None: there is none."""

        async def ask() -> dict[TopicPartition, int | None]:
            async with self._consumer() as consumer:
                found = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
            return {at: None if place is None else place.offset for at, place in found.items()}

        return self.run(ask())

    def read(
        self, partition: TopicPartition, start: int, end: int, damaged: DamagedInputs | None = None
    ) -> Generator[Arrival, None, None]:
        """What the partition holds from one offset up to another.

        A batch that can't be read ends it, unless a policy of `damaged` passes the batch.

        Raises:
            RequestTimedOut: the read has stalled.
            DamagedBatch, ProcessingError: a batch can't be read; tells where.
        """
        if start >= end:
            return
        consumer = self._consumer()
        self.run(consumer.__aenter__())
        try:
            consumer.assign([partition])
            consumer.seek(partition, start)
            yield from self._polls(consumer, partition, end, damaged)
        finally:
            self.run(consumer.close())

    def producer(self, **options: Any) -> Producer:  # noqa: ANN401 - those of `Log.producer`
        """A producer of the log, to be opened and closed by `run`."""
        return self.log.producer(**options)

    def _polls(
        self,
        consumer: Consumer,
        partition: TopicPartition,
        end: int,
        damaged: DamagedInputs | None,
    ) -> Iterator[Arrival]:
        reader = self.log.range_reader(consumer, {partition: end})
        while not self.run(reader.is_at_end()):
            try:
                polled = self.run(reader.poll_columns(timeout_ms=POLL_MS, max_records=POLL_RECORDS))
            except DamagedBatch as batch:
                if damaged is None:
                    raise
                passed = damaged.outbox(batch)
                consumer.seek(partition, batch.next_offset)
                yield Arrival(RecordColumns(), passed=passed)
                continue
            records = polled.get(partition, RecordColumns())
            marks = [mark for mark in consumer.time_marks().get(partition, ()) if mark.offset < end]
            if records or marks:
                yield Arrival(records, marks)

    def _consumer(self) -> Consumer:
        return self.log.consumer(
            auto_offset_reset="none",
            isolation_level="read_committed",
            time_marks=True,
            max_partition_fetch_bytes=FETCH_BYTES,
        )


async def _opened(url: str, security: Security | None) -> Log:
    from streamlog.log import Log  # noqa: PLC0415 - the whole broker; tasks of Spark may do without

    return await Log.open(url, create=False, security=security).__aenter__()


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
