"""Predecessor: what a data directory held before there was a metadata log, as its first records.

Topics, altered settings, quotas, users, ACLs and the next producer id were files of their own
then (`storage/catalog`). They go into the log as one batch, so that they are in it together or
not at all, and the files go away after that; a start in between finds them again, and removes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from streamlog.broker.quorum.metadata import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    acl_record,
    credential_record,
    quota_record,
)
from streamlog.broker.security.acls import Acls
from streamlog.broker.security.users import Users
from streamlog.protocol.messages.metadata_log import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
    UserSecretRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamlog.broker.quorum.metadata_records import MetadataRecord
    from streamlog.broker.storage.log_directory import LogDirectory


def records_of(directory: LogDirectory) -> Iterator[MetadataRecord]:
    """All of it; nothing for a new directory.

    Raises:
        CorruptData: one of the files is damaged.
        LogDirectoryError: one can't be read.
    """
    yield from _topics(directory)
    files = directory.predecessors()
    altered = files.settings()
    yield from _settings(BROKER_RESOURCE, ALL_BROKERS, altered.default)
    yield from _settings(BROKER_RESOURCE, str(directory.node_id), altered.node)
    for entity in altered.quotas:
        for key, bytes_per_s in altered.quotas.of(entity).items():
            yield quota_record(entity, key, bytes_per_s)
    users = files.users(Users.of_content)
    if users is not None:
        yield UserSecretRecord(secret=users.secret)
        for name in users.names:
            for credential in users.of(name).values():
                yield credential_record(name, credential)
    acls = files.acls(Acls.of_content)
    for acl in () if acls is None else acls.all:
        yield acl_record(acl)
    next_producer_id = files.next_producer_id()
    if next_producer_id:
        yield ProducerIdsRecord(broker_id=directory.node_id, next_producer_id=next_producer_id)


def _topics(directory: LogDirectory) -> Iterator[MetadataRecord]:
    own = [directory.node_id]
    for _, topic in sorted(directory.topics.items()):
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        yield from _settings(TOPIC_RESOURCE, topic.name, topic.configs)
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


def _settings(kind: int, name: str, texts: Mapping[str, str]) -> Iterator[MetadataRecord]:
    for key, value in sorted(texts.items()):
        yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
