"""MetadataChange: what a record of the metadata log has changed, for who acts on it.

`ClusterMetadata.replay` returns one for each record. A broker creates and deletes logs, becomes
leader or follower and takes over settings by these, in the order of the log; it never compares
images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from streamlog.broker.quorum.registrations import BrokerRegistration, PartitionRegistration
    from streamlog.broker.quota_table import Entity


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A broker was registered (None before), changed, or unregistered (None after)."""

    broker_id: int
    before: BrokerRegistration | None
    after: BrokerRegistration | None


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic is there; its partitions follow."""

    topic_id: bytes
    name: str


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic is gone, with these partitions."""

    topic_id: bytes
    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A partition is new (None before), or other than it was."""

    topic_id: bytes
    topic: str
    partition: int
    before: PartitionRegistration | None
    after: PartitionRegistration


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """A setting of a resource has another value, or none of its own."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class QuotaChanged:
    """Somebody has other bounds."""

    entity: Entity


@dataclass(frozen=True, slots=True)
class UserChanged:
    """A user's credentials are other ones; with "" what is common to all users is."""

    name: str


@dataclass(frozen=True, slots=True)
class AclsChanged:
    """Other ACLs hold."""


@dataclass(frozen=True, slots=True)
class ProducerIdsTaken:
    """Producer ids below `next_producer_id` are given out."""

    broker_id: int
    next_producer_id: int


MetadataChange: TypeAlias = (
    BrokerChanged
    | TopicCreated
    | TopicDeleted
    | PartitionChanged
    | ConfigChanged
    | QuotaChanged
    | UserChanged
    | AclsChanged
    | ProducerIdsTaken
)
