"""PackedRecords: records that are bytes of a batch already, whose producer is known later.

Who holds records back until a transaction may begin keeps them like this: written while they are
new, they go as objects before the next ones come, and what is left takes the memory that it will
take on the wire. Only the header of a batch says who has written it. Not done here: how many
records go into one batch (the holder's), and compression, which comes with the header.
"""

from __future__ import annotations

from streamlog.records.batch import RecordBatch
from streamlog.records.builder import BatchBuilder
from streamlog.records.compression import Compression
from streamlog.records.record_columns import FieldColumns, RecordColumns


class PackedRecords:
    """Records of one batch to be."""

    __slots__ = ("_builder", "last_timestamp_ms")

    def __init__(self) -> None:
        self._builder = BatchBuilder()
        self.last_timestamp_ms = -1
        """Of the last record, in milliseconds since 1970; -1 if there are none."""

    def __len__(self) -> int:
        return self._builder.record_count

    def size_bytes(self) -> int:
        """What they take, before compression."""
        return self._builder.size_bytes

    def extend(self, columns: FieldColumns) -> None:
        """Many records more; all of them, or none.

        Raises:
            MessageTooLarge, UsageError, TypeError: as `BatchBuilder.extend`.
        """
        self.extend_with(columns, 0, len(columns))

    def extend_with(self, columns: FieldColumns, start: int, stop: int) -> None:
        """Those from `start` up to but not including `stop`; all of them, or none.

        Raises:
            MessageTooLarge, UsageError, TypeError, IndexError: as `BatchBuilder.extend_with`.
        """
        self._builder.extend_with(columns, start, stop)
        if start < stop:
            self.last_timestamp_ms = columns.timestamps[stop - 1]

    def part(self, start: int, stop: int) -> FieldColumns:
        """The records from `start` up to but not including `stop`, as columns again."""
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
        """The batch, as `encode_columns` gives it; may be asked for again, with another header.

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
