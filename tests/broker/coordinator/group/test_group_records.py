"""The records of `__consumer_offsets`: Kafka's bytes, encoded and decoded."""

from __future__ import annotations

from streamlog.broker.coordinator.group.group_records import (
    GroupChange,
    OffsetChange,
    decode_change,
    encode_change,
)
from streamlog.broker.coordinator.shard import CoordinatorRecord
from streamlog.protocol.messages.classic_groups import (
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)


def test_an_offset_record_has_kafka_s_bytes() -> None:
    key = OffsetCommitKey(group="g", topic="top", partition=3)
    value = OffsetCommitValue(offset=42, leader_epoch=7, metadata="m", commit_timestamp=5)
    record = encode_change(OffsetChange(key, value))
    assert record.key == bytes.fromhex("0001 0001 67 0003 746f70 00000003")
    assert record.value == bytes.fromhex("0003 000000000000002a 00000007 0001 6d 0000000000000005")
    assert decode_change(record) == OffsetChange(key, value)


def test_an_offset_record_may_hold_a_topic_id() -> None:
    key = OffsetCommitKey(group="g", topic="top", partition=3)
    value = OffsetCommitValue(offset=42, metadata="m", commit_timestamp=5, topic_id=b"i" * 16)
    record = encode_change(OffsetChange(key, value))
    head = bytes.fromhex("0004 000000000000002a ffffffff 02 6d 0000000000000005")
    assert record.value == head + b"\1\0\x10" + b"i" * 16
    assert decode_change(record) == OffsetChange(key, value)


def test_a_group_record_has_kafka_s_bytes() -> None:
    member = MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=1,
        session_timeout=2,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=9,
        protocol="range",
        leader="m",
        current_state_timestamp=5,
        members=[member],
    )
    record = encode_change(GroupChange("g", value))
    assert record.key == bytes.fromhex("0002 0001 67")
    assert record.value == (
        b"\0\3\0\x08consumer\0\0\0\x09\0\5range\0\1m\0\0\0\0\0\0\0\5\0\0\0\1"
        b"\0\1m\xff\xff\0\1c\0\2/h\0\0\0\1\0\0\0\2\0\0\0\1s\0\0\0\1a"
    )
    assert decode_change(record) == GroupChange("g", value)


def test_tombstones_round_trip() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=0)
    for change in (OffsetChange(key, None), GroupChange("g", None)):
        record = encode_change(change)
        assert record.value is None
        assert decode_change(record) == change


def test_older_value_versions_are_decoded() -> None:
    key = encode_change(OffsetChange(OffsetCommitKey(group="g", topic="t", partition=0), None)).key
    value = b"\0\0" + (42).to_bytes(8) + b"\0\1m" + (5).to_bytes(8)
    change = decode_change(CoordinatorRecord(key, value))
    assert isinstance(change, OffsetChange)
    assert change.value == OffsetCommitValue(
        offset=42, leader_epoch=-1, metadata="m", commit_timestamp=5
    )


def test_unknown_record_kinds_are_skipped() -> None:
    assert decode_change(CoordinatorRecord(b"\0\3\0\1g", b"whatever")) is None
