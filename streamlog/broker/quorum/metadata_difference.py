"""What has changed between two images of the cluster, for a node that has skipped the log between.

A node that was away for long is sent a snapshot instead of the records it has missed. Whoever
acts on changes hears of them as if they had been replayed: what is gone first, then what is there
and is new or other than it was. Of settings, quotas, users and ACLs all are named: to look again
at one that is as it was does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from streamlog.broker.quorum.metadata import ClusterMetadata
from streamlog.broker.quorum.metadata_changes import (
    AclsChanged,
    BrokerChanged,
    ConfigChanged,
    MetadataChange,
    PartitionChanged,
    QuotaChanged,
    TopicCreated,
    TopicDeleted,
    UserChanged,
)


def changes_between(before: ClusterMetadata, after: ClusterMetadata) -> list[MetadataChange]:
    """What leads from one image to the other."""
    return [*_gone(before, after), *_there(before, after)]


def _gone(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[MetadataChange]:
    for topic_id, topic in before.topics.items():
        if topic_id not in after.topics:
            yield TopicDeleted(topic_id, topic.name, tuple(topic.partitions))
    for broker_id, broker in before.brokers.items():
        if broker_id not in after.brokers:
            yield BrokerChanged(broker_id, broker, None)
    for change in _made(before):
        match change:
            case ConfigChanged(resource_type=kind, resource_name=name, name=key):
                if key not in after.config(kind, name):
                    yield ConfigChanged(kind, name, key, None)
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
            case _:
                yield change


def _made(image: ClusterMetadata) -> Iterable[MetadataChange]:
    """What makes an image out of nothing; of what changes several times the last counts."""
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
