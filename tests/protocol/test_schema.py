"""A declared message is an ordinary class: slots, keywords, defaults, equality."""

from __future__ import annotations

import copy

import pytest

from streamlog.protocol.messages.cluster_metadata import MetadataRequest, MetadataRequestTopic
from streamlog.protocol.messages.produce_and_fetch import (
    FetchRequest,
    PartitionData,
    PartitionProduceData,
    ProduceResponse,
)
from streamlog.protocol.schema import NEVER, ZERO_UUID, Versions, one_buffer


@pytest.mark.parametrize(
    ("text", "first", "last"), [("3", 3, 3), ("3-7", 3, 7), ("3+", 3, 0x7FFF), ("0-0", 0, 0)]
)
def test_version_ranges_are_parsed_as_kafka_writes_them(text: str, first: int, last: int) -> None:
    versions = Versions.parse(text)
    assert versions == Versions(first, last)
    assert first in versions
    assert last in versions
    assert first - 1 not in versions
    assert last + 1 not in versions


def test_version_ranges_intersect() -> None:
    assert Versions(0, 5) & Versions(3, 9) == Versions(3, 5)
    assert all(version not in Versions(0, 2) & Versions(3, 9) for version in range(12))
    assert all(version not in NEVER for version in range(3))


def test_fields_have_kafkas_defaults() -> None:
    request = FetchRequest()
    assert (request.replica_id, request.max_bytes, request.session_epoch) == (-1, 0x7FFFFFFF, -1)
    assert (request.rack_id, request.topics) == ("", [])
    partition = PartitionData()
    assert (partition.records, partition.current_leader, partition.error_code) == (None, None, 0)
    assert MetadataRequestTopic().topic_id == ZERO_UUID


def test_lists_are_not_shared_and_null_is_not_empty() -> None:
    first, second = ProduceResponse(), ProduceResponse()
    assert first.responses is not second.responses
    assert MetadataRequest(topics=None).topics is None
    assert MetadataRequest().topics == []


def test_a_message_class_is_closed_and_takes_keywords_only() -> None:
    request = FetchRequest()
    with pytest.raises(AttributeError):
        request.nothing = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        FetchRequest(nothing=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        FetchRequest("cluster")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        hash(request)


def test_equality_is_by_value_and_class() -> None:
    assert FetchRequest(min_bytes=1) == FetchRequest(min_bytes=1)
    assert FetchRequest(min_bytes=1) != FetchRequest(min_bytes=2)
    assert PartitionProduceData(records=b"ab") == PartitionProduceData(records=memoryview(b"ab"))
    assert FetchRequest() != MetadataRequest()
    assert copy.deepcopy(FetchRequest(min_bytes=1)) == FetchRequest(min_bytes=1)


def test_the_repr_of_a_message_shows_no_large_records() -> None:
    shown = repr(PartitionProduceData(index=3, records=b"x" * 1_000))
    assert shown == "PartitionProduceData(index=3, records=<1000 bytes>)"
    assert "abc" in repr(PartitionProduceData(records=b"abc"))


def test_one_buffer_joins_only_if_needed() -> None:
    batch = b"ab"
    assert one_buffer(None) == b""
    assert one_buffer(batch) is batch
    assert one_buffer([batch]) is batch
    assert one_buffer([batch, memoryview(b"cd")]) == b"abcd"
    assert one_buffer([]) == b""
