"""Records with schemas: what a plain record has, and what a source's Read adds."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime

import pytest

from streamlog.connect.row_schema import Schema
from streamlog.connect.schema_record import (
    SchemaRecord,
    with_headers,
    with_read_schemas,
    with_schemas,
    with_topic,
)
from streamlog.record import Record
from streamlog.replace import replace

PLAIN = Record("k", {"a": 1}, datetime(2026, 1, 2, tzinfo=UTC), (("h", b"x"),), "rows", 3, 7)
KEY, VALUE = Schema("string"), Schema("struct", name="shop.Row")


def parts(record: object) -> dict[str, object]:
    return {each.name: getattr(record, each.name) for each in fields(Record)}


def test_a_plain_record_has_no_schemas_and_keeps_its_parts() -> None:
    found = with_schemas(PLAIN)
    assert parts(found) == parts(PLAIN)
    assert found.key_schema is found.value_schema is None
    assert with_schemas(found) is found


def test_a_read_gives_its_schemas_to_records_that_bring_none() -> None:
    found = with_read_schemas(PLAIN, KEY, VALUE)
    assert isinstance(found, SchemaRecord)
    assert (found.key_schema, found.value_schema) == (KEY, VALUE)
    assert parts(found) == parts(PLAIN)
    own = replace(found, value_schema=Schema("bytes"))
    assert with_read_schemas(own, KEY, VALUE) is own


@pytest.mark.parametrize("side", ["key", "value"])
def test_a_null_of_a_source_is_a_tombstone_without_a_schema(side: str) -> None:
    found = with_read_schemas(replace(PLAIN, **{side: None}), KEY, VALUE)
    assert isinstance(found, SchemaRecord)
    want = {"key": KEY, "value": VALUE, side: None}
    assert (found.key_schema, found.value_schema) == (want["key"], want["value"])


def test_a_record_may_get_another_topic_or_other_headers() -> None:
    assert parts(with_topic(PLAIN, "b")) == {**parts(PLAIN), "topic": "b"}
    assert parts(with_headers(PLAIN, ())) == {**parts(PLAIN), "headers": ()}
