"""Rows of a source become values of the type that its topic declares."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from streamlog.connect import Read
from streamlog.connect.declared_connectors import SinkConnector, SourceConnector
from streamlog.connect_tasks.carried import SPANS_LEAST, SinkCarrier, SourceCarrier, declare_rows
from streamlog.connectors.memory import MemorySource, Print
from streamlog.durations import moment
from streamlog.errors import ProcessingError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import Record, TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.byte_spans import ByteSpans
from streamlog.records.record_columns import RecordColumns
from streamlog.serdes import serde_for
from streamlog.serdes.erased_types import AnyRecord
from streamlog.serdes.named_columns import NamedColumns

KIP_298 = {
    "topic", "partition", "offset", "connector.name", "task.id", "stage", "class.name",
    "exception.class.name", "exception.message", "exception.stacktrace",
}  # fmt: skip

NOW = datetime(2026, 1, 2, tzinfo=UTC)
ROW = {
    "id": 7,
    "price": Decimal("1.50"),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    "ref": UUID(int=5),
    "note": None,
}
VALUES = tuple(ROW.values())


@dataclass
class Item:
    id: int
    price: Decimal
    at: datetime
    ref: UUID
    note: str | None = None


class Struct(msgspec.Struct):
    id: int
    price: float


class Noted(msgspec.Struct):
    id: int
    note: str | None = None


class Model(BaseModel):
    id: int
    price: Decimal


class Entry(TypedDict):
    id: int


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Item, Item(*VALUES)),  # type: ignore[arg-type]
        (Struct, Struct(7, 1.5)),
        (Model, Model(id=7, price=Decimal("1.50"))),
        (Entry, ROW),
        (dict[str, Any], ROW),
        (dict, ROW),
    ],
)
def test_a_row_becomes_a_value_of_the_declared_type(declared: Any, value: Any) -> None:
    assert declare_rows(serde_for(declared), [ROW, None]) == [value, None]


@pytest.mark.parametrize(("declared", "value"), [(bytes, b"x"), (str, "x"), (int, 3)])
def test_what_is_no_row_is_left_to_the_serde(declared: Any, value: Any) -> None:
    assert declare_rows(serde_for(declared), [value]) == [value]


def test_a_row_that_does_not_fit_names_the_field() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$.id`"):
        declare_rows(serde_for(Item), [{**ROW, "id": "seven"}])


_FIELD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))


_ROWS = st.lists(
    st.fixed_dictionaries({"id": _FIELD}, optional={"note": _FIELD, "x": _FIELD}), max_size=5
)


@given(_ROWS)
def test_rows_together_are_what_they_are_alone(rows: list[dict[str, object]]) -> None:
    serde = serde_for(Noted)
    try:
        alone = [declare_rows(serde, [row])[0] for row in rows]
    except msgspec.ValidationError:
        with pytest.raises(msgspec.ValidationError):
            declare_rows(serde, rows)
    else:
        assert declare_rows(serde, rows) == alone


def _outcome(carrier: SourceCarrier, read: Read[Any, Any]) -> object:
    """Return topic, partition of 3, time, key and value of each record, dead letters included."""
    carried = carrier.carry(read, NOW)
    return [
        (batch.topic, *record)
        for batch in carried.batches
        for record in zip(
            batch.partitions(3), batch.timestamps, batch.keys, batch.values, strict=True
        )
    ], sum(drop.count for drop in carried.drops)


@given(st.lists(st.tuples(_FIELD, _FIELD, _FIELD), max_size=5), st.data())
def test_rows_as_tuples_are_carried_as_rows_as_dicts_are(
    rows: list[tuple[object, ...]], data: st.DataObject
) -> None:
    """Whatever the topic declares; rows that it refuses are the same dead letters."""
    declared = data.draw(st.sampled_from([Noted, Struct, Model, Entry, dict, dict[str, Any]]))
    key = data.draw(st.sampled_from([int, str, dict, dict[str, Any]]))
    names = ("id", "note", "price")
    spec = TopicSpec("rows", serde_for(key), serde_for(declared))
    carrier = SourceCarrier(
        SourceConnector(
            name="in",
            source=MemorySource(values=[]),
            topics={"": spec},
            policy=on_error.dlq("letters"),
        )
    )
    named = NamedColumns(names, rows)
    is_composite = key not in {int, str}
    keys: Any = NamedColumns(("id",), [row[:1] for row in rows])
    if not is_composite:
        keys = named.column("id")
    columns = Read.columns(named, {}, keys=keys, timestamps_ms=[5] * len(rows))
    records = [Record(key, dict(row), moment(5)) for key, row in zip(keys, named, strict=True)]
    assert _outcome(carrier, columns) == _outcome(carrier, Read(records, {}))


def test_rows_of_the_usual_types_are_carried_in_one_buffer() -> None:
    rows = NamedColumns(("id", "note"), [(7, "a"), (8, None)])
    for key, keys in ((int, [7, 8]), (str, ["7", "8"]), (bytes, [b"7", b"8"]), (int, None)):
        for declared in (Noted, dict):
            spec = TopicSpec("rows", serde_for(key), serde_for(declared))
            connector = SourceConnector(
                name="in", source=MemorySource(values=[]), topics={"": spec}, policy=on_error.FAIL
            )
            (batch,) = (
                SourceCarrier(connector).carry(Read.columns(rows, {}, keys=keys), NOW).batches
            )
            assert isinstance(batch.keys, ByteSpans)
            assert isinstance(batch.values, ByteSpans)
            assert [*batch.values] == [b'{"id":7,"note":"a"}', b'{"id":8,"note":null}']


_KEPT = st.lists(
    st.tuples(
        st.none() | st.text(max_size=3),
        st.none() | st.builds(Noted, st.integers(), st.none() | st.text(max_size=3)),
        st.sampled_from([NOW, moment(5)]),
        st.sampled_from([(), (("h", b"x"),)]),
    ),
    min_size=1,
    max_size=3,
)


@given(_KEPT, st.booleans())
def test_many_records_are_carried_as_each_alone(
    fields: list[tuple[Any, ...]], has_bad: bool
) -> None:
    """Those of a large Read lie in one buffer; a bad one among them is given up alone."""
    connector = SourceConnector(
        name="in",
        source=MemorySource(values=[]),
        topics={"": TopicSpec("t", serde_for(str), serde_for(Noted))},
        policy=on_error.dlq("letters"),
    )
    carrier = SourceCarrier(connector)
    records: list[AnyRecord] = [Record(*each) for each in fields] * SPANS_LEAST
    if has_bad:
        records.insert(1, Record("k", "no Noted", NOW))

    def contents(many: list[list[AnyRecord]]) -> list[object]:
        carried = [carrier.carry(Read(some, {}), NOW) for some in many]
        batches = [batch for each in carried for batch in each.batches]
        return [
            (batch.topic, *record)
            for batch in batches
            for record in zip(
                batch.timestamps,
                batch.keys,
                batch.values,
                batch.headers or [()] * len(batch.timestamps),
                strict=True,
            )
            if batch.topic == "t"
        ] + [sum(drop.count for each in carried for drop in each.drops)]

    assert contents([records]) == contents([[record] for record in records])


def _refuse(record: AnyRecord) -> AnyRecord:
    raise ValueError("no amount")


@pytest.mark.parametrize("is_wanted", [True, False])
@pytest.mark.parametrize("stage", ["VALUE_CONVERTER", "TRANSFORMATION", "TASK_PUT"])
def test_a_dead_letter_of_a_sink_has_kafka_connects_headers_if_they_are_wanted(
    stage: str, is_wanted: bool
) -> None:
    connector = SinkConnector(
        name="out",
        sink=Print(),
        topics=[TopicSpec("orders", serde_for(str), serde_for(int))],
        transforms=[_refuse] if stage == "TRANSFORMATION" else (),
        policy=on_error.dlq("letters"),
        has_context_headers=is_wanted,
    )
    carrier = SinkCarrier(connector, 3)
    value = b"no number" if stage == "VALUE_CONVERTER" else serde_for(int).dumps(7)
    read = RecordColumns.of([LogRecord(42, 1_000, None, value, (("own", b"x"),))])
    rows, refused = carrier.carry(TopicPartition("orders", 1), read)
    if stage == "TASK_PUT":
        refused = carrier.give_up(TopicPartition("orders", 1), rows.row(0), ValueError("too large"))
    (batch,) = refused.batches
    assert batch.headers is not None
    found = dict(batch.headers[0])
    assert (found["own"], found["__streams.errors.offset"]) == (b"x", b"42")
    named = {
        name.removeprefix("__connect.errors."): text
        for name, text in found.items()
        if name.startswith("__connect.errors.")
    }
    # The names of KIP-298.
    assert named.keys() == (KIP_298 if is_wanted else set())
    if is_wanted:
        assert (named["topic"], named["partition"], named["offset"]) == (b"orders", b"1", b"42")
        assert (named["connector.name"], named["task.id"]) == (b"out", b"3")
        assert named["stage"] == stage.encode()
        assert b"Error" in (named["exception.stacktrace"] or b"")


@pytest.mark.parametrize(
    ("logged", "shown"),
    [
        ("off", None),
        ("errors", "."),
        ("records", ", where consumed record is {topic='t', partition=2, offset=7, timestamp=5}."),
    ],
)
@pytest.mark.parametrize("policy", [on_error.FAIL, on_error.skip(log=False), on_error.dlq("bad")])
def test_what_can_not_be_carried_is_logged_in_kafka_connects_words_if_that_is_wanted(
    logged: Any, shown: str | None, policy: ErrorPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    connector = SinkConnector(
        name="s", sink=Print(), topics=[TopicSpec("t", serde_for(str), serde_for(int))],
        policy=policy, error_log=logged, transforms=[_refuse],
    )  # fmt: skip
    columns = RecordColumns()
    columns.add(7, 5, b"k", serde_for(int).dumps(1), None)
    with contextlib.suppress(ProcessingError):
        SinkCarrier(connector, 3).carry(TopicPartition("t", 2), columns)
    begun = "Error encountered in task s-3. Executing stage 'TRANSFORMATION' with class '"
    begun += "streamlog.connectors.memory.Print'"
    texts = [each.getMessage() for each in caplog.records]
    assert texts == ([] if shown is None else [f"{begun}{shown}"])
    assert all("no amount" in str(each.exc_info) for each in caplog.records)
