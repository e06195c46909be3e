"""ExtractNewRecordState in code: its settings, and changes that Debezium's own class can't show.

`test_apache_cases.py` has the answers of Debezium's class.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from streamlog.connect.row_schema import Field, Schema
from streamlog.connect.schema_record import SchemaRecord
from streamlog.connect.transforms import ExtractNewRecordState
from streamlog.connect.transforms.new_record_state import FieldReference
from streamlog.errors import ConfigError

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TEXT, NUMBER = Schema("string", optional=True), Schema("int64", optional=True)
ROW = Schema("struct", optional=True, name="s.t.Value", fields=(
    Field("id", Schema("int64")), Field("to", TEXT),
))  # fmt: skip
ENVELOPE = Schema("struct", name="s.t.Envelope", fields=(
    Field("before", ROW), Field("after", ROW), Field("op", Schema("string")),
    Field("source", Schema("struct", fields=(Field("lsn", NUMBER), Field("table", TEXT)))),
    Field("transaction", Schema("struct", optional=True, fields=(Field("id", TEXT),))),
))  # fmt: skip
OLD, NEW = {"id": 1, "to": "old"}, {"id": 1, "to": "new"}
SOURCE = {"lsn": 7, "table": "t"}


def change(op: str, **more: object) -> SchemaRecord[Any, Any]:
    before = None if op == "c" else OLD
    after = None if op == "d" else NEW
    value = {"before": before, "after": after, "op": op, "source": SOURCE, "transaction": None}
    return SchemaRecord(
        "k", {**value, **more}, NOW, (("h", b"x"),), "topic", 0, 1, value_schema=ENVELOPE
    )


TOMBSTONE: SchemaRecord[Any, Any] = SchemaRecord("k", None, NOW, (("h", b"x"),), "topic", 0, 2)
DROPPED = "dropped"


def outcome(transform: ExtractNewRecordState, record: SchemaRecord[Any, Any]) -> object:
    made: Any = transform(record)
    return DROPPED if made is None else made.value


GONE = {**OLD, "__deleted": "true"}


@pytest.mark.parametrize(
    ("settings", "of_deletion", "of_tombstone"),
    [
        ({}, DROPPED, DROPPED),
        ({"drop_tombstones": False}, DROPPED, None),
        ({"delete_handling_mode": "none"}, None, DROPPED),
        ({"delete_handling_mode": "none", "drop_tombstones": False}, None, None),
        ({"delete_handling_mode": "rewrite"}, GONE, DROPPED),
        ({"delete_tombstone_handling_mode": "drop", "drop_tombstones": False}, DROPPED, DROPPED),
        ({"delete_tombstone_handling_mode": "tombstone"}, None, DROPPED),
        ({"delete_tombstone_handling_mode": "rewrite"}, GONE, DROPPED),
        ({"delete_tombstone_handling_mode": "rewrite-with-tombstone"}, GONE, None),
    ],
)
def test_the_settings_say_what_becomes_of_a_deletion_and_its_tombstone(
    settings: dict[str, Any], of_deletion: object, of_tombstone: object
) -> None:
    transform = ExtractNewRecordState(**settings)
    assert outcome(transform, change("d")) == of_deletion
    assert outcome(transform, TOMBSTONE) == of_tombstone
    is_rewritten = isinstance(of_deletion, dict)
    for op in "cru":
        expected = {**NEW, "__deleted": "false"} if is_rewritten else NEW
        assert outcome(transform, change(op)) == expected


def test_fields_of_the_envelope_go_into_the_row_and_into_headers() -> None:
    transform = ExtractNewRecordState(
        add_fields=("op", "lsn", "source.table", "table:origin", "nothing"),
        add_headers=("op", "transaction.id", "nothing"),
        add_headers_prefix="x_",
    )
    made: Any = transform(change("u"))
    assert made.value == {
        **NEW, "__op": "u", "__lsn": 7, "__source_table": "t", "__origin": "t",
    }  # fmt: skip
    assert made.headers == (("h", b"x"), ("x_op", b"u"), ("x_transaction_id", None))
    added = {each.name: each.schema for each in made.value_schema.fields[2:]}
    assert added == {"__op": TEXT, "__lsn": NUMBER, "__source_table": TEXT, "__origin": TEXT}
    assert not made.value_schema.optional
    with_id: Any = transform(change("u", transaction={"id": "5"}))
    assert with_id.headers[2] == ("x_transaction_id", b"5")
    # Of a tombstone, the operation alone is known.
    kept = ExtractNewRecordState(drop_tombstones=False, add_headers=("op", "lsn"))
    tombstone: Any = kept(TOMBSTONE)
    assert tombstone.headers == (("h", b"x"), ("__op", b"d"))


def test_a_field_of_the_row_may_name_the_topic() -> None:
    route = ExtractNewRecordState(route_by_field="to", delete_handling_mode="rewrite")
    for op, topic in (("c", "new"), ("u", "new"), ("d", "old")):
        made: Any = route(change(op))
        assert made.topic == topic
    for record in (change("u", after={"id": 1, "to": None}), change("d", before=None)):
        kept: Any = route(record)
        assert kept.topic == "topic"
    by_number: Any = ExtractNewRecordState(route_by_field="id")(change("c"))
    assert by_number.topic == "1"


def test_what_is_no_change_stays_as_it_is() -> None:
    other = Schema("struct", name="s.t.Other", fields=ENVELOPE.fields)
    partial = Schema("struct", name="s.t.Envelope", fields=ENVELOPE.fields[:1])
    for schema in (None, other, partial, Schema("string")):
        record: Any = SchemaRecord("k", {"after": NEW}, NOW, value_schema=schema)
        assert ExtractNewRecordState()(record) is record


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            ExtractNewRecordState(add_fields=("op", "a b")),
            "^'a b' is no field: write op, source.lsn",
        ),
        (ExtractNewRecordState(add_headers=("a.b.c",)), r"^'a\.b\.c' is no field"),
        (ExtractNewRecordState(add_headers=("",)), "^'' is no field"),
        (ExtractNewRecordState(drop_fields_header_name="x"), r"^drop\.fields\.header\.name is not"),
        (ExtractNewRecordState(drop_fields_from_key=True), r"^drop\.fields\.from\.key is not"),
    ],
)
def test_settings_that_are_not_supported_are_refused(
    transform: ExtractNewRecordState, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        transform.check()


def test_settings_without_a_fault_are_accepted() -> None:
    fields = ("op", "source.lsn:at")
    accepted = ExtractNewRecordState(
        add_fields=fields, add_headers=fields, drop_fields_keep_schema_compatible=False
    )
    accepted.check()


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("op", (None, "op", "p_op")),
        ("ts_us", (None, "ts_us", "p_ts_us")),
        ("lsn", ("source", "lsn", "p_lsn")),
        ("total_order", ("transaction", "total_order", "p_total_order")),
        ("source.lsn", ("source", "lsn", "p_source_lsn")),
        ("after.id:x", ("after", "id", "p_x")),
        ("op:x", (None, "op", "p_x")),
    ],
)
def test_a_reference_names_a_field_of_the_envelope_or_of_a_struct_in_it(
    text: str, reference: tuple[str | None, str, str]
) -> None:
    assert FieldReference.parse(text, "p_") == FieldReference(*reference)
