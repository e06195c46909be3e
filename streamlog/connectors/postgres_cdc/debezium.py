"""Debezium: the settings of its PostgreSQL connector, as `PostgresCdc` with changes.

What Debezium writes is kept: the names of topics and schemas, and its types of times, decimals,
UUIDs and JSON. The offset that it has left is read once. Not done here: its own transforms
(`connect/transforms`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import msgspec

from streamlog.connect import Field, Json, Schema, Secret, SourceOffset, SourcePartition
from streamlog.connect.java_connectors import JavaConnector, LeftOffsets, refuse_unless
from streamlog.connect.schema_record import with_schemas
from streamlog.connectors.postgres_cdc import PostgresCdc
from streamlog.connectors.postgres_cdc.change_stream import OnTruncate
from streamlog.connectors.postgres_cdc.pgoutput import lsn_text
from streamlog.connectors.postgres_cdc.row_values import PRECISION
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord

Times: TypeAlias = Literal["adaptive", "adaptive_time_microseconds", "connect"]
Decimals: TypeAlias = Literal["precise", "double", "string"]
Change: TypeAlias = Callable[[object], object]
MILLIS: Final = 3
"""The digits of a millisecond."""
_PLAIN_NAME: Final = re.compile(r"[\w$]+\.[\w$]+")
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - of columns without a zone
_VARIABLE: Final = Schema(
    "struct",
    fields=(Field("scale", Schema("int32")), Field("value", Schema("bytes"))),
    name="io.debezium.data.VariableScaleDecimal",
    version=1,
)


class PostgresConnector(JavaConnector, frozen=True, kw_only=True):
    """`io.debezium.connector.postgresql.PostgresConnector`.

    Attributes:
        database_hostname: the host of the server.
        database_port: its port.
        database_user: a user with the attribute REPLICATION, who may read the tables.
        database_password: the user's password.
        database_dbname: the database.
        topic_prefix: what stands before schema and table in the names of topics.
        table_include_list: the tables, with their schemas; names, not regular expressions.
        plugin_name: only "pgoutput", which every server has.
        slot_name: the replication slot.
        slot_drop_on_stop: only false: a slot that is dropped loses changes.
        publication_name: the publication that has the tables.
        publication_autocreate_mode: "disabled" creates neither publication nor slot; otherwise
            a publication of the tables is created, never one of all tables.
        snapshot_mode: "initial" copies the tables first; "no_data" and "never" do not.
        tombstones_on_delete: only true: a compacted topic keeps deleted rows otherwise.
        skipped_operations: "t" leaves TRUNCATE out, "none" makes an event of it.
        time_precision_mode: the types of dates and times: "connect" has Kafka Connect's.
        decimal_handling_mode: "precise" has Connect's Decimal, or VariableScaleDecimal for a
            number without a scale; "double" and "string" have those.
        heartbeat_interval_ms: accepted; the slot advances by itself.
        max_batch_size: accepted.
        max_queue_size: accepted.
        poll_interval_ms: accepted; changes come as the server sends them.
        status_update_interval_ms: how often the server learns what the log has.
    """

    stands_for: ClassVar[type[PostgresCdc]] = PostgresCdc
    named_here: ClassVar[Mapping[str, str]] = {
        "tables": "table.include.list", "slot": "slot.name", "publication": "publication.name",
        "status_interval": "status.update.interval.ms",
    }  # fmt: skip

    database_hostname: str
    database_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 5432
    database_user: str
    database_password: Secret | None = None
    database_dbname: str
    topic_prefix: str
    table_include_list: tuple[str, ...]
    plugin_name: Literal["pgoutput"] = "pgoutput"
    slot_name: str = "debezium"
    slot_drop_on_stop: Literal["false"] = "false"
    publication_name: str = "dbz_publication"
    publication_autocreate_mode: Literal["all_tables", "filtered", "disabled"] = "all_tables"
    snapshot_mode: Literal["initial", "no_data", "never"] = "initial"
    tombstones_on_delete: Literal["true"] = "true"
    skipped_operations: Literal["t", "none"] = "t"
    time_precision_mode: Times = "adaptive"
    decimal_handling_mode: Decimals = "precise"
    heartbeat_interval_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_batch_size: Annotated[int, msgspec.Meta(ge=1)] = 2_048
    max_queue_size: Annotated[int, msgspec.Meta(ge=1)] = 8_192
    poll_interval_ms: Annotated[int, msgspec.Meta(ge=1)] = 500
    status_update_interval_ms: Annotated[int, msgspec.Meta(ge=1, le=30_000)] = 10_000

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the setting.
        """
        for name in ("database_hostname", "database_user", "database_dbname", "topic_prefix"):
            refuse_unless(bool(getattr(self, name)), name.replace("_", "."), "is empty: set it")
        for each in self.table_include_list:
            is_plain = _PLAIN_NAME.fullmatch(each.replace("\\.", ".")) is not None
            refuse_unless(is_plain, "table.include.list", f"{each!r} is no name of schema and "
                          "table: write public.orders, not a regular expression")  # fmt: skip
        super().check()

    def connector(self) -> PostgresCdc:
        """Return the source."""
        # Debezium leaves TRUNCATE out by default, where `PostgresCdc` would fail.
        on_truncate: OnTruncate = "ignore" if self.skipped_operations == "t" else "event"
        return PostgresCdc(
            url=f"postgresql://{self.database_hostname}:{self.database_port}/{self.database_dbname}",
            user=self.database_user,
            password=self.database_password,
            tables=tuple(each.replace("\\.", ".") for each in self.table_include_list),
            slot=self.slot_name,
            publication=self.publication_name,
            create_slot=self.publication_autocreate_mode != "disabled",
            snapshot="initial" if self.snapshot_mode == "initial" else "never",
            form="changes",
            on_truncate=on_truncate,
            status_interval=f"{self.status_update_interval_ms}ms",
        )

    def adapt(self, record: AnyRecord) -> AnyRecord:
        """Return a record with Debezium's names and types."""
        whole = with_schemas(record)
        key, value = whole.key, whole.value
        key_schema, value_schema = whole.key_schema, whole.value_schema
        # Keys have rows of their own: only values are envelopes.
        modes = self.time_precision_mode, self.decimal_handling_mode
        if key_schema is not None:
            key_schema, changes = debezium_row(key_schema, self.topic_prefix, *modes)
            key = _changed(key, changes)
        if value_schema is not None and isinstance(value, Mapping):
            value_schema, changes = debezium_envelope(value_schema, self.topic_prefix, *modes)
            here = {"name": self.topic_prefix, "db": self.database_dbname}
            value = {
                **value,
                "before": _changed(value["before"], changes),
                "after": _changed(value["after"], changes),
                "source": {**here, **dict(value["source"])},
            }
        topic = f"{self.topic_prefix}.{record.topic}"
        return replace(
            whole, key=key, value=value, key_schema=key_schema, value_schema=value_schema,
            topic=topic,
        )  # fmt: skip

    def left_offset(self, part: SourcePartition, left: LeftOffsets) -> SourceOffset | None:
        """Return the offset that Debezium has left, at the end of its last whole transaction."""
        del part
        for theirs, offset in left:
            if theirs.get("server") != self.topic_prefix:
                continue
            # 1. A transaction was sent in part. 2. Its events have `lsn`, the last whole one
            # `lsn_commit`. 3. From there on it comes whole: its first events twice, none lost.
            lsn = offset.get("lsn_commit") or offset.get("lsn_proc") or offset.get("lsn")
            is_copied = not offset.get("snapshot") or offset.get("snapshot_completed") is True
            # A snapshot that was interrupted begins anew, as it does in Debezium.
            if not isinstance(lsn, int) or not is_copied:
                return None
            tables: list[Json] = [each.replace("\\.", ".") for each in self.table_include_list]
            return {
                "lsn": lsn_text(lsn), "skip": 0, "snapshot": {"done": tables, "after": None},
            }  # fmt: skip
        return None


def _changed(row: object, changes: Mapping[str, Change]) -> object:
    if not isinstance(row, Mapping):
        return row
    return {
        name: changes[name](part) if part is not None and name in changes else part
        for name, part in row.items()
    }


@lru_cache(maxsize=1_000)
def debezium_envelope(
    envelope: Schema, prefix: str, times: Times, decimals: Decimals
) -> tuple[Schema, Mapping[str, Change]]:
    """Return the schema of a change with Debezium's types, and what changes its rows."""
    changes: Mapping[str, Change] = {}
    fields = []
    for each in envelope.fields:
        schema = each.schema
        if each.name in ("before", "after"):
            schema, changes = debezium_row(schema, prefix, times, decimals)
        elif each.name == "source":
            named = (Field("name", Schema("string")), Field("db", Schema("string")))
            schema = replace(schema, fields=(*named, *schema.fields))
        fields.append(replace(each, schema=schema))
    name = f"{prefix}.{envelope.name}"
    return replace(envelope, fields=tuple(fields), name=name), changes


@lru_cache(maxsize=1_000)
def debezium_row(
    row: Schema, prefix: str, times: Times, decimals: Decimals
) -> tuple[Schema, Mapping[str, Change]]:
    """Return the schema of a row or key with Debezium's types, and what changes its values."""
    fields, changes = [], dict[str, Change]()
    for each in row.fields:
        schema, change = _type_of(each.schema, times, decimals)
        fields.append(replace(each, schema=schema))
        if change is not None:
            changes[each.name] = change
    return replace(row, fields=tuple(fields), name=f"{prefix}.{row.name}"), changes


def _type_of(schema: Schema, times: Times, decimals: Decimals) -> tuple[Schema, Change | None]:
    plain = replace(schema, logical=None, parameters=())

    def named(kind: str, name: str) -> Schema:
        return replace(plain, kind=kind, name=name, version=1)  # type: ignore[arg-type]

    found: tuple[Schema, Change | None] = (schema, None)
    match schema.logical:
        case "Decimal":
            found = _decimal_type(schema, plain, decimals)
        case "Timestamp":
            found = named("string", "io.debezium.time.ZonedTimestamp"), _zoned
        case "LocalTimestamp" if times == "connect":
            found = replace(schema, logical="Timestamp", parameters=()), _in_utc
        case "Date" | "Time" if times == "connect":
            found = replace(schema, parameters=()), None
        case "LocalTimestamp" | "Date" | "Time":
            kind, name, change = _time_type(schema, times)
            found = named(kind, f"io.debezium.time.{name}"), change
        case "uuid":
            found = named("string", "io.debezium.data.Uuid"), str
        case "json":
            found = named("string", "io.debezium.data.Json"), _json_text
    return found


def _time_type(schema: Schema, times: Times) -> tuple[str, str, Change]:
    """Return kind, name and change of a time without a zone."""
    digits = schema.parameter(PRECISION)
    # TIMESTAMP(3) has milliseconds, and one without a limit microseconds.
    has_millis = digits is not None and int(digits) <= MILLIS
    if schema.logical == "Date":
        return "int32", "Date", _days
    if schema.logical == "LocalTimestamp":
        return (
            ("int64", "Timestamp", _millis) if has_millis else ("int64", "MicroTimestamp", _micros)
        )
    if has_millis and times == "adaptive":
        return "int32", "Time", _millis_of_day
    return "int64", "MicroTime", _micros_of_day


def _decimal_type(
    schema: Schema, plain: Schema, decimals: Decimals
) -> tuple[Schema, Change | None]:
    if decimals == "double":
        return replace(plain, kind="float64"), _double
    if decimals == "string":
        return replace(plain, kind="string"), str
    if schema.parameter("scale") is not None:
        return schema, None
    return replace(_VARIABLE, optional=schema.optional), _variable


def _variable(value: object) -> object:
    if not isinstance(value, Decimal) or not value.is_finite():
        return value
    # A number of an exponent above 0, such as 1E+3, has no digits behind the point.
    scale = max(-int(value.as_tuple().exponent), 0)
    number = int(value.scaleb(scale))
    bits = (number if number >= 0 else ~number).bit_length() + 1
    return {"scale": scale, "value": number.to_bytes((bits + 7) // 8, "big", signed=True)}


def _double(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else value


def _in_utc(value: object) -> object:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def _zoned(value: object) -> object:
    if not isinstance(value, datetime):
        return value
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _micros(value: object) -> object:
    if not isinstance(value, datetime):
        return value
    passed = value - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def _millis(value: object) -> object:
    found = _micros(value)
    return found // 1_000 if isinstance(found, int) else found


def _millis_of_day(value: object) -> object:
    found = _micros_of_day(value)
    return found // 1_000 if isinstance(found, int) else found


def _micros_of_day(value: object) -> object:
    if not isinstance(value, time):
        return value
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def _days(value: object) -> object:
    return (value - _EPOCH.date()).days if isinstance(value, date) else value


def _json_text(value: object) -> object:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
