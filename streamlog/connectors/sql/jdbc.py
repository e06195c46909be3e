"""JDBC: the settings of Confluent's JDBC connectors, as `SqlSource` and `SqlSink`.

What the Java classes write is kept: records of a source have no key, a topic is the prefix and the
table, timestamps are Connect's Timestamp, and `numeric.mapping` makes numbers of decimals. Offsets
that the source has left are read once, whichever protocol wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import msgspec

from streamlog.connect import Flush, Json, Schema, Secret, SourceOffset, SourcePartition
from streamlog.connect.java_connectors import JavaConnector, LeftOffsets, last_name, refuse_unless
from streamlog.connect.schema_record import SchemaRecord, with_schemas
from streamlog.connect.transforms import ReplaceField
from streamlog.connectors.sql import QUERY_PART, SqlSink, SqlSource
from streamlog.connectors.sql.polling import Mode
from streamlog.connectors.sql.row_changes import PkMode
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord

NumericMapping: TypeAlias = Literal["none", "precision_only", "best_fit", "best_fit_eager_double"]
Change: TypeAlias = Callable[[object], object]
_WHOLE: Final = ((2, "int8"), (4, "int16"), (9, "int32"), (18, "int64"))
"""The digits that each kind holds."""
_DOUBLE_DIGITS: Final = 18


class JdbcConnector(JavaConnector, frozen=True, kw_only=True):
    """What Confluent's two JDBC connectors have in common: how a database is named and read.

    Attributes:
        connection_url: the database, as a JDBC URL.
        connection_user: the user of the database.
        connection_password: its password.
        connection_attempts: accepted; a broken connection is tried again without end.
        connection_backoff_ms: accepted; the pauses grow by themselves.
        dialect_name: accepted; the URL names the database.
        table_types: only "TABLE".
        quote_sql_identifiers: accepted; names are always quoted.
        db_timezone: only "UTC".
    """

    connection_url: str
    connection_user: str | None = None
    connection_password: Secret | None = None
    connection_attempts: Annotated[int, msgspec.Meta(ge=1)] = 3
    connection_backoff_ms: Annotated[int, msgspec.Meta(ge=0)] = 10_000
    dialect_name: str = ""
    table_types: tuple[Literal["TABLE"], ...] = ("TABLE",)
    quote_sql_identifiers: Literal["always", "never", "ALWAYS", "NEVER"] = "always"
    db_timezone: Literal["UTC"] = "UTC"


class JdbcSourceConnector(JdbcConnector, frozen=True, kw_only=True):
    """`io.confluent.connect.jdbc.JdbcSourceConnector`.

    Attributes:
        catalog_pattern: accepted; the URL names the database.
        schema_pattern: the database's schema that has the tables.
        mode: how new rows are found.
        incrementing_column_name: the column that rises with new rows.
        timestamp_column_name: the column with the time of the last change.
        timestamp_delay_interval_ms: how old a time has to be before it is read.
        timestamp_initial: only without a value, which reads all rows.
        validate_non_null: accepted; a column that a mode follows must not be null.
        table_whitelist: the tables to read.
        table_include_list: the tables to read, by its newer name.
        query: a SELECT to read instead of tables.
        query_suffix: refused unless empty: pages have a LIMIT of their own.
        topic_prefix: what stands before the table in the name of a topic; the topic of a query.
        poll_interval_ms: how long to wait after a poll that found nothing more.
        batch_max_rows: how many rows a page has at most.
        table_poll_interval_ms: accepted; the tables are those that are named.
        numeric_mapping: "best_fit" makes integers and doubles of decimals of up to 18 digits,
            "best_fit_eager_double" doubles of all that have a fraction, "precision_only" integers.
        transaction_isolation_mode: accepted; a page is one statement.
    """

    stands_for: ClassVar[type[SqlSource]] = SqlSource
    named_here: ClassVar[Mapping[str, str]] = {
        "url": "connection.url", "tables": "table.whitelist", "schema": "schema.pattern",
        "poll": "poll.interval.ms", "batch_rows": "batch.max.rows",
        "settle": "timestamp.delay.interval.ms",
    }  # fmt: skip

    catalog_pattern: str | None = None
    schema_pattern: str | None = None
    mode: Mode
    incrementing_column_name: str = ""
    timestamp_column_name: tuple[str, ...] = ()
    timestamp_delay_interval_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    timestamp_initial: str | None = None
    validate_non_null: bool = True
    table_whitelist: tuple[str, ...] = ()
    table_include_list: tuple[str, ...] = ()
    query: str = ""
    query_suffix: str = ""
    topic_prefix: str = ""
    poll_interval_ms: Annotated[int, msgspec.Meta(ge=1)] = 5_000
    batch_max_rows: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 100
    table_poll_interval_ms: Annotated[int, msgspec.Meta(ge=0)] = 60_000
    numeric_mapping: NumericMapping = "none"
    transaction_isolation_mode: str = "DEFAULT"

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the setting.
        """
        is_named = bool(self.table_whitelist or self.table_include_list)
        refuse_unless(
            is_named is not bool(self.query), "table.whitelist", "name the tables, or set query"
        )
        one = len(self.timestamp_column_name) <= 1
        refuse_unless(one, "timestamp.column.name", "name one column: a COALESCE of several has no "
                      "index, so select it in query")  # fmt: skip
        for setting, name, is_set in (
            ("incrementing.column.name", "incrementing", bool(self.incrementing_column_name)),
            ("timestamp.column.name", "timestamp", bool(self.timestamp_column_name)),
        ):
            is_right = (name in self.mode) is is_set
            why = f"mode={self.mode} {'needs it' if name in self.mode else 'does not use it'}"
            refuse_unless(is_right, setting, why)
        refuse_unless(not self.query_suffix, "query.suffix", "is not supported: put it into query")
        refuse_unless(
            not self.timestamp_initial, "timestamp.initial", "set the connector's offset instead"
        )
        super().check()

    def connector(self) -> SqlSource:
        """Return the source."""
        tables = self.table_whitelist or self.table_include_list
        schemas = [each.rpartition(".")[0].strip('"`') for each in tables if "." in each]
        return SqlSource(
            url=self.connection_url,
            user=self.connection_user,
            password=self.connection_password,
            tables=tuple(map(last_name, tables)),
            query=self.query or None,
            schema=self.schema_pattern or next(iter(schemas), None),
            mode=self.mode,
            incrementing_column=self.incrementing_column_name,
            timestamp_column=next(iter(self.timestamp_column_name), ""),
            poll=f"{self.poll_interval_ms}ms",
            settle=f"{self.timestamp_delay_interval_ms}ms",
            batch_rows=self.batch_max_rows,
        )

    def adapt(self, record: AnyRecord) -> AnyRecord:
        """Return a record as the Java class writes it: without a key, with numbers of its types."""
        whole: SchemaRecord[object, object] = replace(
            with_schemas(record), key=None, key_schema=None,
            topic=f"{self.topic_prefix}{record.topic}",
        )  # fmt: skip
        # The rows of a query on some databases have no schema; they stay as they are.
        row, before = whole.value, whole.value_schema
        if not isinstance(row, Mapping) or before is None:
            return whole
        schema, changes = jdbc_schema(before, self.numeric_mapping)
        changed = {
            name: changes[name](part) if part is not None and name in changes else part
            for name, part in row.items()
        }
        return replace(whole, value=changed, value_schema=schema)

    def left_offset(self, part: SourcePartition, left: LeftOffsets) -> SourceOffset | None:
        """Return the offset of a table or query that the Java class has read."""
        table = str(part.get("table", ""))
        for theirs, offset in left:
            named = theirs.get("table")
            is_table = isinstance(named, str) and last_name(named) == table
            if is_table or (QUERY_PART in theirs and QUERY_PART in part):
                return _offset_of(offset)
        return None


def _offset_of(left: SourceOffset) -> SourceOffset | None:
    found: dict[str, Json] = {}
    if isinstance(ms := left.get("timestamp"), int):
        nanos = left.get("timestamp_nanos")
        micros = nanos // 1_000 if isinstance(nanos, int) else ms % 1_000 * 1_000
        moment = datetime.fromtimestamp(ms // 1_000, UTC).replace(microsecond=micros)
        # Without a zone, as a column without one is compared.
        found["timestamp"] = moment.replace(tzinfo=None).isoformat()
    if isinstance(number := left.get("incrementing"), int):
        found["incrementing"] = number
    return found or None


@lru_cache(maxsize=1_000)
def jdbc_schema(row: Schema, mapping: NumericMapping) -> tuple[Schema, Mapping[str, Change]]:
    """Return the schema that the Java class gives rows, and what changes the values of columns."""
    fields, changes = [], dict[str, Change]()
    for each in row.fields:
        schema = each.schema
        change: Change | None = None
        # JDBC reads a time without a zone as one of the connector's zone, which is UTC.
        if schema.logical == "LocalTimestamp":
            schema = replace(schema, logical="Timestamp")
            change = _in_utc
        elif schema.logical == "Decimal" and schema.kind == "bytes":
            schema, change = _number(schema, mapping)
        fields.append(replace(each, schema=schema))
        if change is not None:
            changes[each.name] = change
    return replace(row, fields=tuple(fields)), changes


def _number(schema: Schema, mapping: NumericMapping) -> tuple[Schema, Change | None]:
    scale = int(schema.parameter("scale") or 0)
    digits = int(schema.parameter("connect.decimal.precision") or 0)
    plain = replace(schema, logical=None, parameters=())
    if mapping == "none":
        return schema, None
    if scale == 0:
        kind = next((kind for most, kind in _WHOLE if digits <= most), None)
        return (schema, None) if kind is None else (_of_kind(plain, kind), _whole)
    is_double = mapping == "best_fit_eager_double" or (
        mapping == "best_fit" and digits <= _DOUBLE_DIGITS
    )
    return (_of_kind(plain, "float64"), _double) if is_double else (schema, None)


def _of_kind(schema: Schema, kind: str) -> Schema:
    return replace(schema, kind=kind)  # type: ignore[arg-type]


def _whole(value: object) -> object:
    return int(value) if isinstance(value, Decimal) else value


def _double(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else value


def _in_utc(value: object) -> object:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


class JdbcSinkConnector(JdbcConnector, frozen=True, kw_only=True):
    """`io.confluent.connect.jdbc.JdbcSinkConnector`.

    Attributes:
        insert_mode: "insert" adds a row for each record; "upsert" replaces the row of its key.
        batch_size: how many records a transaction has at most.
        delete_enabled: whether a record without a value deletes the row of its key.
        table_name_format: the table's name; `${topic}` stands for the topic.
        pk_mode: where the key of a row comes from.
        pk_fields: the columns of the key.
        fields_whitelist: the fields of the value to write; all by default.
        auto_create: whether a table that is missing is created.
        auto_evolve: whether columns that are missing are added.
        max_retries: accepted; a broken connection is tried again without end.
        retry_backoff_ms: accepted; the pauses grow by themselves.
    """

    stands_for: ClassVar[type[SqlSink]] = SqlSink
    named_here: ClassVar[Mapping[str, str]] = {
        "url": "connection.url",
        "table": "table.name.format",
        "flush.records": "batch.size",
    }

    insert_mode: Literal["insert", "upsert"] = "insert"
    batch_size: Annotated[int, msgspec.Meta(ge=1)] = 3_000
    delete_enabled: bool = False
    table_name_format: str = "${topic}"
    pk_mode: PkMode = "none"
    pk_fields: tuple[str, ...] = ()
    fields_whitelist: tuple[str, ...] = ()
    auto_create: bool = False
    auto_evolve: bool = False
    max_retries: Annotated[int, msgspec.Meta(ge=0)] = 10
    retry_backoff_ms: Annotated[int, msgspec.Meta(ge=0)] = 3_000

    def connector(self) -> SqlSink:
        """Return the sink."""
        # "public.copy_${topic}" names a schema of the database as well.
        schema, _, table = self.table_name_format.rpartition(".")
        return SqlSink(
            url=self.connection_url,
            user=self.connection_user,
            password=self.connection_password,
            table=table.replace("${topic}", "{topic}"),
            schema=schema or None,
            insert_mode=self.insert_mode,
            pk_mode=self.pk_mode,
            pk_fields=self.pk_fields,
            delete_enabled=self.delete_enabled,
            auto_create=self.auto_create,
            auto_evolve=self.auto_evolve,
            flush=Flush(records=self.batch_size),
        )

    def adapt(self, record: AnyRecord) -> AnyRecord:
        """Return a record with the fields that are to be written."""
        if not self.fields_whitelist or record.value is None:
            return record
        return ReplaceField(include=self.fields_whitelist)(record) or record
