"""PackedRecords: the encoded records of one batch, whose producer is set later.

A worker that holds records back until its transaction begins keeps them in this form. They are
encoded while they are new, so their objects are freed early, and they take only the memory that
they need on the wire. The producer is only in the batch's header, which is written at the end, as
is the compression. Not done here: the number of records in a batch.
"""

from __future__ import annotations

from streamlog.records.arrow_rows import ArrowRows
from streamlog.records.batch import RecordBatch
from streamlog.records.builder import BatchBuilder
from streamlog.records.compression import Compression
from streamlog.records.record_columns import FieldColumns, RecordColumns


class PackedRecords:
    """The records of one future batch."""

    __slots__ = ("_builder", "last_timestamp_ms")

    def __init__(self) -> None:
        self._builder = BatchBuilder()
        self.last_timestamp_ms = -1
        """Timestamp of the last record, in milliseconds since 1970; -1 if there are none."""

    def __len__(self) -> int:
        return self._builder.record_count

    def size_bytes(self) -> int:
        """Return the size of the records in bytes, before compression."""
        return self._builder.size_bytes

    def extend(self, columns: FieldColumns) -> None:
        """Add all records of the columns, or none if one is invalid.

        Raises:
            MessageTooLarge, UsageError, TypeError: as `BatchBuilder.extend`.
        """
        self.extend_with(columns, 0, len(columns))

    def extend_with(self, columns: FieldColumns, start: int, stop: int) -> None:
        """Add the records from `start` up to but not including `stop`; all of them, or none.

        Raises:
            MessageTooLarge, UsageError, TypeError, IndexError: as `BatchBuilder.extend_with`.
        """
        self._builder.extend_with(columns, start, stop)
        if start < stop:
            self.last_timestamp_ms = columns.timestamps[stop - 1]

    def take(self, rows: ArrowRows, first: int, end: int, bytes_max: int) -> int:
        """Add rows until the records would exceed `bytes_max`; without any, at least one.

        Returns:
            The index of the first row that was not added.

        Raises:
            MessageTooLarge, UsageError, ValueError: as `BatchBuilder.take`.
        """
        stop = self._builder.take(rows, first, end, bytes_max)
        if first < stop:
            self.last_timestamp_ms = rows.time_at(stop - 1)
        return stop

    def part(self, start: int, stop: int) -> FieldColumns:
        """Decode the records from `start` up to but not including `stop`, as columns."""
        # Encodes a batch and decodes it again: slow, but only for records that a broker refused.
        read: RecordColumns = RecordBatch(self.sealed()).columns()[start:stop]
        columns = FieldColumns()
        columns.extend(read.timestamps, read.keys, read.values, read.headers)
        return columns

    def sealed(
        self,
        *,
        codec: Compression = Compression.NONE,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytes:
        """Return the batch with this header; may be called again with another one.

        Raises:
            UsageError: there are no records.
        """
        self._builder.identify(
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )
        return self._builder.build()
