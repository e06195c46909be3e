"""StoredReader: partitions of a log, read from its files without a broker.

It serves tasks on other machines that reach the data directory by a shared path, also next to a
live broker. It returns what `LogReader` returns: committed records with the time marks between
them. A transaction that is open at the planned end lies behind it, because that end is the last
stable offset. Rule of the file: every batch's checksum is compared before the batch is used. It is
a module of its own, because it loads the broker's storage, which readers through a client don't
need.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from streamlog.errors import CorruptData, DamagedBatch, OffsetOutOfRange, ProcessingError
from streamlog.history.task_run import Arrival
from streamlog.processing.error_handling import DamagedInputs
from streamlog.processing.outbox import Outbox
from streamlog.record import TopicPartition
from streamlog.records.batch import RecordBatch
from streamlog.records.control_batches import AbortedBatches, TimeMark, time_mark_of
from streamlog.records.record_columns import RecordColumns
from streamlog.stored_log import StoredLog

ARRIVAL_RECORDS = 5_000
"""Records of one arrival; the last may have fewer."""


class StoredReader:
    """Reads the files of a log."""

    def __init__(self, directory: str) -> None:
        """Open the files.

        Raises:
            LogDirectoryLost: there is no log.
        """
        self._log = StoredLog(directory)

    def close(self) -> None:
        """Close the files."""
        self._log.close()

    def read(
        self, partition: TopicPartition, start: int, end: int, damaged: DamagedInputs | None = None
    ) -> Generator[Arrival, None, None]:
        """Yield what the partition holds from `start` up to `end`, without `end`.

        An unreadable batch raises, unless a policy of `damaged` skips it.

        Raises:
            ProcessingError: a batch is damaged, or the files end too early; has its offset.
            OffsetOutOfRange: the log does not hold `start` any more.
        """
        self._check_end(partition, end)
        records, marks = RecordColumns(), list[TimeMark]()
        for batch, problem in self._committed(partition, start, end):
            try:
                if problem is not None:
                    raise problem
                columns, found = _decoded(batch)
            except CorruptData as error:
                passed = _passed(partition, batch, error, damaged)
                yield Arrival(records, marks, passed=passed)
                records, marks = RecordColumns(), []
                continue
            marks += found
            # Only whole batches can be read, and the first and last may reach beyond the range.
            if batch.base_offset < start or batch.last_offset >= end:
                kept = [r for r in columns if start <= r.offset < end]
                columns = RecordColumns.of(kept)
            records += columns
            if len(records) >= ARRIVAL_RECORDS:
                yield Arrival(records, marks)
                records, marks = RecordColumns(), []
        if len(records) or marks:
            yield Arrival(records, marks)

    def _committed(
        self, partition: TopicPartition, start: int, end: int
    ) -> Iterator[tuple[RecordBatch, CorruptData | None]]:
        """Yield the batches of committed records, each with the fault of its bytes or None."""
        topic, number = partition
        first, _ = self._log.offsets(topic, number)
        if start < min(first, end):
            raise OffsetOutOfRange(
                f"{topic}-{number}: offset {start} is no longer in the log, which starts at "
                f"{first}: records were deleted after the history was planned; run it again"
            )
        if start >= end:
            return
        # From the batches, not from the index: a live broker writes the index later than its log.
        try:
            aborted = AbortedBatches(self._log.committed(topic, number, start, end).aborted)
        except CorruptData as error:
            raise _damaged(partition, start, error) from error
        for batch in self._log.read(topic, number, start, end):
            problem = None
            try:
                batch.check_crc()
                is_hidden = aborted.hides(batch)
            except CorruptData as error:
                # Whether a damaged batch was aborted is unknown, so it counts as committed.
                is_hidden, problem = False, error
            if not is_hidden:
                yield batch, problem

    def _check_end(self, partition: TopicPartition, end: int) -> None:
        """Raise if the files end before `end`: damage or a cut there is invisible to a reader."""
        topic, number = partition
        _, found = self._log.offsets(topic, number)
        if found < end:
            raise ProcessingError(
                f"the files of {topic}-{number} can be read up to offset {found}, but the log held "
                f"{end} when the history was planned: a batch is damaged, or was cut off; "
                "`streamlog log verify` shows which",
                topic=topic,
                partition=number,
                offset=found,
                node=topic,
            )


def _decoded(batch: RecordBatch) -> tuple[RecordColumns, list[TimeMark]]:
    if not batch.is_control:
        return batch.columns(), []
    mark = time_mark_of(batch)
    return RecordColumns(), [] if mark is None else [mark]


def _passed(
    partition: TopicPartition,
    batch: RecordBatch,
    error: CorruptData,
    damaged: DamagedInputs | None,
) -> Outbox:
    """Return the effects of an unreadable batch that a policy skips.

    Raises:
        ProcessingError: no policy skips it.
    """
    if damaged is None:
        raise _damaged(partition, batch.base_offset, error) from error
    offsets = batch.base_offset, batch.next_offset
    return damaged.outbox(DamagedBatch.at(*partition, offsets, bytes(batch.data), str(error)))


def _damaged(partition: TopicPartition, offset: int, error: CorruptData) -> ProcessingError:
    topic, number = partition
    return ProcessingError(
        f"a batch of {topic}-{number} at or after offset {offset} is damaged: {error}; "
        "`streamlog log verify` lists all damage",
        topic=topic,
        partition=number,
        offset=offset,
        node=topic,
    )
