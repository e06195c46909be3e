"""Fills a request of any API with values that mean something on a broker with one topic.

Every list has one element, and each field the value that its name stands for. What a field means
in one API alone stands in `SPECIAL`, by the API and the path of the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from streamlog.protocol.api_table import Api
from streamlog.protocol.codec import encode_versioned
from streamlog.protocol.messages.classic_groups import ConsumerProtocolSubscription
from streamlog.protocol.schema import Field, Message, Struct, StructType
from streamlog.records.batch import encode_batch

MAX_BYTES: Final = 1 << 20
TIMEOUT_MS: Final = 10_000
HOUR_MS: Final = 3_600_000
CONSUMER: Final = "consumer"


class Surroundings(NamedTuple):
    """What is on the broker, and a number that no other request has."""

    topic: str
    topic_id: bytes
    number: int

    @property
    def fresh(self) -> str:
        """The name of something that is not there yet."""
        return f"fresh-{self.number}"


Value = Callable[[Surroundings], Any]

BY_NAME: Final[Mapping[str, Value]] = {
    "name": lambda at: at.topic,
    "topic": lambda at: at.topic,
    "topic_name": lambda at: at.topic,
    "topic_names": lambda at: [at.topic],
    "topic_id": lambda at: at.topic_id,
    "group_id": lambda at: at.fresh,
    "groups": lambda at: [at.fresh],
    "groups_names": lambda at: [at.fresh],
    "group_ids": lambda at: [at.fresh],
    "transactional_id": lambda at: at.fresh,
    "transactional_ids": lambda at: [at.fresh],
    "group_instance_id": lambda at: f"instance-{at.number}",
    "reason": lambda _: "tried",
    "session_timeout_ms": lambda _: TIMEOUT_MS,
    "rebalance_timeout_ms": lambda _: TIMEOUT_MS,
    "protocol_type": lambda _: CONSUMER,
    "protocol_name": lambda _: "range",
    "generation_id": lambda _: 1,
    "generation_id_or_member_epoch": lambda _: -1,
    "replica_id": lambda _: -1,
    "max_bytes": lambda _: MAX_BYTES,
    "partition_max_bytes": lambda _: MAX_BYTES,
    "timeout_ms": lambda _: TIMEOUT_MS,
    "transaction_timeout_ms": lambda _: TIMEOUT_MS,
    "num_partitions": lambda _: 1,
    "replication_factor": lambda _: 1,
    "producer_id": lambda _: -1,
    "producer_epoch": lambda _: -1,
    "current_leader_epoch": lambda _: -1,
    "last_fetched_epoch": lambda _: -1,
    "leader_epoch": lambda _: -1,
    "committed_leader_epoch": lambda _: -1,
    "session_epoch": lambda _: -1,
    "log_start_offset": lambda _: -1,
    "retention_time_ms": lambda _: -1,
    "timestamp": lambda _: -1,
    "partition_indexes": lambda _: [0],
    "partitions": lambda _: [0],
    "principal": lambda _: "User:tried",
    "host": lambda _: "*",
    "replicas": lambda _: [1],
    "response_partition_limit": lambda _: 100,
}
"""What a field of this name holds; the others hold zero, an empty text or an empty list."""


def _subscription(_: Surroundings) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=["there"]), 1)


SPECIAL: Final[Mapping[tuple[str, str], Value]] = {
    ("Produce", "transactional_id"): lambda _: None,
    ("Produce", "acks"): lambda _: -1,
    ("Produce", "topic_data.partition_data.records"): lambda _: encode_batch(
        [(1_700_000_000_000, b"key", b"value", ())]
    ),
    ("Fetch", "cluster_id"): lambda _: None,
    ("Fetch", "forgotten_topics_data"): lambda _: [],
    ("Fetch", "replica_state"): lambda _: None,
    ("FindCoordinator", "key"): lambda at: at.fresh,
    ("FindCoordinator", "coordinator_keys"): lambda at: [at.fresh],
    ("JoinGroup", "protocols.name"): lambda _: "range",
    ("JoinGroup", "protocols.metadata"): _subscription,
    ("LeaveGroup", "member_id"): lambda _: "nobody",
    ("SyncGroup", "member_id"): lambda _: "nobody",
    ("Heartbeat", "member_id"): lambda _: "nobody",
    ("LeaveGroup", "members.member_id"): lambda _: "nobody",
    ("OffsetCommit", "group_instance_id"): lambda _: None,
    ("OffsetFetch", "groups.member_id"): lambda _: None,
    ("OffsetFetch", "groups.member_epoch"): lambda _: -1,
    ("TxnOffsetCommit", "group_instance_id"): lambda _: None,
    ("TxnOffsetCommit", "producer_id"): lambda _: 1_000_000,
    ("TxnOffsetCommit", "producer_epoch"): lambda _: 0,
    ("TxnOffsetCommit", "generation_id"): lambda _: -1,
    ("AddPartitionsToTxn", "producer_id"): lambda _: 1_000_000,
    ("AddPartitionsToTxn", "producer_epoch"): lambda _: 0,
    ("AddOffsetsToTxn", "producer_id"): lambda _: 1_000_000,
    ("AddOffsetsToTxn", "producer_epoch"): lambda _: 0,
    ("EndTxn", "producer_id"): lambda _: 1_000_000,
    ("EndTxn", "producer_epoch"): lambda _: 0,
    ("WriteTxnMarkers", "markers"): lambda _: [],
    ("SaslHandshake", "mechanism"): lambda _: "PLAIN",
    ("ApiVersions", "client_software_name"): lambda _: "tried",
    ("ApiVersions", "client_software_version"): lambda _: "1",
    ("CreateTopics", "topics.name"): lambda at: at.fresh,
    ("CreateTopics", "topics.assignments"): lambda _: [],
    ("CreateTopics", "topics.configs.name"): lambda _: "retention.ms",
    ("CreateTopics", "topics.configs.value"): lambda _: str(HOUR_MS),
    ("DeleteTopics", "topics.name"): lambda at: at.fresh,
    ("DeleteTopics", "topics.topic_id"): lambda at: at.number.to_bytes(16, "big"),
    ("DeleteTopics", "topic_names"): lambda at: [at.fresh],
    ("DescribeAcls", "resource_type_filter"): lambda _: 2,
    ("DescribeAcls", "pattern_type_filter"): lambda _: 3,
    ("DescribeAcls", "operation"): lambda _: 3,
    ("DescribeAcls", "permission_type"): lambda _: 3,
    ("CreateAcls", "creations.resource_type"): lambda _: 2,
    ("CreateAcls", "creations.resource_name"): lambda at: at.topic,
    ("CreateAcls", "creations.resource_pattern_type"): lambda _: 3,
    ("CreateAcls", "creations.operation"): lambda _: 3,
    ("CreateAcls", "creations.permission_type"): lambda _: 3,
    ("DeleteAcls", "filters.resource_type_filter"): lambda _: 2,
    ("DeleteAcls", "filters.pattern_type_filter"): lambda _: 3,
    ("DeleteAcls", "filters.operation"): lambda _: 3,
    ("DeleteAcls", "filters.permission_type"): lambda _: 3,
    ("DescribeConfigs", "resources.resource_type"): lambda _: 2,
    ("DescribeConfigs", "resources.resource_name"): lambda at: at.topic,
    ("DescribeConfigs", "resources.configuration_keys"): lambda _: ["retention.ms"],
    ("AlterConfigs", "resources.resource_type"): lambda _: 2,
    ("AlterConfigs", "resources.resource_name"): lambda at: at.topic,
    ("AlterConfigs", "resources.configs.name"): lambda _: "retention.ms",
    ("AlterConfigs", "resources.configs.value"): lambda _: str(HOUR_MS),
    ("IncrementalAlterConfigs", "resources.resource_type"): lambda _: 2,
    ("IncrementalAlterConfigs", "resources.resource_name"): lambda at: at.topic,
    ("IncrementalAlterConfigs", "resources.configs.name"): lambda _: "retention.ms",
    ("IncrementalAlterConfigs", "resources.configs.value"): lambda _: str(HOUR_MS),
    ("SaslAuthenticate", "auth_bytes"): lambda _: b"\0user\0password",
    ("CreatePartitions", "topics.count"): lambda _: 2,
    ("CreatePartitions", "validate_only"): lambda _: True,
    ("CreatePartitions", "topics.assignments.broker_ids"): lambda _: [1],
    ("ElectLeaders", "topic_partitions.partitions"): lambda _: [0],
    ("DescribeClientQuotas", "components.entity_type"): lambda _: "user",
    ("DescribeClientQuotas", "components.match"): lambda _: "tried",
    ("AlterClientQuotas", "entries.entity.entity_type"): lambda _: "user",
    ("AlterClientQuotas", "entries.entity.entity_name"): lambda _: "tried",
    ("AlterClientQuotas", "entries.ops.key"): lambda _: "producer_byte_rate",
    ("AlterClientQuotas", "entries.ops.value"): lambda _: 1e9,
    ("DescribeUserScramCredentials", "users.name"): lambda _: "tried",
    ("AlterUserScramCredentials", "deletions.name"): lambda _: "tried",
    ("AlterUserScramCredentials", "deletions.mechanism"): lambda _: 1,
    ("AlterUserScramCredentials", "upsertions"): lambda _: [],
    ("DescribeQuorum", "topics.topic_name"): lambda _: "__cluster_metadata",
    ("UnregisterBroker", "broker_id"): lambda _: 77,
    ("ListTransactions", "duration_filter"): lambda _: -1,
    ("ConsumerGroupHeartbeat", "member_id"): lambda at: f"member-{at.number}",
    ("ConsumerGroupHeartbeat", "instance_id"): lambda _: None,
    ("ConsumerGroupHeartbeat", "rack_id"): lambda _: "rack",
    ("ConsumerGroupHeartbeat", "server_assignor"): lambda _: "uniform",
    ("ConsumerGroupHeartbeat", "subscribed_topic_names"): lambda at: [at.topic],
    ("ConsumerGroupHeartbeat", "subscribed_topic_regex"): lambda _: None,
    ("ConsumerGroupHeartbeat", "topic_partitions"): lambda _: [],
    ("DescribeTopicPartitions", "cursor"): lambda _: None,
}


def sample(api: Api, version: int, at: Surroundings) -> Message:
    """A request in which nothing that the version has is without a meaning."""
    request = _filled(api.request, api.name, "", version, at)
    if not isinstance(request, Message):
        raise TypeError(f"{api.request.__name__} is not a message")
    return request


def set_value(api: Api, path: str, field: Field, version: int, at: Surroundings) -> Any:
    """What a field holds that is set, though the sample leaves it out."""
    known = SPECIAL.get((api.name, path))
    value = None if known is None else known(at)
    if value is not None:
        return value
    if field.name in BY_NAME and not isinstance(field.item, StructType):
        return BY_NAME[field.name](at)
    return _plain(field, api.name, path, version, at)


def _filled(declared: StructType, api: str, above: str, version: int, at: Surroundings) -> Struct:
    made: Struct = declared()
    for field in declared.__fields__:
        if version not in field.versions or field.tag is not None:
            continue
        path = f"{above}{field.name}"
        known = SPECIAL.get((api, path))
        if known is None and not isinstance(field.item, StructType):
            known = BY_NAME.get(field.name)
        value = _plain(field, api, path, version, at) if known is None else known(at)
        setattr(made, field.name, value)
    return made


def _plain(field: Field, api: str, path: str, version: int, at: Surroundings) -> Any:
    match field.kind, field.item:
        case "array", StructType() as item:
            return [_filled(item, api, f"{path}.", version, at)]
        case "struct", StructType() as item:
            return _filled(item, api, f"{path}.", version, at)
        case "array", _:
            return []
        case "string", _:
            return "tried"
        case (("bytes" | "records"), _):
            return b""
    return field.default
