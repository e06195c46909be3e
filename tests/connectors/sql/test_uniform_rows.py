"""Rows that are taken out of a batch at once are those that its records give one by one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from streamlog.connect import BadRecords, Batch
from streamlog.connectors.sql.row_changes import PkMode, RowShape, plan_runs, plan_uniform
from streamlog.record import Record, TopicPartition

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Sale(msgspec.Struct):
    id: int | None
    name: str | None


@dataclass(frozen=True)
class Id:
    id: int
    part: str


class Named(msgspec.Struct):
    name: str | None


ids = st.none() | st.integers(0, 3)
names = st.none() | st.text("ab", max_size=2)
plain = st.fixed_dictionaries({"id": ids}, optional={"name": names, "value": ids})
timed = st.fixed_dictionaries({"value": ids, "_timestamp": ids})
values = st.one_of(
    st.lists(st.builds(Sale, ids, names), max_size=6),
    st.lists(st.builds(Named, names), max_size=6),
    st.lists(plain | timed, max_size=6),
    st.lists(st.one_of(st.none(), st.integers(), plain, st.builds(Sale, ids, names)), max_size=6),
)
keys = st.one_of(
    ids,
    names,
    st.builds(Id, st.integers(0, 2), st.text("ab", max_size=1)),
    st.fixed_dictionaries({"id": ids | st.lists(st.integers(), max_size=1)}),
)
shapes = st.builds(
    RowShape,
    st.sampled_from(["none", "kafka", "record_key", "record_value"]).map(lambda each: each),
    st.sampled_from([(), ("id",), ("id", "name")]),
    st.booleans(),
    st.booleans(),
)


@given(values, st.data(), shapes, st.integers(0, 2))
def test_both_ways_give_the_same_rows(
    values: list[Any], data: st.DataObject, shape: RowShape, first: int
) -> None:
    mode: PkMode = shape.pk_mode
    if mode == "kafka":
        shape = RowShape(mode, (), shape.deletes, shape.upserts)
    kind = data.draw(st.sampled_from([ids, names, keys]))
    records: list[Record[object, object]] = [
        Record(data.draw(kind), value, NOW, (), "t", 3, at * 2) for at, value in enumerate(values)
    ]
    assume(len(records) > first)
    found = plan_uniform(
        Batch(TopicPartition("t", 3), records, next_offset=2 * len(records)), first, shape
    )
    if found is None:
        return
    try:
        wanted = plan_runs(records[first:], shape)
    except BadRecords as error:
        raise AssertionError(f"a bad record has a row: {error}") from error
    (run,), (other,) = found, wanted
    assert (run.columns, run.keys, run.rows) == (other.columns, other.keys, other.rows)
    assert not other.is_deletion


def test_the_usual_batches_are_uniform() -> None:
    upsert = RowShape("record_value", ("id",), upserts=True)
    part = TopicPartition("t", 0)
    for values in ([Sale(1, "a"), Sale(2, None), Sale(1, "b")], [{"id": 1, "name": "b"}] * 2):
        records = [Record(None, value, NOW, (), "t", 0, at) for at, value in enumerate(values)]
        assert plan_uniform(Batch(part, records, next_offset=9), 0, upsert) is not None
    assert plan_uniform(Batch(part, [], next_offset=9), 0, upsert) is None
