"""Records that nothing changes on their way to another cluster take a short way there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import Batch, TopicPartition
from streamlog.connect.declared_connectors import SinkConnector
from streamlog.connect_service.configured import configured
from streamlog.connect_tasks.carried import SinkCarrier
from streamlog.connectors.kafka.target_topics import columns_of
from streamlog.records.record_columns import RecordColumns

Row: TypeAlias = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Time, key, value and headers."""

PLACE = TopicPartition("orders", 0)
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
MIRROR = {
    "connector.class": "KafkaMirror", "topics.regex": "orders|users",
    "bootstrap.servers": "kafka-1:9092", "key.converter": BYTES, "value.converter": BYTES,
}  # fmt: skip
UNCHANGED = {
    "transforms": "drop", "predicates": "never",
    "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
    "transforms.drop.predicate": "never",
    "predicates.never.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
    "predicates.never.pattern": "no-such-topic",
}  # fmt: skip
"""A transform that leaves out no record, so that all of them take the long way."""
DATA = st.none() | st.binary(max_size=5)
HEADERS = st.lists(st.tuples(st.text(max_size=3), DATA), max_size=2).map(tuple)
RECORDS = st.lists(st.tuples(st.integers(0, 2**41), DATA, DATA, HEADERS), min_size=1, max_size=8)


def rows(settings: dict[str, str], columns: RecordColumns) -> Sequence[tuple[object, ...]]:
    """Return what a connector of the service hands to its producer."""
    connector = configured("eu", settings, {})
    assert isinstance(connector, SinkConnector)
    carried, refused = SinkCarrier(connector).carry(PLACE, columns)
    assert not refused.count
    batch = Batch.of_rows(
        carried, first_offset=0, next_offset=len(columns), schema=None, key_schema=None
    )
    return [(*each[:3], tuple(each[3])) for each in columns_of(batch)]


def columns_with(records: Sequence[Row]) -> RecordColumns:
    columns = RecordColumns()
    for offset, (time_ms, key, value, headers) in enumerate(records):
        columns.add(offset, time_ms, key, value, headers or None)
    return columns


@given(RECORDS)
def test_the_short_way_brings_what_the_long_one_does(records: list[Row]) -> None:
    expected = [*records]
    assert rows(MIRROR, columns_with(records)) == expected
    assert rows(MIRROR | UNCHANGED, columns_with(records)) == expected


@pytest.mark.parametrize(
    ("settings", "is_short"),
    [
        (MIRROR, True),
        (MIRROR | UNCHANGED, False),
        (MIRROR | {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}, False),
        ({"connector.class": "Print", "topics": "orders", "value.converter": BYTES}, False),
    ],
)  # fmt: skip
def test_records_are_made_only_where_something_looks_at_them(
    settings: dict[str, str], is_short: bool
) -> None:
    connector = configured("eu", settings, {})
    assert isinstance(connector, SinkConnector)
    assert (not connector.transforms) is is_short
