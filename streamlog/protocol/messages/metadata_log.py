"""The records of `__cluster_metadata`, as Kafka declares them (KIP-631 and later).

Declarations only, see `schema`. Kafka declares these records apart from its requests
(metadata/src/main/resources). The fields here are those that Kafka 4.0 writes, except the fields
under `OWN_TAG`, which Kafka skips, and one record type of our own. Not done here: the frame around
a record (`broker/quorum/metadata/metadata_records`).
"""

from __future__ import annotations

from streamlog.protocol.messages.produce_and_fetch import OWN_TAG
from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    secret,
    string,
    uint16,
    uuid,
    uuid_array,
)

NO_CHANGE = -2
"""The value of `leader` in a change that does not concern the leader."""


class BrokerEndpoint(Struct):
    """A listener of a broker: its name, address and security protocol."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")
    security_protocol: int = int16("0+")


class BrokerFeature(Struct):
    """The range of levels of a feature that a broker supports."""

    name: str = string("0+")
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class RegisterBrokerRecord(Message, versions="0-3", flexible_from=0):
    """A broker process has registered.

    An epoch of -1 stands for the offset of this record.
    """

    broker_id: int = int32("0+")
    is_migrating_zk_broker: bool = boolean("2+")
    incarnation_id: bytes = uuid("0+")
    broker_epoch: int = int64("0+")
    end_points: list[BrokerEndpoint] = array(BrokerEndpoint, "0+")
    features: list[BrokerFeature] = array(BrokerFeature, "0+")
    rack: str | None = string("0+", nullable="0+")
    # A broker begins fenced: it may lead only after it has caught up with the metadata (KIP-631).
    fenced: bool = boolean("0+", default=True)
    in_controlled_shutdown: bool = boolean("1+")
    log_dirs: list[bytes] = uuid_array("3+", tag=0)
    directory_life: bytes = uuid("0+", tag=OWN_TAG)
    """The id of this start of the log directory; all zero if the broker has sent none."""


class UnregisterBrokerRecord(Message, versions="0", flexible_from=0):
    """A broker is removed from the cluster for good."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+")


class BrokerRegistrationChangeRecord(Message, versions="0-2", flexible_from=0):
    """A broker is fenced (1) or unfenced (-1), or begins to shut down (1); 0 means no change."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+")
    fenced: int = int8("0+", tag=0)
    in_controlled_shutdown: int = int8("1+", tag=1)
    log_dirs: list[bytes] = uuid_array("2+", tag=2)


class TopicRecord(Message, versions="0", flexible_from=0):
    """A topic is created; records of its partitions follow."""

    name: str = string("0+")
    topic_id: bytes = uuid("0+")


class RemoveTopicRecord(Message, versions="0", flexible_from=0):
    """A topic is deleted, with its partitions and settings."""

    topic_id: bytes = uuid("0+")


class PartitionRecord(Message, versions="0-2", flexible_from=0):
    """The whole state of a partition, written when it is created and in snapshots."""

    partition_id: int = int32("0+", default=-1)
    topic_id: bytes = uuid("0+")
    replicas: list[int] = int32_array("0+")
    isr: list[int] = int32_array("0+")
    removing_replicas: list[int] = int32_array("0+")
    adding_replicas: list[int] = int32_array("0+")
    leader: int = int32("0+", default=-1)
    # In Kafka 1 while a leader recovers after an unclean election (KIP-704); here always 0.
    leader_recovery_state: int = int8("0+", tag=0)
    leader_epoch: int = int32("0+", default=-1)
    partition_epoch: int = int32("0+", default=-1)
    # One directory id per replica, in the order of `replicas` (KIP-858).
    directories: list[bytes] = uuid_array("1+")
    # KIP-966: out of sync, but with all committed records. Null and empty differ: null is the
    # value that is not written.
    eligible_leader_replicas: list[int] | None = int32_array(
        "2+", nullable="2+", tag=1, starts_null=True
    )
    last_known_elr: list[int] | None = int32_array("2+", nullable="2+", tag=2, starts_null=True)
    last_unclean_epoch: int = int32("0+", default=-1, tag=OWN_TAG)


class PartitionChangeRecord(Message, versions="0-2", flexible_from=0):
    """The fields of a partition that change; None, or `NO_CHANGE` for the leader, means no change.

    `is_unclean`: the leader was elected although it may lack acknowledged records.
    """

    partition_id: int = int32("0+", default=-1)
    topic_id: bytes = uuid("0+")
    # An empty list is a change, to no replicas; so the default has to be null.
    isr: list[int] | None = int32_array("0+", nullable="0+", tag=0, starts_null=True)
    leader: int = int32("0+", default=NO_CHANGE, tag=1)
    replicas: list[int] | None = int32_array("0+", nullable="0+", tag=2, starts_null=True)
    removing_replicas: list[int] | None = int32_array("0+", nullable="0+", tag=3, starts_null=True)
    adding_replicas: list[int] | None = int32_array("0+", nullable="0+", tag=4, starts_null=True)
    leader_recovery_state: int = int8("0+", default=-1, tag=5)
    eligible_leader_replicas: list[int] | None = int32_array(
        "2+", nullable="2+", tag=6, starts_null=True
    )
    last_known_elr: list[int] | None = int32_array("2+", nullable="2+", tag=7, starts_null=True)
    directories: list[bytes] | None = uuid_array("1+", nullable="1+", tag=8, starts_null=True)
    is_unclean: bool = boolean("0+", tag=OWN_TAG)
    # With a leader: its new epoch is not below this one.
    least_leader_epoch: int = int32("0+", default=-1, tag=OWN_TAG + 1)


class ConfigRecord(Message, versions="0", flexible_from=0):
    """A setting of a resource; a value of None returns it to its default."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class ProducerIdsRecord(Message, versions="0", flexible_from=0):
    """The producer ids below `next_producer_id` were given to brokers."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    next_producer_id: int = int64("0+")


class QuotaEntityData(Struct):
    """A part of a quota's entity; a name of None is the default of the type."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class ClientQuotaRecord(Message, versions="0", flexible_from=0):
    """The limit of an entity, or its removal."""

    entity: list[QuotaEntityData] = array(QuotaEntityData, "0+")
    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")


class UserScramCredentialRecord(Message, versions="0", flexible_from=0):
    """A user's SCRAM credential for one mechanism."""

    name: str = string("0+")
    mechanism: int = int8("0+")
    salt: bytes = secret("0+")
    stored_key: bytes = secret("0+")
    server_key: bytes = secret("0+")
    iterations: int = int32("0+")


class RemoveUserScramCredentialRecord(Message, versions="0", flexible_from=0):
    """The removal of a user's credential for one mechanism."""

    name: str = string("0+")
    mechanism: int = int8("0+")


class AccessControlEntryRecord(Message, versions="0", flexible_from=0):
    """An ACL is added: it allows or denies an operation to a principal."""

    id: bytes = uuid("0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("0+")
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class RemoveAccessControlEntryRecord(Message, versions="0", flexible_from=0):
    """An ACL is removed."""

    id: bytes = uuid("0+")


class NoOpRecord(Message, versions="0", flexible_from=0):
    """No change."""


class UserSecretRecord(Message, versions="0", flexible_from=0):
    """Our own: the secret from which made-up credentials of unknown users are derived.

    See `broker/security/users`.
    """

    secret: bytes = secret("0+")


class LinkSetting(Struct):
    """A setting of a link."""

    name: str = string("0+")
    value: str = string("0+")


class MirrorLinkRecord(Message, versions="0", flexible_from=0):
    """Our own: the whole state of a link, from which topics are mirrored."""

    link_id: bytes = uuid("0+")
    name: str = string("0+")
    source_cluster_id: str = string("0+")
    settings: list[LinkSetting] = array(LinkSetting, "0+")


class RemoveMirrorLinkRecord(Message, versions="0", flexible_from=0):
    """Our own: a link is removed; its topics stay."""

    link_id: bytes = uuid("0+")


class MirrorEra(Struct):
    """The leader epochs from `leader_epoch` on, which leaders in this cluster began."""

    cluster_id: str = string("0+")
    leader_epoch: int = int32("0+")
    # The topic there; all zero if that cluster has no topic ids.
    topic_id: bytes = uuid("0+")


class MirrorCut(Struct):
    """Where a promotion cuts a partition."""

    partition: int = int32("0+")
    offset: int = int64("0+")


class MirrorTopicRecord(Message, versions="0", flexible_from=0):
    """Our own: the whole state of a topic as a mirror, or as one that was a mirror."""

    topic_id: bytes = uuid("0+")
    link_id: bytes = uuid("0+")
    source_topic: str = string("0+")
    source_topic_id: bytes = uuid("0+")
    # See `MirrorState`.
    state: int = int8("0+")
    reason: str = string("0+")
    # In ms since 1970.
    since_ms: int = int64("0+")
    eras: list[MirrorEra] = array(MirrorEra, "0+")
    # The number of the last promotion without loss that was begun.
    attempt: int = int64("0+", default=0)
    # Eras whose records the log here may have, and the source has not.
    strays: list[MirrorEra] = array(MirrorEra, "0+", tag=0)
    # Those of the promotion, if it was that of an app.
    cuts: list[MirrorCut] = array(MirrorCut, "0+", tag=1)


class MarkedPartition(Struct):
    """What is noted of a partition of a source."""

    topic: str = string("0+")
    partition: int = int32("0+")
    scan_from: int = int64("0+")
    whole_below: int = int64("0+")
    # Of the log of transactions only.
    settled_below: int = int64("0+", default=-1)


class AppMarkRecord(Message, versions="0", flexible_from=0):
    """Our own: up to where a link's apps were copied as a whole; it replaces the one before."""

    link_id: bytes = uuid("0+")
    partitions: list[MarkedPartition] = array(MarkedPartition, "0+")


class TopicSealRecord(Message, versions="0", flexible_from=0):
    """Our own: whether a topic takes records, or another cluster takes it over."""

    topic_id: bytes = uuid("0+")
    # See `SealState`.
    state: int = int8("0+")
    target_cluster_id: str = string("0+")
    # The number of the promotion there.
    attempt: int = int64("0+", default=0)
    # In ms since 1970.
    since_ms: int = int64("0+")
