"""Change stream: turns the messages of a replication stream into records and their offsets.

The offset is `{"lsn": "0/16B3748", "skip": 2000, "snapshot": {...}}`: the end of the last
transaction that was taken whole, how many changes of the next one were taken, and how far the
snapshot is. The server sends everything again that committed behind `lsn`; what stands before is
dropped here. So a transaction of any size goes out in several Reads.

Rule: pure. Frames come in, in the order of the stream; records and offsets go out.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from streamlog.connect import ConnectError, Field, Json, Schema
from streamlog.connect.row_spans import CopiedColumns
from streamlog.connect.row_spans.copied_rows import CopiedRows
from streamlog.connect.schema_record import SchemaRecord
from streamlog.connectors.postgres_cdc.chunked_snapshot import ChunkedSnapshot, Key, Mark
from streamlog.connectors.postgres_cdc.pgoutput import (
    UNCHANGED,
    XLOG_HEAD_BYTES,
    Begin,
    Columns,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    TruncateTables,
    Update,
    XLogData,
    decode_message,
    is_insert,
    lsn_text,
    relation_of,
)
from streamlog.connectors.postgres_cdc.row_reader import RowReader
from streamlog.connectors.postgres_cdc.row_values import Decoder, TypeCatalogue
from streamlog.durations import moment
from streamlog.record import Record
from streamlog.replace import replace
from streamlog.serdes.erased_types import UserKey, UserValue
from streamlog.serdes.named_columns import NamedColumns

Form: TypeAlias = Literal["rows", "changes"]
OnTruncate: TypeAlias = Literal["fail", "ignore", "event"]
Operation: TypeAlias = Literal["c", "u", "d", "r", "t"]
"""Debezium's letters: create, update, delete, read (of a snapshot), truncate."""
CdcRecord: TypeAlias = Record[UserKey, UserValue]
RowDict: TypeAlias = dict[str, object]

UNCHANGED_TEXT: Final = "__unchanged"
"""What stands for a value that was neither sent nor found; never null, which would be a change."""


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """A table to capture.

    Attributes:
        name: schema and table, such as "public.orders"; the connector's own name of the topic.
        key: the columns of its primary key; () for none.
    """

    name: str
    key: tuple[str, ...]


@dataclass(slots=True)
class Unfetched:
    """A record whose row lacks values that the server did not send.

    Attributes:
        table: its table.
        key: the text of its key's values, by column.
        row: the row, with UNCHANGED_TEXT where a value is missing.
        columns: the names of what is missing.
    """

    table: str
    key: Mapping[str, object]
    row: RowDict
    columns: tuple[str, ...]


@dataclass(slots=True)
class TableShape:
    """A table as its last Relation message describes it."""

    table: CapturedTable
    relation: Relation
    names: tuple[str, ...]
    decoders: tuple[Decoder, ...]
    key_at: tuple[int, ...]
    key_schema: Schema | None
    schema: Schema
    """The schema of a record's value: the row, or the change of it."""
    kinds: tuple[int, ...]
    """How each column is read, as of `CopiedRows`."""
    reader: RowReader

    @classmethod
    def of(
        cls, table: CapturedTable, relation: Relation, catalogue: TypeCatalogue, form: Form
    ) -> TableShape:
        """Return the shape of a table whose records have a form.

        Raises:
            ConnectError: the table has lost a column of its key.
        """
        names = tuple(each.name for each in relation.columns)
        lost = [each for each in table.key if each not in names]
        if lost:
            raise ConnectError(
                f"table {table.name}: its key column {', '.join(lost)} is gone or not published; "
                "start the connector again to read the new key"
            )
        fields = tuple(
            Field(
                each.name,
                catalogue.schema(each.type_oid, each.modifier, optional=each.name not in table.key),
            )
            for each in relation.columns
        )
        keys = tuple(fields[names.index(each)] for each in table.key)
        row = Schema("struct", fields=fields, name=table.name)
        decoders = tuple(catalogue.decoder(each.type_oid) for each in relation.columns)
        kinds = tuple(catalogue.kind(each.type_oid) for each in relation.columns)
        return cls(
            table,
            relation,
            names,
            decoders,
            tuple(names.index(each) for each in table.key),
            _key_schema(table.name, keys, form),
            row if form == "rows" else envelope_schema(row),
            kinds,
            RowReader(relation.oid, kinds, decoders),
        )

    def raw_key(self, columns: Columns) -> Key:
        """Return the text of a row's key."""
        return tuple(columns[at] for at in self.key_at)

    def key(self, columns: Columns, form: Form) -> UserKey:
        """Return a row's key: of form "rows" one value alone, else by column."""
        if form == "rows" and len(self.key_at) == 1:
            return self._value(self.key_at[0], columns[self.key_at[0]])
        return {self.names[at]: self._value(at, columns[at]) for at in self.key_at} or None

    def keys(self, rows: NamedColumns, form: Form) -> Sequence[UserKey] | None:
        """Return the keys of rows, as `key`; None if the table has no key."""
        names = [self.names[at] for at in self.key_at]
        if form == "rows" and len(names) == 1:
            return rows.column(names[0])
        columns = {name: rows.column(name) or () for name in names}
        return NamedColumns.of_columns(columns) if columns else None

    def named(self, rows: list[tuple[object, ...]]) -> NamedColumns:
        """Return rows by column."""
        return NamedColumns(self.names, rows)

    def copied(self, lines: bytes) -> NamedColumns:
        """Return rows by column, from lines of COPY."""
        return CopiedColumns(self.names, CopiedRows(lines, self.kinds, self.decoders))

    def row(self, columns: Columns) -> RowDict:
        """Return a row by column."""
        # Without a call of `_value` for each: nothing is done as often as this.
        return {
            name: decode(part)
            if isinstance(part, bytes)
            else None
            if part is None
            else UNCHANGED_TEXT
            for name, part, decode in zip(self.names, columns, self.decoders, strict=True)
        }

    def _value(self, at: int, part: object) -> object:
        return self.decoders[at](part) if isinstance(part, bytes) else UNCHANGED_TEXT


def _key_schema(table: str, keys: Sequence[Field], form: Form) -> Schema | None:
    if not keys or (form == "rows" and len(keys) == 1):
        return keys[0].schema if keys else None
    return Schema("struct", fields=tuple(keys), name=f"{table}.Key")


def envelope_schema(row: Schema) -> Schema:
    """Return the schema of a change, by Debezium's names, from that of a row and its table.

    Only a key's columns may be there of a row that was deleted, so all columns are optional.
    """
    columns = tuple(
        replace(each, schema=replace(each.schema, optional=True)) for each in row.fields
    )
    value = replace(row, fields=columns, name=f"{row.name}.Value", optional=True)
    fields = (
        Field("before", value),
        Field("after", value),
        Field("source", SOURCE_SCHEMA),
        Field("op", Schema("string")),
        Field("ts_ms", Schema("int64", optional=True)),
    )
    return Schema("struct", fields=fields, name=f"{row.name}.Envelope")


SOURCE_SCHEMA: Final = Schema(
    "struct",
    fields=(
        Field("connector", Schema("string")),
        Field("schema", Schema("string")),
        Field("table", Schema("string")),
        Field("lsn", Schema("int64", optional=True)),
        Field("txId", Schema("int64", optional=True)),
        Field("ts_ms", Schema("int64")),
        Field("snapshot", Schema("string", optional=True)),
    ),
    name="io.debezium.connector.postgresql.Source",
)
"""Where a change comes from; `_Maker.value` fills it."""


@dataclass(slots=True)
class TableRun:
    """Records of one table that follow each other, as columns.

    Attributes:
        shape: the table.
        times_ms: the times of the records, in milliseconds since 1970.
    """

    shape: TableShape
    times_ms: MutableSequence[int] = field(default_factory=list)
    copied: NamedColumns | None = None
    """The records as rows of a snapshot, which are a run of their own."""
    _rows: list[tuple[object, ...]] = field(default_factory=list)
    """The records as rows, as long as each of them is one."""
    _keys: list[UserKey] = field(default_factory=list)
    _values: list[UserValue] = field(default_factory=list)
    """The records, once one of them is no row."""

    def add_rows(self, rows: list[tuple[object, ...]], time_ms: int) -> None:
        """Add records of form "rows", each with a whole row."""
        self._rows += rows
        self.times_ms += [time_ms] * len(rows)
        if self._values:
            self._list_rows()

    def add(self, keys: Sequence[UserKey], values: Sequence[UserValue], time_ms: int) -> None:
        """Add records of any kind."""
        self._list_rows()
        self._keys += keys
        self._values += values
        self.times_ms += [time_ms] * len(keys)

    def _list_rows(self) -> None:
        """Turn rows into keys and values."""
        if self._rows:
            rows, self._rows = self.shape.named(self._rows), []
            self._keys += self.shape.keys(rows, "rows") or [None] * len(rows)
            self._values += rows

    def columns(self) -> tuple[Sequence[UserKey] | None, Sequence[UserValue]]:
        """Return the keys, None for no keys, and the values."""
        rows = self.shape.named(self._rows) if self.copied is None else self.copied
        return (self.shape.keys(rows, "rows"), rows) if rows else (self._keys, self._values)

    def records(self) -> Sequence[CdcRecord]:
        """Return the records, each with its schemas, for a Read of several tables."""
        shape, (keys, values) = self.shape, self.columns()
        return [
            SchemaRecord(
                key,
                value,
                moment(time_ms),
                (),
                shape.table.name,
                key_schema=None if key is None else shape.key_schema,
                value_schema=None if value is None else shape.schema,
            )
            for key, value, time_ms in zip(
                keys or [None] * len(values), values, self.times_ms, strict=True
            )
        ]


@dataclass(slots=True)
class ChangeStream:
    """The state of a stream between two Reads.

    Args:
        tables: the captured tables, by name.
        catalogue: the types that are not built in.
        form: what a record has: the row, or the change of it.
        on_truncate: what a TRUNCATE does.
        lsn: the end of the last transaction that was taken whole.
        skip: how many changes of the next one were taken.
        snapshot: the snapshot.
    """

    tables: Mapping[str, CapturedTable]
    catalogue: TypeCatalogue
    form: Form
    on_truncate: OnTruncate
    lsn: int
    skip: int
    snapshot: ChunkedSnapshot
    runs: list[TableRun] = field(default_factory=list)
    """What was taken since the last Read."""
    count: int = 0
    """The number of records in `runs`."""
    unfetched: list[Unfetched] = field(default_factory=list)
    size_bytes: int = 0
    """The bytes of the messages of `runs`."""
    truncated: int = 0
    unknown_types: int = 0
    shapes: dict[int, TableShape] = field(default_factory=dict)
    _begin: Begin | None = None
    _makers: dict[int, _Maker] = field(default_factory=dict)
    """What makes the records of the open transaction, by relation."""
    _index: int = 0
    _is_dropped: bool = False

    @property
    def is_between(self) -> bool:
        """Whether no transaction is open here."""
        return self._begin is None

    def offset(self) -> dict[str, Json]:
        """Return the offset behind everything taken so far."""
        # Text, as numbers above 2^53 do not survive every JSON.
        found: dict[str, Json] = {"lsn": lsn_text(self.lsn), "skip": self.skip}
        found["snapshot"] = {**self.snapshot.offset}
        return found

    def reached(self, lsn: int) -> None:
        """Note that everything that committed before a place was sent, as a keepalive says."""
        # In the middle of a transaction, or of one sent in part, its changes are still to come.
        if self.is_between and not self.skip:
            self.lsn = max(self.lsn, lsn)

    def take(self, frame: XLogData) -> Mark | None:
        """Take the next frame; return the mark of the snapshot that it is, if it is one.

        Raises:
            ConnectError: a table was truncated, or has lost its key.
            CorruptData: the message can't be decoded.
        """
        match decode_message(frame.message):
            case Begin() as begin:
                self._begin, self._index = begin, 0
                self._makers.clear()
                # Sent again, because the slot confirms later than the log commits.
                self._is_dropped = begin.final_lsn < self.lsn
                self.snapshot.began(begin.xid)
            case Commit(end_lsn=end):
                if not self._is_dropped:
                    self.lsn, self.skip = max(self.lsn, end), 0
                self._begin, self._is_dropped = None, False
            case LogicalMessage(is_transactional=False, content=content, prefix="streamlog"):
                return self.snapshot.marked(content)
            case Relation() as relation:
                self._describe(relation)
            case (Insert() | Update() | Delete() | TruncateTables()) as change:
                self._change(change, len(frame.message))
            case _:
                pass
        return None

    def take_rows(self, frames: list[bytes], start: int) -> int:
        """Take new and changed rows of one table, from a frame on, as `take` does one by one.

        Args:
            frames: frames of the stream.
            start: the first one to take.

        Returns:
            How many frames were taken; 0 if the first one has anything else.
        """
        # Between the marks of a chunk, the snapshot has to learn of each key.
        begin = self._begin
        if begin is None or self._is_dropped or self.snapshot.is_between:
            return 0
        shape = self.shapes.get(relation_of(frames[start]))
        if shape is None:
            return 0
        rows = shape.reader.rows(frames, start)
        # An earlier life has taken the first of them.
        known = min(max(self.skip - self._index, 0), len(rows))
        self._index += len(rows)
        if known < len(rows):
            self.skip = self._index
            end = start + len(rows)
            sizes = map(len, frames[start + known : end])
            self.size_bytes += sum(sizes) - XLOG_HEAD_BYTES * (len(rows) - known)
            new = rows[known:]
            if self.form == "rows":
                self._run_of(shape).add_rows(new, begin.commit_ms)
                self.count += len(new)
            else:
                named = shape.named(new)
                values = self._envelopes(shape, begin, frames[end - len(new) : end], named)
                self._add(shape, shape.keys(named, self.form), values, begin.commit_ms)
        return len(rows)

    def _envelopes(
        self, shape: TableShape, begin: Begin, frames: list[bytes], rows: NamedColumns
    ) -> Sequence[UserValue]:
        maker = _Maker(self, shape, begin)
        return [
            maker.value(None, row, "c" if is_insert(frame) else "u")
            for row, frame in zip(rows, frames, strict=True)
        ]

    def _add(
        self,
        shape: TableShape,
        keys: Sequence[UserKey] | None,
        values: Sequence[UserValue],
        time_ms: int,
    ) -> None:
        self._run_of(shape).add([None] * len(values) if keys is None else keys, values, time_ms)
        self.count += len(values)

    def _run_of(self, shape: TableShape) -> TableRun:
        """Return the run that the next records of a table belong to."""
        if not self.runs or self.runs[-1].shape is not shape:
            self.runs.append(TableRun(shape))
        return self.runs[-1]

    def _describe(self, relation: Relation) -> None:
        table = self.tables.get(f"{relation.namespace}.{relation.name}")
        self._makers.pop(relation.oid, None)
        # A publication may have tables that this source does not capture.
        if table is None:
            self.shapes.pop(relation.oid, None)
            return
        self.shapes[relation.oid] = TableShape.of(table, relation, self.catalogue, self.form)
        known = self.catalogue.knows
        self.unknown_types += sum(not known(each.type_oid) for each in relation.columns)

    def _change(self, change: Insert | Update | Delete | TruncateTables, size_bytes: int) -> None:
        """Take a change, unless an earlier life has; either way the snapshot learns of its key."""
        begin = self._begin
        if begin is None or self._is_dropped:
            return
        self._index += 1
        is_new = self._index > self.skip
        before = self.count
        if isinstance(change, TruncateTables):
            self._truncate(change, begin, is_new=is_new)
        elif (shape := self.shapes.get(change.relation)) is not None:
            # Also what an earlier life has taken is newer than a chunk that did not see it.
            maker = self._makers.get(change.relation)
            if maker is None:
                maker = self._makers[change.relation] = _Maker(self, shape, begin)
            self.snapshot.changed(shape.table.name, maker.raw_keys(change))
            if is_new:
                keys, values = zip(*maker.records(change), strict=True)
                self._add(shape, keys, values, begin.commit_ms)
        if is_new:
            self.skip = self._index
            self.size_bytes += size_bytes if self.count > before else 0

    def _truncate(self, change: TruncateTables, begin: Begin, *, is_new: bool) -> None:
        found = [self.shapes[each] for each in change.relations if each in self.shapes]
        for shape in found:
            self.snapshot.emptied(shape.table.name)
        if not is_new or not found:
            return
        self.truncated += len(found)
        if self.on_truncate == "fail":
            names = ", ".join(shape.table.name for shape in found)
            raise ConnectError(
                f"TRUNCATE of {names}: a topic can't be emptied with it; set on_truncate to "
                "'ignore' or, with form='changes', to 'event'"
            )
        if self.on_truncate == "event":
            for shape in found:
                event = _Maker(self, shape, begin).value(None, None, "t")
                self._add(shape, [None], [event], begin.commit_ms)

    def add_rows(self, relation: Relation, lines: bytes, now_ms: int) -> int:
        """Take rows of the snapshot at their high mark; return how many there are.

        Args:
            relation: the table as the rows have it.
            lines: rows as COPY writes them, as the snapshot has left them.
            now_ms: the time of their records.
        """
        table = self.tables[f"{relation.namespace}.{relation.name}"]
        # A shape of its own for each chunk, so that no other records join its run.
        shape = TableShape.of(table, relation, self.catalogue, self.form)
        rows = shape.copied(lines)
        count = len(rows)
        if not count:
            return 0
        if self.form == "rows":
            self.runs.append(TableRun(shape, array("q", [now_ms]) * count, rows))
            self.count += count
        else:
            maker = _Maker(self, shape, Begin(self.lsn, now_ms, 0))
            values = [maker.value(None, row, "r") for row in rows]
            self._add(shape, shape.keys(rows, self.form), values, now_ms)
        self.size_bytes += len(lines)
        return count

    def drain(self) -> tuple[Sequence[TableRun], Sequence[Unfetched], Mapping[str, Json]]:
        """Return the records of the next Read, what they lack, and the offset behind them."""
        found = (self.runs, self.unfetched, self.offset())
        self.runs, self.unfetched, self.count, self.size_bytes = [], [], 0, 0
        return found


@dataclass(slots=True)
class _Maker:
    """Makes the records of a change, each a key and a value."""

    stream: ChangeStream
    shape: TableShape
    begin: Begin

    def raw_keys(self, change: Insert | Update | Delete) -> Sequence[Key]:
        """Return the keys that a change touches, as text."""
        found: list[Key] = []
        if isinstance(change, Update | Delete) and change.old is not None:
            found.append(self.shape.raw_key(change.old))
        if isinstance(change, Insert | Update):
            found.append(self.shape.raw_key(change.new))
        return found

    def records(self, change: Insert | Update | Delete) -> Sequence[tuple[UserKey, UserValue]]:
        """Return the records of a change."""
        if isinstance(change, Insert):
            key = self.shape.key(change.new, self.stream.form)
            return [(key, self.value(None, self._row(change.new), "c"))]
        if isinstance(change, Delete):
            return self._deleted(change.old, is_full=change.is_full)
        return self._updated(change)

    def _updated(self, change: Update) -> Sequence[tuple[UserKey, UserValue]]:
        old = change.old
        new = change.new
        if old is not None and change.is_full:
            # With the whole old row sent, a value that was not sent is the old one.
            pairs = zip(new, old, strict=True)
            new = tuple(was if part is UNCHANGED else part for part, was in pairs)
        key = self.shape.key(new, self.stream.form)
        before = self.shape.row(old) if old is not None and change.is_full else None
        # A topic has no way to rename a key: the old one goes, the new one comes.
        if old is not None and self.shape.raw_key(old) != self.shape.raw_key(new):
            gone = self._deleted(old, is_full=change.is_full)
            return [*gone, (key, self.value(None, self._row(new), "c"))]
        return [(key, self.value(before, self._row(new), "u"))]

    def _row(self, columns: Columns) -> RowDict:
        """Return a row; what it lacks is noted, to be fetched by its key."""
        shape = self.shape
        row = shape.row(columns)
        if UNCHANGED in columns:
            pairs = zip(shape.names, columns, strict=True)
            missing = tuple(name for name, part in pairs if part is UNCHANGED)
            texts = dict(zip(shape.table.key, shape.raw_key(columns), strict=True))
            self.stream.unfetched.append(Unfetched(shape.table.name, texts, row, missing))
        return row

    def _deleted(self, old: Columns, *, is_full: bool) -> Sequence[tuple[UserKey, UserValue]]:
        key = self.shape.key(old, self.stream.form)
        if self.stream.form == "rows":
            return [(key, None)]
        before = self.shape.row(old)
        # The other columns of a key are null in the message, which they were not in the row.
        if not is_full:
            before = {name: before[name] for name in self.shape.table.key}
        return [(key, self.value(before, None, "d")), (key, None)]

    def value(self, before: RowDict | None, after: RowDict | None, op: Operation) -> UserValue:
        """Return a record's value: the row, or Debezium's envelope of the change."""
        if self.stream.form == "rows":
            return after
        schema, _, table = self.shape.table.name.partition(".")
        source = {
            "connector": "postgresql",
            "schema": schema,
            "table": table,
            "lsn": self.begin.final_lsn,
            "txId": self.begin.xid or None,
            "ts_ms": self.begin.commit_ms,
            "snapshot": "true" if op == "r" else "false",
        }
        ts_ms = self.begin.commit_ms
        return {"before": before, "after": after, "source": source, "op": op, "ts_ms": ts_ms}
