"""Sink rows: records of one partition on their way to a sink, as columns.

Each row has its key and value twice: as they lie in the log, for dead letters and for sinks that
carry bytes, and decoded. An object for each record costs more than decoding it, so `Record`s are
made only for sinks that ask for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

from streamlog.connect.row_schema import Schema
from streamlog.connect.schema_record import SchemaRecord
from streamlog.durations import moment
from streamlog.record import Headers, Record, TopicPartition
from streamlog.records.record_columns import RecordColumns, total_bytes
from streamlog.serdes.erased_types import AnyRecord, UserValue

T = TypeVar("T")


class SinkRow(NamedTuple):
    """A record for a sink, with its bytes in the log."""

    record: AnyRecord
    key: bytes | None
    value: bytes | None
    time_ms: int

    @property
    def offset(self) -> int:
        """The record's offset."""
        return self.record.offset


class SinkRows:
    """Records of one partition in offset order.

    Attributes:
        partition: where they come from.
        log: offsets, times, headers, and the bytes of keys and values, as they lie in the log.
        keys: the decoded keys.
        values: the decoded values.
    """

    __slots__ = ("_is_own", "_records", "keys", "log", "partition", "values")

    def __init__(
        self,
        partition: TopicPartition,
        log: RecordColumns | None = None,
        keys: Sequence[UserValue] = (),
        values: Sequence[UserValue] = (),
    ) -> None:
        self.partition = partition
        self.log = RecordColumns() if log is None else log
        self.keys, self.values = keys, values
        self._records: list[AnyRecord] | None = None
        self._is_own = False
        """Whether the columns were made here, so that they may grow in place."""

    @classmethod
    def of(cls, partition: TopicPartition, rows: Iterable[SinkRow]) -> Self:
        """Return rows whose records exist already: a transform may have changed all of them."""
        log, records = RecordColumns(), list[AnyRecord]()
        for record, key, value, time_ms in rows:
            log.add(record.offset, time_ms, key, value, record.headers or None)
            records.append(record)
        found = cls(partition, log, [each.key for each in records], [r.value for r in records])
        found._records = records
        return found

    def __len__(self) -> int:
        return len(self.log)

    def __getitem__(self, at: slice) -> SinkRows:
        part = SinkRows(self.partition, self.log[at], self.keys[at], self.values[at])
        if self._records is not None:
            part._records = self._records[at]
        return part

    def decoded(self) -> SinkRows:
        """Return these rows without the bytes that they have in the log, but with all else."""
        log: RecordColumns = self.log[:]
        log.keys, log.values = [None] * len(self), [None] * len(self)
        rows = SinkRows(self.partition, log, self.keys, self.values)
        rows._records = self._records
        return rows

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets."""
        return self.log.offsets

    @property
    def topics(self) -> Sequence[str]:
        """The topics: that of the partition, or those that a transform has given."""
        if self._records is None:
            return [self.partition.topic] * len(self)
        return [record.topic for record in self._records]

    @property
    def times(self) -> Sequence[int] | Sequence[datetime]:
        """The times: milliseconds since 1970 as in the log, or those of records that were made."""
        # A transform may have given a record another time.
        if self._records is None:
            return self.log.timestamps
        return [record.timestamp for record in self._records]

    @property
    def headers(self) -> Sequence[Headers]:
        """The headers, or those of records that were made."""
        if self._records is None:
            return self.log.headers or [()] * len(self)
        return [record.headers for record in self._records]

    @property
    def size_bytes(self) -> int:
        """The size of keys and values in the log."""
        return total_bytes(self.log.keys) + total_bytes(self.log.values)

    @property
    def records(self) -> Sequence[AnyRecord]:
        """The records."""
        if self._records is None:
            topic, number = self.partition
            headers = self.log.headers or ((),) * len(self)
            times = map(moment, self.log.timestamps)
            fields = zip(self.keys, self.values, times, headers, self.offsets, strict=True)
            self._records = [
                Record(key, value, time, header, topic, number, offset)
                for key, value, time, header, offset in fields
            ]
        return self._records

    @property
    def brings_schemas(self) -> bool:
        """Whether records have schemas of their own, which a transform has given them."""
        # The records of an app have the schema of their topic's type, all of them.
        return any(isinstance(each, SchemaRecord) for each in self._records or ())

    def row(self, at: int) -> SinkRow:
        """Return one row."""
        (record,) = self[at : at + 1].records
        return SinkRow(record, self.log.keys[at], self.log.values[at], self.log.timestamps[at])

    def position(self, offset: int) -> int:
        """Return the index of the first row at or behind an offset."""
        return bisect_left(self.offsets, offset)

    def with_more(self, more: SinkRows) -> SinkRows:
        """Return these rows and those that follow; these may be part of the result afterwards."""
        # Nearly always a poll brings a whole flush: then no column is copied.
        if not len(self):
            return more
        rows: SinkRows = self if self._is_own else self[:]
        rows._is_own = True
        if rows._records is not None or more._records is not None:
            rows._records = _longer(rows.records, more.records)
        rows.log += more.log
        rows.keys, rows.values = _longer(rows.keys, more.keys), _longer(rows.values, more.values)
        return rows

    def without(self, offsets: Collection[int]) -> SinkRows:
        """Return the rows at other offsets."""
        if not offsets:
            return self
        kept = [at for at, offset in enumerate(self.offsets) if offset not in offsets]
        return self if len(kept) == len(self) else SinkRows.of(self.partition, map(self.row, kept))


def _longer(column: Sequence[T], more: Sequence[T]) -> list[T]:
    grown: list[T] = column if isinstance(column, list) else [*column]
    grown.extend(more)
    return grown


SchemaPair: TypeAlias = tuple[Schema | None, Schema | None]
"""The schemas of keys and values."""


def schema_runs(rows: SinkRows, declared: SchemaPair) -> list[tuple[SinkRows, SchemaPair]]:
    """Return rows as runs of one schema each, in order.

    A null has no schema, and belongs to any run, so a tombstone between two rows ends none.

    Args:
        rows: the rows.
        declared: the schemas of records that have none of their own.
    """
    if not rows.brings_schemas:
        return [(rows, declared)]
    runs: list[tuple[int, list[Schema | _AnySchema | None]]] = []
    for at, record in enumerate(rows.records):
        found = _schemas_of(record, declared)
        if not runs or not all(map(_agree, runs[-1][1], found)):
            runs.append((at, [_ANY, _ANY]))
        known = runs[-1][1]
        known[:] = [new if old is _ANY else old for old, new in zip(known, found, strict=True)]
    ends = [*(begin for begin, _ in runs[1:]), len(rows)]
    return [
        (rows[begin:end], (_known(key), _known(value)))
        for (begin, (key, value)), end in zip(runs, ends, strict=True)
    ]


class _AnySchema(Enum):
    ANY = 0


_ANY: Final = _AnySchema.ANY


def _schemas_of(
    record: AnyRecord, declared: SchemaPair
) -> tuple[Schema | _AnySchema | None, Schema | _AnySchema | None]:
    key, value = declared
    if isinstance(record, SchemaRecord):
        key, value = record.key_schema, record.value_schema
    return (
        _ANY if key is None and record.key is None else key,
        _ANY if value is None and record.value is None else value,
    )


def _agree(known: Schema | _AnySchema | None, found: Schema | _AnySchema | None) -> bool:
    # A converter keeps the schemas that it has met, so most are one object.
    return known is found or _ANY in (known, found) or known == found


def _known(schema: Schema | _AnySchema | None) -> Schema | None:
    return None if isinstance(schema, _AnySchema) else schema
