"""Schema headers: records whose headers name the schemas of their keys and values.

Inside streamlog, a key or value begins with the id of its schema (`serdes.registered.framing`). So
the headers of other programs are taken off where a record enters a task, an agent or a global
table, and are put back where it leaves for a topic that declares them.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import Headers
from streamlog.records.log_record import LogRecord
from streamlog.records.record_columns import RecordColumns
from streamlog.serdes.erased_types import AnySerde
from streamlog.serdes.registered.framing import (
    SCHEMA_HEADERS,
    absorb_header,
    is_registered,
    split_header,
    writes_headers,
)

Column = Sequence[bytes | None]


def absorb_headers(key: AnySerde, value: AnySerde, records: RecordColumns) -> RecordColumns:
    """Return records whose keys and values begin with what headers say about their schemas.

    Records of topics without a registry are returned as they are.

    Args:
        key: the serde of the keys.
        value: the serde of the values.
        records: the records.
    """
    if records.headers is None or not (is_registered(key) or is_registered(value)):
        return records
    if not any(name in SCHEMA_HEADERS for headers in records.headers for name, _ in headers):
        return records
    found: RecordColumns = records[:]
    all_headers = [*records.headers]
    found.headers = all_headers
    for at, headers in enumerate(records.headers):
        raw_key, raw_value, left = absorb_header(
            key, value, (records.keys[at], records.values[at], headers)
        )
        found.keys[at], found.values[at], all_headers[at] = raw_key, raw_value, left
    return found


def absorb_record(topic: TopicSpec, record: LogRecord) -> LogRecord:
    """Return one record as `absorb_headers` does."""
    if not record.headers or not (is_registered(topic.key) or is_registered(topic.value)):
        return record
    found = absorb_header(topic.key, topic.value, (record.key, record.value, record.headers))
    return LogRecord(record.offset, record.timestamp_ms, *found)


def split_headers(
    topic: TopicSpec, keys: Column, values: Column, headers: Sequence[Headers] | None
) -> tuple[Column, Column, Sequence[Headers] | None]:
    """Return records as they are written to a topic: with ids in headers, if it declares that."""
    if not (writes_headers(topic.key) or writes_headers(topic.value)):
        return keys, values, headers
    given = [()] * len(keys) if headers is None else headers
    rows = [
        split_header(topic.key, topic.value, row) for row in zip(keys, values, given, strict=True)
    ]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
