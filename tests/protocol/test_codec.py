"""The codec: round trips of every message and version, and bytes that are no message."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData, UnsupportedVersion, UsageError
from streamlog.protocol.api_table import APIS
from streamlog.protocol.codec import (
    decode,
    decode_versioned,
    encode,
    encode_into,
    encode_versioned,
)
from streamlog.protocol.messages.classic_groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    FindCoordinatorResponse,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupTopicPartition,
    HeartbeatRequest,
    JoinGroupRequest,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetFetchResponse,
    SyncGroupResponse,
)
from streamlog.protocol.messages.cluster_metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.protocol.messages.topics_and_configs import DeleteTopicsRequest
from streamlog.protocol.schema import Buffer, Message
from tests.protocol.strategies import VERSIONED, every_version, few, many, messages


@pytest.mark.slow
@every_version
@few
@given(drawn=st.data())
def test_every_message_round_trips(
    message_type: type[Message], version: int, drawn: st.DataObject
) -> None:
    message = drawn.draw(messages(message_type, version))
    data = encode(message, version)
    read = decode(message_type, version, data)
    assert read == message
    assert encode(read, version) == data
    if data:
        cut = drawn.draw(st.integers(0, len(data) - 1), label="bytes that are left")
        with pytest.raises(CorruptData):
            decode(message_type, version, data[:cut])
    with pytest.raises(CorruptData):
        decode(message_type, version, data + b"\0")


@pytest.mark.slow
@every_version
@few
@given(data=st.binary(max_size=60))
def test_random_bytes_are_a_message_or_corrupt(
    message_type: type[Message], version: int, data: bytes
) -> None:
    check_read(message_type, version, data)


@many
@given(drawn=st.data())
def test_a_changed_message_is_a_message_or_corrupt(drawn: st.DataObject) -> None:
    message_type, version = drawn.draw(st.sampled_from(VERSIONED))
    data = bytearray(encode(drawn.draw(messages(message_type, version)), version))
    changes = st.tuples(
        st.integers(0, max(0, len(data) - 1)), st.sampled_from(b"\0\x01\x7f\x80\xff")
    )
    for position, byte in drawn.draw(st.lists(changes, max_size=3)):
        data[position : position + 1] = bytes((byte,))
    check_read(message_type, version, bytes(data))


def check_read(message_type: type[Message], version: int, data: bytes) -> None:
    try:
        message = decode(message_type, version, data)
    except CorruptData:
        return
    assert decode(message_type, version, encode(message, version)) == message


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_a_version_out_of_range_is_unsupported(api: Any) -> None:
    for message_type in (api.request, api.response):
        for version in (message_type.__versions__.first - 1, message_type.__versions__.last + 1):
            with pytest.raises(UnsupportedVersion, match=f"not {version}"):
                encode(message_type(), version)
            with pytest.raises(UnsupportedVersion, match=f"not {version}"):
                decode(message_type, version, b"")


# Known bytes, written by hand from the protocol guide.


def test_api_versions_has_the_specified_bytes() -> None:
    request = ApiVersionsRequest(client_software_name="ab", client_software_version="1")
    assert encode(request, 0) == b""
    assert encode(request, 3).hex(" ") == "03 61 62 02 31 00"
    response = bytes.fromhex("00 23  00 00 00 01  00 12 00 00 00 04".replace(" ", ""))
    read = decode(ApiVersionsResponse, 0, response)
    (only,) = read.api_keys
    assert (read.error_code, only.api_key, only.min_version, only.max_version) == (35, 18, 0, 4)


def test_a_metadata_request_has_the_specified_bytes() -> None:
    one = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    assert encode(one, 0).hex(" ") == "00 00 00 01 00 01 74"
    assert encode(one, 4).hex(" ") == "00 00 00 01 00 01 74 00"
    assert encode(one, 9).hex(" ") == "02 02 74 00 00 00 00 00"
    assert encode(one, 12).hex(" ") == "02" + " 00" * 16 + " 02 74 00 00 00 00"
    assert encode(MetadataRequest(topics=None), 1).hex(" ") == "ff ff ff ff"
    assert encode(MetadataRequest(topics=None), 9).hex(" ") == "00 01 00 00 00"
    assert decode(MetadataRequest, 1, bytes.fromhex("ffffffff")).topics is None


def test_a_heartbeat_has_the_specified_bytes() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=7, member_id="m")
    assert encode(request, 0).hex(" ") == "00 01 67 00 00 00 07 00 01 6d"
    assert encode(request, 3).hex(" ") == "00 01 67 00 00 00 07 00 01 6d ff ff"
    assert encode(request, 4).hex(" ") == "02 67 00 00 00 07 02 6d 00 00"


def test_a_tagged_field_has_the_specified_bytes() -> None:
    partition = PartitionData(current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=2))
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    tail = encode(response, 12).hex(" ")
    # Records null, one tag: number 1, nine bytes, leader, epoch, no tags in it; then no tags.
    assert tail.endswith("00 01 01 09 00 00 00 01 00 00 00 02 00 00 00")


def test_stored_records_have_the_specified_bytes() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    assert encode_versioned(key, 1).hex(" ") == "00 01 00 01 67 00 01 74 00 00 00 03"
    assert encode_versioned(GroupMetadataKey(group="g"), 2).hex(" ") == "00 02 00 01 67"
    value = OffsetCommitValue(offset=5, leader_epoch=-1, metadata="", commit_timestamp=1)
    expected = "00 03" + " 00" * 7 + " 05 ff ff ff ff 00 00" + " 00" * 7 + " 01"
    assert encode_versioned(value, 3).hex(" ") == expected


# Tolerance and its limits.


def test_unknown_tags_are_skipped() -> None:
    """At the end of a message, at the end of a nested struct, and between known tags."""
    unknown = b"\x01\x63\x02ab"
    request = encode(HeartbeatRequest(group_id="g"), 4)
    assert decode(HeartbeatRequest, 4, request[:-1] + unknown).group_id == "g"
    nested = bytes.fromhex("02 0274") + unknown + bytes.fromhex("00 00 00 00")
    topics = decode(MetadataRequest, 9, nested).topics
    assert topics is not None
    assert topics[0].name == "t"
    epoch = b"\x01\x08" + bytes(7) + b"\x05"
    response = encode(ApiVersionsResponse(), 3)[:-1] + b"\x02" + epoch + b"\x80\x01\x00"
    assert decode(ApiVersionsResponse, 3, response).finalized_features_epoch == 5


@pytest.mark.parametrize("size", [7, 9])
def test_a_known_tag_with_a_wrong_size_is_corrupt(size: int) -> None:
    response = encode(ApiVersionsResponse(), 3)[:-1] + b"\x01\x01" + bytes((size,)) + bytes(9)
    with pytest.raises(CorruptData, match="tagged field of ApiVersionsResponse"):
        decode(ApiVersionsResponse, 3, response)


@pytest.mark.parametrize(
    ("version", "count"), [(1, "7fffffff"), (9, "ffffffff0f"), (12, "ffffffff0f")]
)
def test_a_count_above_the_remaining_bytes_is_corrupt(version: int, count: str) -> None:
    data = bytes.fromhex(count) + bytes(30)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData, match=r"MetadataRequest\.topics claims \d+ elements"):
            decode(MetadataRequest, version, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", ["ffffffffff01", "ffffffff7f", "ffffffff"])
def test_an_endless_or_too_large_varint_is_corrupt(number: str) -> None:
    with pytest.raises(CorruptData):
        decode(MetadataRequest, 9, bytes.fromhex(number))


def test_null_in_a_non_nullable_field_is_corrupt() -> None:
    with pytest.raises(CorruptData, match=r"MetadataRequest\.topics is null"):
        decode(MetadataRequest, 0, bytes.fromhex("ffffffff"))
    with pytest.raises(CorruptData, match=r"HeartbeatRequest\.group_id is null"):
        decode(HeartbeatRequest, 0, bytes.fromhex("ffff"))
    with pytest.raises(CorruptData, match=r"TopicPartition\.topic is null"):
        decode_versioned(ConsumerProtocolAssignment, bytes.fromhex("000000000001ffff00000000"))
    with pytest.raises(CorruptData, match=r"DeleteTopicsRequest\.topic_names is null"):
        decode(DeleteTopicsRequest, 4, bytes.fromhex("02 00 00000000 00".replace(" ", "")))


def test_null_in_a_response_is_empty_except_for_strings() -> None:
    assert decode(OffsetFetchResponse, 1, bytes.fromhex("ffffffff")).topics == []
    assert decode(SyncGroupResponse, 0, bytes.fromhex("002a ffffffff")).assignment == b""
    assert decode(SyncGroupResponse, 4, bytes.fromhex("00000000 002a 00 00")).assignment == b""
    with pytest.raises(CorruptData, match=r"FindCoordinatorResponse\.host is null"):
        decode(FindCoordinatorResponse, 0, bytes.fromhex("0000 00000001 ffff 00000001"))


def test_a_string_that_is_not_utf8_is_corrupt() -> None:
    with pytest.raises(CorruptData, match="HeartbeatRequest version 0"):
        decode(HeartbeatRequest, 0, bytes.fromhex("0001 ff 00000007 0001 6d".replace(" ", "")))


@pytest.mark.parametrize(
    ("message", "version", "reason"),
    [
        (MetadataRequest(topics=None), 0, r"MetadataRequest\.topics is None"),
        (
            MetadataRequest(topics=[MetadataRequestTopic(name=None)]),
            9,
            r"MetadataRequestTopic\.name is None",
        ),
        (HeartbeatRequest(generation_id=2**31), 0, "HeartbeatRequest can't be written in version"),
        (HeartbeatRequest(group_id="x" * 40_000), 0, "HeartbeatRequest can't be written"),
        (HeartbeatRequest(group_id="\ud800"), 4, "HeartbeatRequest can't be written"),
        (JoinGroupRequest(protocols=5), 4, "JoinGroupRequest can't be written"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_a_version_can_not_hold_is_a_usage_error(
    message: Message, version: int, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        encode(message, version)


def test_a_field_that_a_version_lacks_is_read_as_its_default() -> None:
    request = ProduceRequest(transactional_id="x", acks=1, timeout_ms=9)
    assert decode(ProduceRequest, 3, encode(request, 3)) == request
    response = MetadataResponse(throttle_time_ms=7, cluster_id="c", controller_id=3)
    read = decode(MetadataResponse, 1, encode(response, 1))
    assert (read.throttle_time_ms, read.cluster_id, read.controller_id) == (0, None, 3)


# Records.


def produce(records: Any) -> ProduceRequest:
    partition = PartitionProduceData(index=1, records=records)
    return ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[partition])])


@pytest.mark.parametrize("version", [3, 11])
def test_records_are_read_and_written_without_a_copy(version: int) -> None:
    batch = b"x" * 1_000
    buffers: list[Buffer] = [bytearray()]
    encode_into(produce(batch), version, buffers)
    assert any(buffer is batch for buffer in buffers)
    frame = b"".join(buffers)
    read = decode(ProduceRequest, version, frame)
    records = read.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame
    assert records == batch


@pytest.mark.parametrize("version", [3, 11])
@pytest.mark.parametrize(
    "pieces", [[], [b""], [b"ab"], [b"ab", memoryview(b"cd"), bytearray(b"e")]]
)
def test_records_may_be_a_list_of_buffers(version: int, pieces: list[Buffer]) -> None:
    assert encode(produce(pieces), version) == encode(produce(b"".join(pieces)), version)


# Messages with a version prefix.


@few
@given(drawn=st.data())
@pytest.mark.parametrize(
    "message_type",
    [
        ConsumerProtocolSubscription,
        ConsumerProtocolAssignment,
        OffsetCommitKey,
        OffsetCommitValue,
        GroupMetadataKey,
        GroupMetadataValue,
    ],
)
def test_a_versioned_message_starts_with_its_version(
    message_type: type[Message], drawn: st.DataObject
) -> None:
    versions = message_type.__versions__
    version = drawn.draw(st.integers(versions.first, versions.last))
    message = drawn.draw(messages(message_type, version))
    data = encode_versioned(message, version)
    assert int.from_bytes(data[:2]) == version
    assert decode_versioned(message_type, data) == message
    assert decode_versioned(message_type, memoryview(data)) == message


def test_a_newer_subscription_is_read_in_the_newest_known_version() -> None:
    """The embedded protocol grows only at its end, so a newer consumer stays readable."""
    subscription = ConsumerProtocolSubscription(
        topics=["t"], owned_partitions=[GroupTopicPartition(topic="t", partitions=[1])], rack_id="r"
    )
    data = b"\x00\x09" + encode(subscription, 3) + b"something new"
    assert decode_versioned(ConsumerProtocolSubscription, data) == subscription


def test_a_newer_stored_record_is_unsupported() -> None:
    value = GroupMetadataValue(protocol_type="consumer", members=[MemberMetadata(member_id="m")])
    data = b"\x00\x09" + encode(value, 3)
    with pytest.raises(UnsupportedVersion):
        decode_versioned(GroupMetadataValue, data)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00"])
def test_a_truncated_versioned_message_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_versioned(ConsumerProtocolAssignment, data)


def test_a_negative_version_is_unsupported() -> None:
    with pytest.raises(UnsupportedVersion):
        decode_versioned(ConsumerProtocolAssignment, b"\xff\xff")
