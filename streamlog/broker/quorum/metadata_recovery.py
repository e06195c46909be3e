"""The first records of a metadata log whose data directory already has partitions.

A broker that is alone keeps its topics when `__cluster_metadata-0` is lost: `topics.json` names
them, and their logs know which producer ids were given out. Everything else that the metadata log
held is gone: settings of brokers, quotas, users, ACLs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from streamlog.broker.quorum.metadata import TOPIC_RESOURCE
from streamlog.protocol.messages.metadata_log import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata_records import MetadataRecord
    from streamlog.broker.storage.log_directory import LogDirectory


def recover_records(directory: LogDirectory) -> Iterator[MetadataRecord]:
    """Yield the records that a directory amounts to; none for a new one."""
    own = [directory.node_id]
    for _, topic in sorted(directory.topics.items()):
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for key, value in sorted(topic.configs.items()):
            yield ConfigRecord(
                resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=key, value=value
            )
        for number, log in sorted(topic.partitions.items()):
            yield PartitionRecord(
                partition_id=number,
                topic_id=topic.topic_id,
                replicas=own,
                isr=own,
                leader=directory.node_id,
                leader_epoch=log.epochs.current,
                partition_epoch=0,
            )
    next_producer_id = directory.next_producer_id()
    if next_producer_id:
        yield ProducerIdsRecord(broker_id=directory.node_id, next_producer_id=next_producer_id)
