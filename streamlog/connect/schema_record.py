"""SchemaRecord: a record on its way through a connector, with the schemas of its key and value.

Converters of the service make them and take them; transforms change record and schema together. A
plain `Record` is one without schemas: its rows are dicts, as JSON has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from streamlog.connect.row_schema import Schema
from streamlog.record import Headers, Record
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class SchemaRecord(Record[K, V]):
    """One record with its schemas.

    Attributes:
        key_schema: the schema of the key; None: the key is what it is.
        value_schema: the schema of the value.
    """

    key_schema: Schema | None = None
    value_schema: Schema | None = None


def with_schemas(record: AnyRecord) -> SchemaRecord[object, object]:
    """Return a record as one with schemas; a plain one has none."""
    if isinstance(record, SchemaRecord):
        return record
    return SchemaRecord(
        key=record.key,
        value=record.value,
        timestamp=record.timestamp,
        headers=record.headers,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )


def with_read_schemas(
    record: AnyRecord, key_schema: Schema | None, value_schema: Schema | None
) -> AnyRecord:
    """Return a record of a source with the schemas of its Read, unless it brings its own."""
    if isinstance(record, SchemaRecord):
        return record
    # A tombstone has none: null with a schema is a value, which a compacted topic would keep.
    return replace(
        with_schemas(record),
        key_schema=None if record.key is None else key_schema,
        value_schema=None if record.value is None else value_schema,
    )


def with_topic(record: AnyRecord, topic: str) -> AnyRecord:
    """Return a record that belongs to another topic."""
    return replace(record, topic=topic)


def with_headers(record: AnyRecord, headers: Headers) -> AnyRecord:
    """Return a record with other headers."""
    return replace(record, headers=headers)
