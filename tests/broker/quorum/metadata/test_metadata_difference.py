from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.quorum.metadata.cluster_metadata import (
    BrokerChanged,
    ClusterMetadata,
    ConfigChanged,
    LinkChanged,
    MetadataChange,
    MirrorChanged,
    PartitionChanged,
    TopicCreated,
    TopicDeleted,
)
from streamlog.broker.quorum.metadata.image_changes import changes_between
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.protocol.messages.metadata_log import ConfigRecord
from tests.broker.quorum.records import histories


def replay(records: list[MetadataRecord]) -> ClusterMetadata:
    image = ClusterMetadata()
    for offset, record in enumerate(records):
        image.replay(record, offset)
    return image


def facts(image: ClusterMetadata) -> dict[object, object]:
    """Return what a node that acts on changes knows."""
    known: dict[object, object] = {("broker", key): value for key, value in image.brokers.items()}
    for topic_id, topic in image.topics.items():
        known["topic", topic_id] = topic.name
        for number, partition in topic.partitions.items():
            known["partition", topic_id, number] = partition
    known |= {("link", link_id): link for link_id, link in image.links.items()}
    known |= {("mirror", topic_id): mirror for topic_id, mirror in image.mirrors.items()}
    for record in image.snapshot():
        if isinstance(record, ConfigRecord):
            key = ("config", record.resource_type, record.resource_name, record.name)
            known[key] = record.value
    return known


def act(known: dict[object, object], change: MetadataChange, after: ClusterMetadata) -> None:
    """Act on one change, as a node does."""
    match change:
        case BrokerChanged(broker_id=broker_id):
            assert known.pop(("broker", broker_id), None) == change.before
            if change.after is not None:
                known["broker", broker_id] = change.after
        case TopicDeleted(topic_id=topic_id):
            assert known.pop(("topic", topic_id)) == change.name
            known.pop(("mirror", topic_id), None)
            for number in change.partitions:
                del known["partition", topic_id, number]
        case TopicCreated(topic_id=topic_id):
            assert ("topic", topic_id) not in known
            known["topic", topic_id] = change.name
        case PartitionChanged(topic_id=topic_id, partition=number):
            assert known.get(("partition", topic_id, number)) == change.before
            known["partition", topic_id, number] = change.after
        case ConfigChanged():
            key = ("config", change.resource_type, change.resource_name, change.name)
            known.pop(key, None)
            if change.value is not None:
                known[key] = change.value
        case _:
            act_on_mirrors(known, change, after)


def act_on_mirrors(
    known: dict[object, object], change: MetadataChange, after: ClusterMetadata
) -> None:
    match change:
        case LinkChanged(before=old, after=new):
            if old is not None:
                assert known.pop(("link", old.link_id)) == old
            if new is not None:
                known["link", new.link_id] = new
        case MirrorChanged(topic_id=topic_id):
            known["mirror", topic_id] = after.mirrors[topic_id]
        case _:
            pass


@given(histories(), st.data())
def test_changes_lead_from_one_image_to_another(
    records: list[MetadataRecord], data: st.DataObject
) -> None:
    before = replay(records[: data.draw(st.integers(0, len(records)))])
    after = replay(records)
    known = facts(before)
    for change in changes_between(before, after):
        act(known, change, after)
    assert known == facts(after)


@given(histories())
def test_identical_images_have_no_changed_topics_partitions_or_brokers(
    records: list[MetadataRecord],
) -> None:
    image = replay(records)
    kinds = {type(change) for change in changes_between(image, image)}
    assert not kinds & {
        BrokerChanged,
        LinkChanged,
        MirrorChanged,
        PartitionChanged,
        TopicCreated,
        TopicDeleted,
    }
