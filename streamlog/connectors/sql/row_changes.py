"""Row changes: what records do to the rows of a table, as runs of equal statements.

A record becomes a row by the settings `pk_mode` and `pk_fields` (Kafka Connect's JDBC sink has the
same): its columns are the fields of the value, plus those of the key. Consecutive records that
write the same columns form a run, which the database takes in one statement.

Rule: pure, and only about order: a run holds one row for each key, its last, because one statement
must not change a row twice; a deletion between two writes begins a new run. So the table has what
it would have if each record had been written alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from streamlog.connect import BadRecord, BadRecords, Schema, fields_of
from streamlog.connect import Field as SchemaField
from streamlog.serdes.erased_types import AnyRecord

PkMode: TypeAlias = Literal["none", "kafka", "record_key", "record_value"]
"""Where the key of a row comes from, by the names of Kafka Connect's JDBC sink."""

KEY_COLUMN: Final = "_key"
VALUE_COLUMN: Final = "value"
TIME_COLUMN: Final = "_timestamp"
COORDINATES: Final = ("__connect_topic", "__connect_partition", "__connect_offset")
_TIMESTAMP: Final = Schema("int64", logical="Timestamp")
_SCALARS: Final = (str, bytes, bytearray, memoryview, bool, int, float)


@dataclass(frozen=True, slots=True)
class RowShape:
    """How records become rows.

    Attributes:
        pk_mode: where the key of a row comes from.
        pk_fields: names of the key's columns; () takes all of them.
        deletes: whether a record without a value deletes its row.
        upserts: whether a row replaces the one that has its key.
    """

    pk_mode: PkMode
    pk_fields: tuple[str, ...] = ()
    deletes: bool = False
    upserts: bool = False

    def key_columns(self, key: Schema | None, value: Schema | None) -> Sequence[SchemaField]:
        """Return the columns of the key with their schemas, for a table that is to be made."""
        if self.pk_mode == "none":
            return ()
        if self.pk_mode == "kafka":
            kinds = (Schema("string"), Schema("int32"), Schema("int64"))
            return [SchemaField(n, s) for n, s in zip(self.coordinates, kinds, strict=True)]
        whole = key if self.pk_mode == "record_key" else value
        if whole is not None and whole.kind == "struct":
            names = self.pk_fields or tuple(each.name for each in whole.fields)
            return [each for name in names if (each := whole.field(name)) is not None]
        if self.pk_mode == "record_key" and whole is not None:
            return [SchemaField(self._scalar_key, whole)]
        return ()

    def columns(self, key: Schema | None, value: Schema | None) -> Sequence[SchemaField]:
        """Return all columns of a row with their schemas: those of the key, then the others."""
        keys = self.key_columns(key, value)
        if value is not None and value.kind == "struct":
            rest: Iterable[SchemaField] = value.fields
        else:
            rest = (
                SchemaField(VALUE_COLUMN, value or Schema("bytes", optional=True)),
                SchemaField(TIME_COLUMN, _TIMESTAMP),
            )
            if self.pk_mode == "none" and key is not None:
                # Any record may lack a key, whatever the topic's type of keys says.
                rest = (SchemaField(KEY_COLUMN, replace(key, optional=True)), *rest)
        known = {each.name for each in keys}
        return [*keys, *(each for each in rest if each.name not in known)]

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The columns of topic, partition and offset, for `pk_mode` "kafka"."""
        return self.pk_fields or COORDINATES

    @property
    def _scalar_key(self) -> str:
        return self.pk_fields[0] if self.pk_fields else KEY_COLUMN

    def key_of(self, record: AnyRecord) -> Mapping[str, object]:
        """Return the key of a record's row, by column.

        Raises:
            BadRecord: the record has no such key.
        """
        if self.pk_mode == "none":
            return {}
        if self.pk_mode == "kafka":
            here = (record.topic, record.partition, record.offset)
            return dict(zip(self.coordinates, here, strict=True))
        whole = record.key if self.pk_mode == "record_key" else record.value
        if isinstance(whole, _SCALARS) and self.pk_mode == "record_key":
            return {self._scalar_key: whole}
        if whole is None:
            raise BadRecord(f"it has no {self.pk_mode.removeprefix('record_')} to take a key from")
        try:
            fields = fields_of(whole)
        except BadRecord:
            # A type without fields, such as a UUID or a date, is a key of one column.
            if self.pk_mode == "record_key":
                return {self._scalar_key: whole}
            raise
        found = {name: fields.get(name) for name in self.pk_fields or fields}
        missing = [name for name, part in found.items() if part is None]
        if missing:
            raise BadRecord(f"its key has no {', '.join(missing)}")
        return found

    def row_of(self, record: AnyRecord, key: Mapping[str, object]) -> Mapping[str, object]:
        """Return a record's row, by column: the key's columns, then the value's."""
        value = record.value
        if value is None or isinstance(value, _SCALARS):
            rest: Mapping[str, object] = {VALUE_COLUMN: value, TIME_COLUMN: record.timestamp}
        else:
            try:
                rest = fields_of(value)
            except BadRecord:
                rest = {VALUE_COLUMN: value, TIME_COLUMN: record.timestamp}
        if self.pk_mode == "none" and VALUE_COLUMN in rest and TIME_COLUMN in rest:
            # A row without fields keeps its key, though none identifies it.
            rest = {KEY_COLUMN: record.key, **rest} if record.key is not None else rest
        return {**key, **{name: part for name, part in rest.items() if name not in key}}


@dataclass(slots=True)
class Run:
    """Rows for one statement.

    Attributes:
        columns: their columns; of a deletion, those of the key.
        keys: which of the columns are the key.
        is_deletion: whether the rows are deleted; they are keys then.
        rows: the rows.
    """

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    is_deletion: bool
    rows: list[tuple[object, ...]] = field(default_factory=list)
    _positions: dict[tuple[object, ...], int] = field(default_factory=dict)

    def put(self, key: tuple[object, ...], row: tuple[object, ...]) -> None:
        """Add a row, in the position of an earlier one with its key; a key of () is never equal."""
        known = self._positions.get(key) if key else None
        if known is None:
            if key:
                self._positions[key] = len(self.rows)
            self.rows.append(row)
        else:
            self.rows[known] = row


def plan_runs(records: Sequence[AnyRecord], shape: RowShape) -> Sequence[Run]:
    """Return what records do to a table, in order.

    Raises:
        BadRecords: some records have no row; the error has the reason for each.
    """
    runs: list[Run] = []
    bad: dict[int, str] = {}
    for index, record in enumerate(records):
        try:
            _add(runs, record, shape)
        except BadRecord as error:
            bad[index] = str(error)
        except TypeError:
            bad[index] = "its key holds a list or a map, which can't be compared"
    if bad:
        raise BadRecords(bad)
    return runs


def _add(runs: list[Run], record: AnyRecord, shape: RowShape) -> None:
    if record.value is None and not shape.deletes:
        raise BadRecord("it has no value: set delete_enabled to delete the row of its key")
    key = shape.key_of(record)
    values = tuple(key.values())
    if record.value is None:
        columns, row, is_deletion = tuple(key), values, True
    else:
        by_column = shape.row_of(record, key)
        columns, row, is_deletion = tuple(by_column), tuple(by_column.values()), False
    # A deletion and a write of one key stay in order, as each begins a run.
    last = runs[-1] if runs else None
    if last is None or last.columns != columns or last.is_deletion is not is_deletion:
        last = Run(columns, tuple(key), is_deletion)
        runs.append(last)
    # Inserts keep rows of one key apart, so that the database reports the second.
    last.put(values if shape.upserts or is_deletion else (), row)


def adapt_rows(
    rows: Sequence[tuple[object, ...]], adapters: Sequence[Callable[[object], object] | None]
) -> Sequence[tuple[object, ...]]:
    """Return rows as a driver takes them.

    Args:
        rows: the rows.
        adapters: for each column what adapts a value other than None; None leaves it as it is.
    """
    # Most tables need no adapter at all: then no row is touched.
    changed = [(at, adapt) for at, adapt in enumerate(adapters) if adapt is not None]
    if not changed:
        return rows
    adapted = []
    for row in rows:
        parts = [*row]
        for at, adapt in changed:
            if parts[at] is not None:
                parts[at] = adapt(parts[at])
        adapted.append(tuple(parts))
    return adapted
