"""Runs of changes leave the table that one statement for each record would have left."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import BadRecords, Field, Schema
from streamlog.connectors.sql.row_changes import RowShape, plan_runs
from streamlog.record import Record

NOW = datetime(2026, 1, 2, tzinfo=UTC)
UPSERT = RowShape("record_key", ("id",), deletes=True, upserts=True)

values = st.none() | st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), min_size=1)


def record(key: object, value: object, offset: int = 0) -> Record[object, object]:
    return Record(key, value, NOW, topic="t", partition=3, offset=offset)


@given(st.lists(st.tuples(st.integers(0, 3), values)))
def test_runs_leave_what_single_records_leave(changes: list[tuple[int, dict | None]]) -> None:
    alone: dict[int, dict] = {}
    for key, value in changes:
        if value is None:
            alone.pop(key, None)
        else:
            alone[key] = {**alone.get(key, {}), **value}
    table: dict[object, dict] = {}
    for run in plan_runs([record(*each) for each in changes], UPSERT):
        keys = [dict(zip(run.columns, row, strict=True))["id"] for row in run.rows]
        assert len({*keys}) == len(keys)
        for row in run.rows:
            columns = dict(zip(run.columns, row, strict=True))
            key = columns.pop("id")
            if run.is_deletion:
                table.pop(key, None)
            else:
                table[key] = {**table.get(key, {}), **columns}
    assert table == alone


@given(st.lists(st.integers(0, 3)))
def test_inserts_keep_every_record(keys: list[int]) -> None:
    shape = RowShape("record_value", ("id",))
    runs = plan_runs([record(None, {"id": each}) for each in keys], shape)
    assert [row for run in runs for row in run.rows] == [(each,) for each in keys]


def test_a_value_without_fields_has_three_columns() -> None:
    (run,) = plan_runs([record("k", b"v")], RowShape("none"))
    assert run.columns == ("_key", "value", "_timestamp")
    assert run.rows == [("k", b"v", NOW)]


def test_coordinates_are_a_key() -> None:
    (run,) = plan_runs([record("k", {"a": 1}, offset=7)], RowShape("kafka"))
    assert run.keys == ("__connect_topic", "__connect_partition", "__connect_offset")
    assert run.rows == [("t", 3, 7, 1)]


def test_bad_records_are_named_by_their_index() -> None:
    bad = [record(1, {"a": 1}), record(1, None), record(None, {"a": 1}), record({"id": None}, {})]
    with pytest.raises(BadRecords) as caught:
        plan_runs(bad, RowShape("record_key", ("id",), upserts=True))
    assert caught.value.why == {
        1: "it has no value: set delete_enabled to delete the row of its key",
        2: "it has no key to take a key from",
        3: "its key has no id",
    }


def test_a_key_that_can_not_be_compared_is_bad() -> None:
    with pytest.raises(BadRecords, match="holds a list or a map"):
        plan_runs([record({"id": [1]}, {"a": 1})], UPSERT)


def test_columns_of_a_new_table_begin_with_the_key() -> None:
    value = Schema("struct", fields=(Field("a", Schema("string")), Field("id", Schema("int64"))))
    names = [each.name for each in UPSERT.columns(Schema("int32"), value)]
    assert names == ["id", "a"]
    assert [each.name for each in RowShape("none").columns(Schema("string"), Schema("bytes"))] == [
        "_key",
        "value",
        "_timestamp",
    ]
