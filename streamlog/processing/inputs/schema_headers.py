"""Schema headers: records whose headers name the schemas of their keys and values.

Inside streamlog, a key or value begins with the id of its schema (`serdes.registered.framing`). So
the headers of other programs are taken off where a record enters a task, an agent or a global
table.
"""

from __future__ import annotations

from streamlog.records.record_columns import RecordColumns
from streamlog.serdes.erased_types import AnySerde
from streamlog.serdes.registered.framing import SCHEMA_HEADERS, absorb_header, is_registered


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
