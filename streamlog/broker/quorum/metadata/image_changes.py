"""Image changes: what differs between two images of the metadata.

A broker that has received a snapshot instead of records acts on these changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamlog.broker.quorum.metadata.cluster_metadata import (
    AclsChanged,
    BrokerChanged,
    ClusterMetadata,
    ConfigChanged,
    LinkChanged,
    MetadataChange,
    MirrorChanged,
    PartitionChanged,
    QuotaChanged,
    SealChanged,
    TopicCreated,
    TopicDeleted,
    UserChanged,
)
from streamlog.replace import replace


def changes_between(before: ClusterMetadata, after: ClusterMetadata) -> list[MetadataChange]:
    """Return the changes from one image to the other, as if their records had been replayed."""
    # Removals first: a topic that was deleted and created again has the same name in both images,
    # and the old one's log has to go before the new one can be created.
    return [*_gone(before, after), *_there(before, after)]


def _gone(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[MetadataChange]:
    for topic_id, topic in before.topics.items():
        if topic_id not in after.topics:
            yield TopicDeleted(topic_id, topic.name, tuple(topic.partitions))
    for change in _made(before):
        match change:
            case BrokerChanged(broker_id=broker_id, after=broker) if broker_id not in after.brokers:
                yield BrokerChanged(broker_id, broker, None)
            case LinkChanged(after=link) if link is not None and link.link_id not in after.links:
                yield LinkChanged(link, None)
            case ConfigChanged(resource_type=kind, resource_name=name, name=key):
                if key not in after.config(kind, name):
                    yield ConfigChanged(kind, name, key, None)
            # These carry no values: watchers read them from the new image.
            case QuotaChanged() | UserChanged() | AclsChanged():
                yield change
            case _:
                pass


def _there(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[MetadataChange]:
    for change in _made(after):
        match change:
            case TopicCreated(topic_id=topic_id) if topic_id in before.topics:
                pass
            case PartitionChanged():
                old = before.partition(change.topic_id, change.partition)
                if old != change.after:
                    yield replace(change, before=old)
            case BrokerChanged():
                broker = before.brokers.get(change.broker_id)
                if broker != change.after:
                    yield replace(change, before=broker)
            case LinkChanged() | MirrorChanged() | SealChanged():
                yield from _mirroring(change, before, after)
            case _:
                yield change


def _mirroring(
    change: LinkChanged | MirrorChanged | SealChanged,
    before: ClusterMetadata,
    after: ClusterMetadata,
) -> Iterator[MetadataChange]:
    if isinstance(change, MirrorChanged):
        if before.mirrors.get(change.topic_id) != after.mirrors[change.topic_id]:
            yield change
    elif isinstance(change, SealChanged):
        if before.seals.get(change.topic_id) != after.seals[change.topic_id]:
            yield change
    elif change.after is not None:
        link = before.links.get(change.after.link_id)
        if link != change.after:
            yield replace(change, before=link)


def _made(image: ClusterMetadata) -> Iterable[MetadataChange]:
    """Return the changes that build an image from nothing, without superseded ones.

    Of several changes of one broker or partition only the last counts.
    """
    scratch = ClusterMetadata()
    changes: dict[object, MetadataChange] = {}
    for record in image.snapshot():
        change = scratch.replay(record, image.offset)
        match change:
            case None:
                continue
            case BrokerChanged():
                changes["broker", change.broker_id] = change
            case PartitionChanged():
                changes["partition", change.topic_id, change.partition] = change
            case _:
                changes["other", len(changes)] = change
    return changes.values()
