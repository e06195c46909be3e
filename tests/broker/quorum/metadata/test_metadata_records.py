"""The bytes of the metadata log's records."""

from __future__ import annotations

import pytest
from hypothesis import given

from streamlog.broker.quorum.metadata.metadata_records import (
    KINDS,
    MetadataRecord,
    decode_record,
    encode_record,
)
from streamlog.errors import CorruptData, UnsupportedVersion
from streamlog.protocol.messages.metadata_log import (
    PartitionChangeRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from tests.broker.quorum.records import histories


@given(histories())
def test_metadata_records_round_trip(records: list[MetadataRecord]) -> None:
    assert [decode_record(encode_record(record)) for record in records] == records


def test_a_record_has_kafka_s_bytes() -> None:
    topic = TopicRecord(name="t", topic_id=bytes(range(16)))
    # Frame 1, kind 2, version 0; a compact string, the id, no tags.
    assert encode_record(topic) == b"\x01\x02\x00" + b"\x02t" + bytes(range(16)) + b"\x00"


def test_unchanged_fields_are_not_written() -> None:
    nothing = PartitionChangeRecord(partition_id=1, topic_id=bytes(16))
    empty = PartitionChangeRecord(partition_id=1, topic_id=bytes(16), isr=[])
    assert decode_record(encode_record(nothing)) == nothing
    read = decode_record(encode_record(empty))
    assert isinstance(read, PartitionChangeRecord)
    assert read.isr == []
    assert len(encode_record(nothing)) < len(encode_record(empty))


def test_every_record_kind_has_a_unique_number() -> None:
    assert len({*KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x02\x00", b"\x01\x02\x00\x02t"])
def test_a_truncated_record_is_corrupt_data(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_record(data)


@pytest.mark.parametrize("data", [b"\x02\x02\x00", b"\x01\x63\x00", b"\x01\x02\x09"])
def test_records_of_a_newer_release_are_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedVersion):
        decode_record(data)


def test_a_credential_record_hides_its_keys_in_its_repr() -> None:
    record = UserScramCredentialRecord(name="ann", stored_key=b"hush")
    assert "hush" not in repr(record)
