"""What brokers tell the controller: that they are there (KIP-631), who is in sync (KIP-497).

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks, but for
those from `OWN_TAG` on: partitions of which a broker has found its copy damaged, and by which the
controller tells a log directory from an older copy of it. Clients never send any of these but
UnregisterBroker; with an authorizer they take CLUSTER_ACTION.
"""

from __future__ import annotations

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
    """One whose copy on the broker lacks, below what it had counted, what it had."""

    partition_index: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1)
    """Of the partition, as far as the broker knows."""


class DamagedTopic(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid("0+")
    partitions: list[DamagedPartition] = array(DamagedPartition, "0+")


class RegisteredListener(Struct):
    """Where a broker is reached, by whom."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")
    security_protocol: int = int16("0+")


class Feature(Struct):
    """A range of levels of a feature that a broker knows."""

    name: str = string("0+")
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class BrokerRegistrationRequest(Message, versions="0-4", flexible_from=0):
    """A broker process has started.

    `previous_broker_epoch` is the one in which it was shut down in order, -1 if it was not
    (KIP-966).
    """

    broker_id: int = int32("0+")
    cluster_id: str = string("0+")
    incarnation_id: bytes = uuid("0+")
    listeners: list[RegisteredListener] = array(RegisteredListener, "0+")
    features: list[Feature] = array(Feature, "0+")
    rack: str | None = string("0+", nullable="0+")
    is_migrating_zk_broker: bool = boolean("1+")
    log_dirs: list[bytes] = uuid_array("2+")
    previous_broker_epoch: int = int64("3+", default=-1)
    damaged: list[DamagedTopic] = array(DamagedTopic, "0+", tag=OWN_TAG)
    directory_lives: list[bytes] = uuid_array("0+", tag=OWN_TAG + 1)
    """Starts of the log directory: the last one that registered is among them unless the directory
    was put back from a copy; this process's own is the last."""


class BrokerRegistrationResponse(Message, versions="0-4", flexible_from=0):
    """Errors: DUPLICATE_BROKER_REGISTRATION, INCONSISTENT_CLUSTER_ID, NOT_CONTROLLER, ..."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    broker_epoch: int = int64("0+", default=-1)


class BrokerHeartbeatRequest(Message, versions="0-1", flexible_from=0):
    """A broker lives, and has applied the metadata log up to an offset."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    current_metadata_offset: int = int64("0+")
    want_fence: bool = boolean("0+")
    want_shut_down: bool = boolean("0+")
    offline_log_dirs: list[bytes] = uuid_array("1+", tag=0)
    damaged: list[DamagedTopic] = array(DamagedTopic, "0+", tag=OWN_TAG)


class BrokerHeartbeatResponse(Message, versions="0-1", flexible_from=0):
    """Errors: STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED, NOT_CONTROLLER."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    is_caught_up: bool = boolean("0+")
    is_fenced: bool = boolean("0+", default=True)
    should_shut_down: bool = boolean("0+")


class UnregisterBrokerRequest(Message, versions="0", flexible_from=0):
    """A broker is gone for good."""

    broker_id: int = int32("0+")


class UnregisterBrokerResponse(Message, versions="0", flexible_from=0):
    """Errors: BROKER_ID_NOT_REGISTERED, NOT_CONTROLLER."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class BrokerState(Struct):
    """A replica that is to be in sync, as the leader knows its broker (KIP-903)."""

    broker_id: int = int32("3+")
    broker_epoch: int = int64("3+", default=-1)


class ProposedPartition(Struct):
    """Who is to be in sync."""

    partition_index: int = int32("0+")
    leader_epoch: int = int32("0+")
    new_isr: list[int] = int32_array("0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8("1+")
    partition_epoch: int = int32("0+")


class ProposedTopic(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0-1")
    topic_id: bytes = uuid("2+")
    partitions: list[ProposedPartition] = array(ProposedPartition, "0+")


class AlterPartitionRequest(Message, versions="0-3", flexible_from=0):
    """The leader of partitions proposes who is in sync, each against an epoch it knows."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    topics: list[ProposedTopic] = array(ProposedTopic, "0+")


class AlteredPartition(Struct):
    """Errors: FENCED_LEADER_EPOCH, INVALID_UPDATE_VERSION, INELIGIBLE_REPLICA, ..."""

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
    """Errors of the whole: STALE_BROKER_EPOCH, NOT_CONTROLLER."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[AlteredTopic] = array(AlteredTopic, "0+")


class AllocateProducerIdsRequest(Message, versions="0", flexible_from=0):
    """A broker needs ids for producers."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)


class AllocateProducerIdsResponse(Message, versions="0", flexible_from=0):
    """A block of ids that nobody else ever gets. Errors: STALE_BROKER_EPOCH, ..."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id_start: int = int64("0+")
    producer_id_len: int = int32("0+")
