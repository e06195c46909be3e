"""StoredLog: the files of a log in a directory, read without a broker.

For whoever has to do no more than that, such as the tasks of a Spark job: it knows of a broker
nothing but how it keeps its files.
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


class ReadCommittedView(NamedTuple):
    """A part of a log as readers of committed records see it."""

    end_offset: int
    """Every transaction with records before it is decided."""
    aborted: tuple[AbortedRange, ...]


def read_committed_view(log: PartitionLog, start: int, end: int) -> ReadCommittedView:
    """What counts of the offsets from `start` to before `end`.

    A transaction that began before `start` is taken from its first batch at or behind `start`: what
    lies before that is not read. A marker without such a batch ends nothing that is read.

    Raises:
        OffsetOutOfRange: the log does not hold `start`.
        CorruptData: a batch on the way is damaged.
    """
    transactions = OpenTransactions()
    aborted: list[AbortedRange] = []
    for batch in _walk(log, start):
        if batch.base_offset >= end and not _is_open_before(transactions, end):
            break
        decided = transactions.take(batch, batch.base_offset)
        if decided is not None and decided.aborted:
            aborted.append(decided.range)
    first_open = transactions.first_open_offset
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
        if position == before:
            return


T = TypeVar("T")

STORED_READ_BYTES: Final = 1024 * 1024
LOOKS_MAX: Final = 5
"""How often the files of a partition are listed anew because they changed under a reader."""


class StoredLog:
    """The files of a log, read without a broker. Synchronous; a broker may be writing meanwhile.

    Topics and the ends of partitions are as they were when the StoredLog was made. What the broker
    compacts meanwhile is read as it is by then: in order, and without those records that have
    become older than the last one of their key, be that one behind the end.
    """

    def __init__(self, directory: str) -> None:
        """Open the files.

        Raises:
            LogDirectoryLost: there is no log.
            CorruptData: a small file that describes it is damaged.
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
        """Close the files; happens by itself when nobody refers to this any more."""
        self._finalizer()

    @property
    def cluster_id(self) -> str:
        """The identity of the log."""
        return self._directory.cluster_id

    def topics(self) -> dict[str, int]:
        """Topics and how many partitions they have."""
        return {name: len(topic.partitions) for name, topic in self._directory.topics.items()}

    def topic_ids(self) -> dict[str, bytes]:
        """The ids of all topics: one that is created again under its name has another."""
        return {name: topic.topic_id for name, topic in self._directory.topics.items()}

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset, and the one after the last.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
        """
        stored = self._directory.log(topic, partition)
        return stored.log_start_offset, stored.log_end_offset

    def check_end(self, topic: str, partition: int) -> None:
        """Whether the files can be read as far as their broker has noted that they reach.

        What is damaged at the end looks to who reads it as if it had not been written yet.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            CorruptData: they end before that; tells where.
        """
        _, end = self.offsets(topic, partition)
        least = self._directory.least_end(topic, partition)
        if end < least:
            raise CorruptData(
                f"{topic}-{partition} can be read up to offset {end}, but {least} records and "
                "markers were written: a batch is damaged, or was cut off; `streamlog log verify` "
                "shows which"
            )

    def leader_epochs(self, topic: str, partition: int, offset: int) -> EpochChain:
        """The last leader epochs of the records before an offset; empty if nobody knows.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            LogDirectoryError: the disk refused.
        """
        stored = self._directory.log(topic, partition)
        epochs = stored.look_at_epochs()
        return self._answer(stored, epochs, learn_chain(offset, epochs.current))

    def divergence(self, topic: str, partition: int, offset: int, chain: EpochChain) -> int | None:
        """Up to where the log still is the one that had these epochs before an offset.

        None: up to the offset; -1: nobody knows.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            LogDirectoryError: the disk refused.
        """
        stored = self._directory.log(topic, partition)
        asking = find_divergence(offset, chain, stored.log_start_offset)
        return self._answer(stored, stored.look_at_epochs(), asking)

    def committed(self, topic: str, partition: int, start: int, end: int) -> ReadCommittedView:
        """What readers of committed records see of the offsets from `start` to before `end`.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            OffsetOutOfRange: the log does not hold `start` (any more).
            CorruptData: a batch on the way is damaged.
        """
        return read_committed_view(self._directory.log(topic, partition), start, end)

    def offset_of_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first record from that time on (ms since 1970); None if there is none.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            CorruptData: a batch on the way is damaged.
        """
        found = self._directory.log(topic, partition).offset_for_timestamp(timestamp_ms)
        return None if found is None else found[0]

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[RecordBatch]:
        """The batches that hold the offsets from `start` to before `end`.

        The first may begin before `start`, the last may go beyond `end`; some may be control
        batches. They are not checked: call `check_crc`.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            OffsetOutOfRange: the log does not hold `start` (any more).
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
                # The broker may have compacted or removed what was there when it was listed.
                with suppress(OffsetOutOfRange):
                    stored = self._directory.look_again(topic, partition)
        return stored.read(offset, max_bytes=STORED_READ_BYTES)
