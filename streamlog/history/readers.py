"""LogReader: reads partitions of a log, one at a time, from one offset to another.

It reads what a worker reads: committed records and the time marks between them. Its interface is
synchronous: the reader owns the event loop of the log and runs it whenever it waits. Not done here:
the choice of the records by event time (`record_queue`).
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
from streamlog.worker.topics.version_log import recorded_blueprints

if TYPE_CHECKING:
    from streamlog.blueprints.blueprint import Blueprint
    from streamlog.client.consumer import Consumer
    from streamlog.client.producer import Producer
    from streamlog.log import Log


POLL_RECORDS = 5_000
"""Records of one arrival, at most."""
POLL_MS = 500
FETCH_BYTES = 4 * 1024 * 1024

T = TypeVar("T")
"""Result of a coroutine."""


class LogReader:
    """An open log and the loop it lives on; a context manager."""

    def __init__(self, url: str, security: Security | None = None) -> None:
        """Prepare a reader; `url` and `security` are the app's."""
        self._opening = (url, security)
        self._runner = asyncio.Runner()
        self._log: Log | None = None

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            UsageError: the calling thread runs an event loop.
            StreamlogError: there is no such log, or it does not answer.
        """
        if _in_loop():
            raise UsageError(
                "a history blocks its thread, so it can't run on an event loop: in async code call "
                "`await asyncio.to_thread(job.run)`"
            )
        url, security = self._opening
        try:
            self._log = self.run(_opened(url, security))
        except BaseException:
            # Python does not call `__exit__` if `__enter__` raises.
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
        """The open log.

        Raises:
            UsageError: the reader is not open.
        """
        if self._log is None:
            raise UsageError("the reader is not open: use `with LogReader(...) as reader:`")
        return self._log

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the log's event loop and return its result."""
        return self._runner.run(work)

    def blueprints(self, app_ids: Collection[str]) -> list[Blueprint]:
        """Return the topologies that the workers of apps have recorded in the log.

        Raises:
            UsageError: the log has no record of an app.
        """
        return self.run(recorded_blueprints(self.log, self._opening[0], app_ids))

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        return {t.name: t.partitions for t in self.run(self.log.admin().list_topics())}

    def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset and the last stable offset of each partition."""

        async def ask() -> dict[TopicPartition, tuple[int, int]]:
            async with self._consumer() as consumer:
                begins = await consumer.begin_offsets(partitions)
                ends = await consumer.end_offsets(partitions)
            return {at: (begins[at], ends[at]) for at in partitions}

        return self.run(ask())

    def topic_ids(self, topics: Collection[str]) -> dict[str, bytes]:
        """Return the IDs of the topics that exist; zero if brokers have no topic IDs."""
        found = self.run(self.log.admin().find_topics(topics))
        return {topic.name: topic.topic_id for topic in found}

    def leader_epochs(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochChain]:
        """Return the last leader epochs before each offset; empty where they are unknown."""
        return self.run(self.log.admin().leader_epochs(offsets))

    def divergences(
        self, chains: Mapping[TopicPartition, tuple[int, EpochChain]]
    ) -> dict[TopicPartition, int]:
        """Return the offset from which a log differs from its epochs before an offset.

        Logs without a difference are left out; -1: the log differs, the offset is unknown.
        """
        return self.run(self.log.admin().divergences(chains))

    def starts(
        self, partitions: Collection[TopicPartition], since_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record at or after a time (ms since 1970); None: none."""

        async def ask() -> dict[TopicPartition, int | None]:
            async with self._consumer() as consumer:
                found = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
            return {at: None if record is None else record.offset for at, record in found.items()}

        return self.run(ask())

    def read(
        self, partition: TopicPartition, start: int, end: int, damaged: DamagedInputs | None = None
    ) -> Generator[Arrival, None, None]:
        """Yield what the partition holds from `start` up to `end`, without `end`.

        Raises:
            RequestTimedOut: the read has stalled.
            DamagedBatch, ProcessingError: a batch is unreadable, and no policy of `damaged` skips
                it; has topic, partition and offset.
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
        """Return a producer of the log, to be opened and closed by `run`."""
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
                # `outbox` raises if no policy skips the batch, so the seek passes over skipped ones
                # only.
                passed = damaged.outbox(batch)
                consumer.seek(partition, batch.next_offset)
                yield Arrival(RecordColumns(), passed=passed)
                continue
            records = polled.get(partition, RecordColumns())
            # A poll may go beyond the end: the range reader drops such records, but not the marks.
            marks = [mark for mark in consumer.time_marks().get(partition, ()) if mark.offset < end]
            if records or marks:
                yield Arrival(records, marks)

    def _consumer(self) -> Consumer:
        return self.log.consumer(
            # An offset that the log no longer holds is an error, never a silent gap.
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
