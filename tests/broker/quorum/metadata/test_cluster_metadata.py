"""ClusterMetadata: built by replay alone, and written as records."""

from __future__ import annotations

import pytest
from hypothesis import given

from streamlog.broker.quorum.metadata.cluster_metadata import (
    TOPIC_RESOURCE,
    BrokerChanged,
    ClusterMetadata,
    PartitionChanged,
    TopicCreated,
    TopicDeleted,
)
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.errors import CorruptData
from streamlog.protocol.messages.metadata_log import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from tests.broker.quorum.records import histories

ID = bytes(15) + b"\x01"


def replay(records: list[MetadataRecord]) -> ClusterMetadata:
    image = ClusterMetadata()
    for offset, record in enumerate(records):
        image.replay(record, offset)
    return image


@given(histories())
def test_a_snapshot_restores_the_image(records: list[MetadataRecord]) -> None:
    image = replay(records)
    again = ClusterMetadata.of_snapshot(image.snapshot(), image.offset)
    assert again.offset == image.offset
    assert again.digest() == image.digest()
    assert list(again.snapshot()) == list(image.snapshot())


@given(histories())
def test_replay_continues_after_a_snapshot(records: list[MetadataRecord]) -> None:
    whole = replay(records)
    half = replay(records[: len(records) // 2])
    again = ClusterMetadata.of_snapshot(half.snapshot(), half.offset)
    for offset in range(len(records) // 2, len(records)):
        again.replay(records[offset], offset)
    assert again.digest() == whole.digest()


@given(histories())
def test_epochs_of_a_partition_never_fall(records: list[MetadataRecord]) -> None:
    image = ClusterMetadata()
    for offset, record in enumerate(records):
        change = image.replay(record, offset)
        if isinstance(change, PartitionChanged) and change.before is not None:
            assert change.after.partition_epoch == change.before.partition_epoch + 1
            led = change.after.leader_epoch - change.before.leader_epoch
            least = getattr(record, "least_leader_epoch", -1)
            assert led in (0, 1) or change.after.leader_epoch == least
            assert led or change.after.leader == change.before.leader


def with_partition(*changes: PartitionChangeRecord) -> ClusterMetadata:
    created = PartitionRecord(
        partition_id=0,
        topic_id=ID,
        replicas=[1, 2, 3],
        isr=[1, 2, 3],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    )
    return replay([TopicRecord(name="t", topic_id=ID), created, *changes])


def test_a_leader_elected_again_has_a_new_epoch() -> None:
    image = with_partition(PartitionChangeRecord(partition_id=0, topic_id=ID, leader=1))
    partition = image.partition(ID, 0)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 1, 1)


def test_an_isr_change_keeps_the_leader_epoch() -> None:
    image = with_partition(PartitionChangeRecord(partition_id=0, topic_id=ID, isr=[1]))
    partition = image.partition(ID, 0)
    assert partition is not None
    assert partition.isr == (1,)
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 0, 1)


def test_an_unclean_election_is_remembered_by_its_epoch() -> None:
    elected = PartitionChangeRecord(partition_id=0, topic_id=ID, isr=[3], leader=3, is_unclean=True)
    later = PartitionChangeRecord(partition_id=0, topic_id=ID, leader=3)
    partition = with_partition(elected, later).partition(ID, 0)
    assert partition is not None
    assert (partition.leader_epoch, partition.last_unclean_epoch) == (2, 1)


def test_the_epoch_of_a_broker_is_the_offset_of_its_registration() -> None:
    image = ClusterMetadata()
    image.replay(RegisterBrokerRecord(broker_id=1, broker_epoch=-1), 41)
    change = image.replay(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=41, fenced=-1), 42
    )
    assert isinstance(change, BrokerChanged)
    assert change.before is not None
    assert change.after is not None
    assert change.after.epoch == 41
    assert (change.before.is_active, change.after.is_active) == (False, True)


def test_removing_a_topic_removes_its_partitions_and_settings() -> None:
    image = with_partition()
    setting = ConfigRecord(
        resource_type=TOPIC_RESOURCE, resource_name="t", name="retention.ms", value="1"
    )
    image.replay(setting, 2)
    assert image.config(TOPIC_RESOURCE, "t") == {"retention.ms": "1"}
    assert image.replay(RemoveTopicRecord(topic_id=ID), 3) == TopicDeleted(ID, "t", (0,))
    assert image.digest() == ClusterMetadata().digest()
    created = image.replay(TopicRecord(name="t", topic_id=bytes(16)), 4)
    assert created == TopicCreated(bytes(16), "t")


MISFITS: dict[str, MetadataRecord] = {
    "a topic twice": TopicRecord(name="t", topic_id=bytes(16)),
    "an id twice": TopicRecord(name="u", topic_id=ID),
    "a topic that is not there": RemoveTopicRecord(topic_id=bytes(16)),
    "a partition that is not there": PartitionChangeRecord(partition_id=9, topic_id=ID),
    "a broker that is not there": UnregisterBrokerRecord(broker_id=9),
    "a broker of another epoch": BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9),
    "producer ids that are given out": ProducerIdsRecord(next_producer_id=999),
    "a credential that is not there": RemoveUserScramCredentialRecord(name="ann", mechanism=1),
    "a mechanism that there is not": RemoveUserScramCredentialRecord(name="ann", mechanism=9),
}


@pytest.mark.parametrize("record", MISFITS.values(), ids=MISFITS)
def test_a_record_that_does_not_fit_is_corrupt_data(record: MetadataRecord) -> None:
    image = with_partition()
    image.replay(RegisterBrokerRecord(broker_id=1, broker_epoch=-1), 2)
    image.replay(ProducerIdsRecord(next_producer_id=1000), 3)
    before = image.digest()
    with pytest.raises(CorruptData, match="offset 4"):
        image.replay(record, 4)
    assert (image.digest(), image.offset) == (before, 3)
