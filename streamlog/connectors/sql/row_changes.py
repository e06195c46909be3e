"""Row changes: what records do to the rows of a table, as runs of equal statements.

A record becomes a row by the settings `pk_mode` and `pk_fields` (Kafka Connect's JDBC sink has the
same): its columns are the fields of the value, plus those of the key. Consecutive records that
write the same columns form a run, which the database takes in one statement.

Nearly every batch is uniform: its values have one class, or one set of names. Then its rows are
taken out by one call for each value (`plan_uniform`), at a third of the cost of `plan_runs`, which
gives the same rows. What is not plainly uniform (a tombstone, a null in a key, a missing name) is
no error there: `plan_runs` finds the record and the words for it.

Rule: pure, and only about order: a run holds one row for each key, its last, because one statement
must not change a row twice; a deletion between two writes begins a new run. So the table has what
it would have if each record had been written alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, Final, Literal, TypeAlias

from streamlog.connect import BadRecord, BadRecords, Batch, Schema, attributes_of, fields_of
from streamlog.connect import Field as SchemaField
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord

PkMode: TypeAlias = Literal["none", "kafka", "record_key", "record_value"]
"""Where the key of a row comes from, by the names of Kafka Connect's JDBC sink."""

KEY_COLUMN: Final = "_key"
VALUE_COLUMN: Final = "value"
TIME_COLUMN: Final = "_timestamp"
COORDINATES: Final = ("__connect_topic", "__connect_partition", "__connect_offset")
_TIMESTAMP: Final = Schema("int64", logical="Timestamp")
Cells: TypeAlias = tuple[object, ...]
_PLAIN_KEYS: Final = frozenset({str, bytes, bool, int, float})
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
            return [SchemaField(self.scalar_key, whole)]
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
    def scalar_key(self) -> str:
        """The column of a key that is one value."""
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
            return {self.scalar_key: whole}
        if whole is None:
            raise BadRecord(f"it has no {self.pk_mode.removeprefix('record_')} to take a key from")
        try:
            fields = fields_of(whole)
        except BadRecord:
            # A type without fields, such as a UUID or a date, is a key of one column.
            if self.pk_mode == "record_key":
                return {self.scalar_key: whole}
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


def plan_uniform(batch: Batch[object, object], first: int, shape: RowShape) -> Sequence[Run] | None:
    """Return the one run of a batch; None if its records are not uniform.

    Args:
        batch: the records.
        first: the index of the first record to take.
        shape: how records become rows.
    """
    values = batch.values[first:]
    fields = _fields(values)
    if fields is None:
        return None
    names, cells_of = fields
    # Not a row of columns, but a record without fields, to which its key is added.
    if shape.pk_mode == "none" and {VALUE_COLUMN, TIME_COLUMN} <= {*names}:
        return None
    keys = _keys(batch, first, shape, values)
    if keys is None:
        return None
    key_names, key_cells = keys
    others = tuple(name for name in names if name not in key_names)
    rest = map(cells_of(others), values) if others else ((),) * len(values)
    rows = [key + row for key, row in zip(key_cells, rest, strict=True)]
    if shape.upserts and key_names:
        try:
            # A dict keeps the position of a key's first row and has its last one.
            rows = [*dict(zip(key_cells, rows, strict=True)).values()]
        except TypeError:
            return None
    return [Run(key_names + others, key_names, is_deletion=False, rows=rows)]


def _fields(
    values: Sequence[object],
) -> tuple[tuple[str, ...], Callable[[tuple[str, ...]], Callable[[object], Cells]]] | None:
    """Return the names of all values, and what makes a function that takes some of them out."""
    kinds = {*map(type, values)}
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if kind is not dict:
        names = attributes_of(kind)
        return None if names is None else (names, _attributes)
    first = values[0]
    names = tuple(first) if isinstance(first, dict) else ()
    wanted = first.keys() if isinstance(first, dict) else set[str]()
    if any(isinstance(each, dict) and each.keys() != wanted for each in values):
        return None
    return names, _items


def _keys(
    batch: Batch[object, object], first: int, shape: RowShape, values: Sequence[object]
) -> tuple[tuple[str, ...], Sequence[Cells]] | None:
    """Return the columns of the key, and the key of each row."""
    if shape.pk_mode == "none":
        return (), ((),) * len(values)
    if shape.pk_mode == "kafka":
        topic, number = batch.partition
        return shape.coordinates, [(topic, number, at) for at in batch.offsets[first:]]
    whole = batch.keys[first:] if shape.pk_mode == "record_key" else values
    if shape.pk_mode == "record_key" and {*map(type, whole)} <= _PLAIN_KEYS:
        return (shape.scalar_key,), [(key,) for key in whole]
    fields = _fields(whole)
    if fields is None:
        return None
    known, cells_of = fields
    names = shape.pk_fields or known
    if not {*names} <= {*known} or not names:
        return None
    cells = [*map(cells_of(names), whole)]
    return None if any(None in key for key in cells) else (names, cells)


def _attributes(names: tuple[str, ...]) -> Callable[[object], Cells]:
    found = attrgetter(*names)
    # One name alone is not given as a tuple.
    return found if len(names) > 1 else lambda value: (found(value),)


def _items(names: tuple[str, ...]) -> Callable[[object], Cells]:
    found: Callable[..., Any] = itemgetter(*names)
    return found if len(names) > 1 else lambda value: (found(value),)
