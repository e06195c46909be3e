"""Broker registration and in-sync changes: what brokers send to the controller (KIP-631, KIP-497).

Declarations only, see `schema`. The fields are Kafka's own, which a test checks, except those with
tags from `OWN_TAG` on: the partitions whose replica on the broker is damaged, the ids by which
the controller detects that a log directory was restored from an older copy, and the partitions
on a disk that has failed. UnregisterBroker is for admins. Only brokers send the other requests,
which require CLUSTER_ACTION with an authorizer.
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.messages.produce_and_fetch import OWN_TAG
from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    string,
    uint16,
    uuid,
    uuid_array,
)


class DamagedPartition(Struct):
    """A partition whose replica on the broker lacks records that it had stored."""

    partition_index: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1)
    """The partition's leader epoch that the broker knows."""


class DamagedTopic(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid("0+")
    partitions: list[DamagedPartition] = array(DamagedPartition, "0+")


class RegisteredListener(Struct):
    """A listener of a broker: its name, address and security protocol."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")
    security_protocol: int = int16("0+")


class Feature(Struct):
    """The range of levels of a feature that a broker supports."""

    name: str = string("0+")
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class BrokerRegistrationRequest(Message, versions="0-4", flexible_from=0):
    """A broker process has started and registers.

    `previous_broker_epoch` is the epoch in which the broker was shut down in order; -1 if it was
    not shut down in order (KIP-966).
    """

    __response__: ClassVar[BrokerRegistrationResponse]
    broker_id: int = int32("0+")
    cluster_id: str = string("0+")
    incarnation_id: bytes = uuid("0+")
    listeners: list[RegisteredListener] = array(RegisteredListener, "0+")
    features: list[Feature] = array(Feature, "0+")
    rack: str | None = string("0+", nullable="0+")
    # For Kafka's migration from ZooKeeper; unused here.
    is_migrating_zk_broker: bool = boolean("1+")
    log_dirs: list[bytes] = uuid_array("2+")
    previous_broker_epoch: int = int64("3+", default=-1)
    damaged: list[DamagedTopic] = array(DamagedTopic, "0+", tag=OWN_TAG)
    directory_lives: list[bytes] = uuid_array("0+", tag=OWN_TAG + 1)
    """Ids of starts of the log directory; the last one is this process's own. The start that last
    registered is among them, unless the directory was restored from an older copy."""
    offline: list[DamagedTopic] = array(DamagedTopic, "0+", tag=OWN_TAG + 2)
    """The partitions whose disk on the broker has failed."""


class BrokerRegistrationResponse(Message, versions="0-4", flexible_from=0):
    """The epoch of the registration; -1 with an error.

    Errors: DUPLICATE_BROKER_REGISTRATION, INCONSISTENT_CLUSTER_ID, NOT_CONTROLLER, ...
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    broker_epoch: int = int64("0+", default=-1)


class BrokerHeartbeatRequest(Message, versions="0-1", flexible_from=0):
    """A broker is alive, and has applied the metadata log up to an offset."""

    __response__: ClassVar[BrokerHeartbeatResponse]
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    current_metadata_offset: int = int64("0+")
    want_fence: bool = boolean("0+")
    want_shut_down: bool = boolean("0+")
    # Directories that have failed (KIP-858), unused here. Kafka's controller finds their partitions
    # by the directory of each replica in the metadata, which brokers assign by AssignReplicasToDirs
    # before a replica may lead. Here that field has another use: the id of the data directory as a
    # whole, by which a replaced disk is detected. So the broker names the partitions themselves
    # (`offline`): no assignment precedes a leader, and a move between disks is the broker's own.
    offline_log_dirs: list[bytes] = uuid_array("1+", tag=0)
    damaged: list[DamagedTopic] = array(DamagedTopic, "0+", tag=OWN_TAG)
    offline: list[DamagedTopic] = array(DamagedTopic, "0+", tag=OWN_TAG + 2)
    """The partitions whose disk on the broker has failed; reported once after each failure."""


class BrokerHeartbeatResponse(Message, versions="0-1", flexible_from=0):
    """The controller's view of the broker.

    Errors: STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED, NOT_CONTROLLER.
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    is_caught_up: bool = boolean("0+")
    is_fenced: bool = boolean("0+", default=True)
    should_shut_down: bool = boolean("0+")


class UnregisterBrokerRequest(Message, versions="0", flexible_from=0):
    """Remove a broker from the cluster for good."""

    __response__: ClassVar[UnregisterBrokerResponse]
    broker_id: int = int32("0+")


class UnregisterBrokerResponse(Message, versions="0", flexible_from=0):
    """The result. Errors: BROKER_ID_NOT_REGISTERED, NOT_CONTROLLER."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class BrokerState(Struct):
    """A replica that is to be in sync, with the broker epoch that the leader knows (KIP-903)."""

    broker_id: int = int32("3+")
    broker_epoch: int = int64("3+", default=-1)


class ProposedPartition(Struct):
    """The in-sync replicas that a leader proposes for a partition."""

    partition_index: int = int32("0+")
    leader_epoch: int = int32("0+")
    # From version 3 on, each replica comes with its broker epoch, so that the controller can refuse
    # one whose broker has restarted since (KIP-903).
    new_isr: list[int] = int32_array("0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8("1+")
    # It grows with every change of the partition, so a proposal that does not know the last change
    # is refused (INVALID_UPDATE_VERSION).
    partition_epoch: int = int32("0+")


class ProposedTopic(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0-1")
    topic_id: bytes = uuid("2+")
    partitions: list[ProposedPartition] = array(ProposedPartition, "0+")


class AlterPartitionRequest(Message, versions="0-3", flexible_from=0):
    """The leader of partitions proposes their in-sync replicas.

    The controller accepts a proposal only for the leader epoch and the partition epoch in it.
    """

    __response__: ClassVar[AlterPartitionResponse]
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    topics: list[ProposedTopic] = array(ProposedTopic, "0+")


class AlteredPartition(Struct):
    """The state of a partition after the proposal.

    Errors: FENCED_LEADER_EPOCH, INVALID_UPDATE_VERSION, INELIGIBLE_REPLICA, ...
    """

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    isr: list[int] = int32_array("0+")
    leader_recovery_state: int = int8("1+")
    partition_epoch: int = int32("0+")


class AlteredTopic(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0-1")
    topic_id: bytes = uuid("2+")
    partitions: list[AlteredPartition] = array(AlteredPartition, "0+")


class AlterPartitionResponse(Message, versions="0-3", flexible_from=0):
    """The result per partition. Errors of the request: STALE_BROKER_EPOCH, NOT_CONTROLLER."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[AlteredTopic] = array(AlteredTopic, "0+")


class AllocateProducerIdsRequest(Message, versions="0", flexible_from=0):
    """A broker asks for a block of producer ids."""

    __response__: ClassVar[AllocateProducerIdsResponse]
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)


class AllocateProducerIdsResponse(Message, versions="0", flexible_from=0):
    """A block of producer ids that is never given out again. Errors: STALE_BROKER_EPOCH, ..."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id_start: int = int64("0+")
    producer_id_len: int = int32("0+")
