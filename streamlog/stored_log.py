"""Stored log: the files of a log in a directory, read without a broker.

For readers that need no more than the records, such as the tasks of a Spark job.

Rule: reads only, and knows no more of a broker than its files. Not done here: the files' formats
(`broker/storage`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

from streamlog.broker.storage.disk.files import Buffer
from streamlog.broker.storage.log.producer_states import OpenTransactions
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.errors import CorruptData, OffsetOutOfRange
from streamlog.records.batch import RecordBatch, split_batches
from streamlog.records.control_batches import AbortedRange
from streamlog.records.epoch_chains import (
    EpochChain,
    EpochEnd,
    EpochQuestion,
    answer_all,
    find_divergence,
    learn_chain,
)

if TYPE_CHECKING:
    from streamlog.broker.storage.log.leader_epochs import LeaderEpochHistory
    from streamlog.broker.storage.log.partition_log import PartitionLog


WALK_BYTES = 4 * 1024 * 1024
"""The size of one read while a partition is searched for transactions."""


class ReadCommittedView(NamedTuple):
    """A range of a partition as `read_committed` readers see it (KIP-98)."""

    end_offset: int
    """The end of what is readable: every transaction with records before it has ended."""
    aborted: tuple[AbortedRange, ...]
    """The aborted transactions in the range, whose records are skipped."""


def read_committed_view(log: PartitionLog, start: int, end: int) -> ReadCommittedView:
    """Return the committed part of the offsets from `start` to before `end`.

    A transaction that began before `start` counts from its first batch at or after `start`, as
    earlier batches are not read. A marker whose transaction has no such batch is ignored.

    Raises:
        OffsetOutOfRange: the log does not hold `start`.
        CorruptData: a batch in the range is damaged.
    """
    transactions = OpenTransactions()
    aborted: list[AbortedRange] = []
    for batch in _walk(log, start):
        # 1. A transaction writes offset 7, and end is 10.
        # 2. Its marker is at offset 25: only a walk beyond the end learns whether 7 counts.
        # 3. Once no transaction that began before the end is open, the walk stops.
        if batch.base_offset >= end and not _is_open_before(transactions, end):
            break
        decided = transactions.take(batch, batch.base_offset)
        if decided is not None and decided.aborted:
            aborted.append(decided.range)
    first_open = transactions.first_open_offset
    # Not below `start`: the first batch, and with it a transaction, may begin before it.
    stable = end if first_open is None else max(min(first_open, end), start)
    return ReadCommittedView(stable, tuple(each for each in aborted if each.first_offset < stable))


def _is_open_before(transactions: OpenTransactions, end: int) -> bool:
    first_open = transactions.first_open_offset
    return first_open is not None and first_open < end


def _walk(log: PartitionLog, position: int) -> Iterator[RecordBatch]:
    end_offset = log.log_end_offset
    while position < end_offset:
        before = position
        for batch in split_batches(log.read(position, max_bytes=WALK_BYTES)):
            yield batch
            position = batch.next_offset
        # The read has returned no whole batch: the loop would not end.
        if position == before:
            return


T = TypeVar("T")

STORED_READ_BYTES: Final = 1024 * 1024
LOOKS_MAX: Final = 5
"""How many times a read lists a partition's files again because they changed meanwhile."""


class StoredLog:
    """The files of a log, read without a broker. Synchronous; a broker may write meanwhile.

    Topics and the ends of partitions are as of the creation of this object. If the broker compacts
    a partition later, the compacted records are read: in order, but without those whose key has a
    newer record, even if that one lies after the end.
    """

    def __init__(self, directory: str) -> None:
        """Open the files.

        Raises:
            LogDirectoryLost: the directory holds no log.
            CorruptData: a file that describes the log is damaged.
        """
        self._directory = LogDirectory.open(directory, read_only=True)
        self._finalizer = weakref.finalize(self, self._directory.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; also happens when this object is garbage-collected."""
        self._finalizer()

    @property
    def cluster_id(self) -> str:
        """The id of the log's cluster."""
        return self._directory.cluster_id

    def topics(self) -> dict[str, int]:
        """Return the topics and their partition counts."""
        return {name: len(topic.partitions) for name, topic in self._directory.topics.items()}

    def topic_ids(self) -> dict[str, bytes]:
        """Return the ids of all topics; a topic that is created again gets another id."""
        return {name: topic.topic_id for name, topic in self._directory.topics.items()}

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the log start offset and the log end offset of a partition.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
        """
        stored = self._directory.log(topic, partition)
        return stored.log_start_offset, stored.log_end_offset

    def check_end(self, topic: str, partition: int) -> None:
        """Check that a partition can be read up to the end that its broker has noted.

        To a reader, damage at the end of a log looks as if the records had not been written yet.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            CorruptData: the readable part ends earlier; the message says where.
        """
        _, end = self.offsets(topic, partition)
        least = self._directory.minimum_end(topic, partition)
        if end < least:
            raise CorruptData(
                f"{topic}-{partition} can be read up to offset {end}, but {least} records and "
                "markers were written: a batch is damaged, or was cut off; `streamlog log verify` "
                "shows which"
            )

    def leader_epochs(self, topic: str, partition: int, offset: int) -> EpochChain:
        """Return the last leader epochs of the records before an offset; empty if unknown.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            LogDirectoryError: the files can't be read.
        """
        stored = self._directory.log(topic, partition)
        epochs = stored.look_at_epochs()
        return self._answer(stored, epochs, learn_chain(offset, epochs.current))

    def divergence(self, topic: str, partition: int, offset: int, chain: EpochChain) -> int | None:
        """Return the offset at which the log departs from one that had these leader epochs.

        Args:
            topic: the name of the topic.
            partition: the number of the partition.
            offset: the position up to which the other log was read.
            chain: the leader epochs of the other log's records before `offset`.

        Returns:
            The first offset whose record may differ; None if the logs agree up to `offset`, -1 if
            that can't be determined.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            LogDirectoryError: the files can't be read.
        """
        stored = self._directory.log(topic, partition)
        asking = find_divergence(offset, chain, stored.log_start_offset)
        return self._answer(stored, stored.look_at_epochs(), asking)

    def committed(self, topic: str, partition: int, start: int, end: int) -> ReadCommittedView:
        """Return the committed part of the offsets from `start` to before `end`.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            OffsetOutOfRange: the log does not hold `start`, or no longer holds it.
            CorruptData: a batch in the range is damaged.
        """
        return read_committed_view(self._directory.log(topic, partition), start, end)

    def offset_of_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after a time; None if there is none.

        Args:
            topic: the name of the topic.
            partition: the number of the partition.
            timestamp_ms: the time, in milliseconds since 1970-01-01 UTC.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            CorruptData: a batch in the range is damaged.
        """
        found = self._directory.log(topic, partition).offset_for_timestamp(timestamp_ms)
        return None if found is None else found[0]

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[RecordBatch]:
        """Yield the batches that hold the offsets from `start` to before `end`.

        The first batch may begin before `start`, the last one may reach beyond `end`, and control
        batches are included. Checksums are not verified: call `check_crc`.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            OffsetOutOfRange: the log does not hold `start`, or no longer holds it.
        """
        position = start
        while position < end:
            before = position
            for batch in split_batches(self._data(topic, partition, position)):
                if batch.base_offset >= end:
                    return
                yield batch
                position = batch.next_offset
            if position == before:
                return

    @staticmethod
    def _answer(stored: PartitionLog, epochs: LeaderEpochHistory, asking: EpochQuestion[T]) -> T:
        end_offset = stored.log_end_offset

        def ask(wanted: Mapping[None, int]) -> dict[None, EpochEnd]:
            return {None: EpochEnd(*epochs.end_of(wanted[None], end_offset))}

        return answer_all({None: asking}, ask)[None]

    def _data(self, topic: str, partition: int, offset: int) -> Buffer:
        stored = self._directory.log(topic, partition)
        for _ in range(LOOKS_MAX):
            try:
                return stored.read(offset, max_bytes=STORED_READ_BYTES)
            except (CorruptData, OffsetOutOfRange):
                # The broker may have compacted or removed files since they were listed.
                with suppress(OffsetOutOfRange):
                    stored = self._directory.reopen(topic, partition)
        return stored.read(offset, max_bytes=STORED_READ_BYTES)
