"""Kafka's error codes: number, name, whether a retry may help, and meaning.

Numbers, names and the retriable flag are Kafka's (`Errors` in its sources); a test compares them
with another client's. `error_for` turns a number into the exception that callers get. The code in
this package decides by the exception's flags, not by its class. An unknown number, from a newer
broker, becomes an error that is not retriable.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

from streamlog import errors

_RETRIABLE: Final = "retriable"


class ErrorCode(IntEnum):
    """An error code; `retriable` is Kafka's flag for errors that a later retry may not meet."""

    retriable: bool
    meaning: str

    def __new__(cls, code: int, meaning: str = "", policy: str = "") -> Self:
        """Create a member from a row of the table below."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.retriable = policy == _RETRIABLE
        return member

    # Number, meaning, and `_RETRIABLE` where a retry may succeed.
    UNKNOWN_SERVER_ERROR = -1, "the broker failed unexpectedly; see its log"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "the offset is before the log's start or past its end"
    CORRUPT_MESSAGE = 2, "the batch's checksum, size or format is wrong", _RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "the broker has no such topic or partition", _RETRIABLE
    INVALID_FETCH_SIZE = 4, "the fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader at the moment", _RETRIABLE
    NOT_LEADER_OR_FOLLOWER = (
        6,
        "the broker does not lead this partition",
        _RETRIABLE,
    )
    REQUEST_TIMED_OUT = 7, "the request timed out; it may still take effect", _RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, "the replica is not available", _RETRIABLE
    MESSAGE_TOO_LARGE = 10, "the batch is larger than the topic accepts"
    STALE_CONTROLLER_EPOCH = 11, "the controller has been replaced"
    OFFSET_METADATA_TOO_LARGE = 12, "the metadata of the committed offset is too long"
    NETWORK_EXCEPTION = 13, "the connection was closed before the answer", _RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still reading its log", _RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "there is no coordinator at the moment", _RETRIABLE
    NOT_COORDINATOR = 16, "this broker does not coordinate the group", _RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "the topic's name is not valid, or the topic is internal"
    RECORD_LIST_TOO_LARGE = 18, "the batches are larger than a segment"
    NOT_ENOUGH_REPLICAS = 19, "fewer replicas are in sync than are required", _RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "written, but to fewer replicas than are required",
        _RETRIABLE,
    )
    INVALID_REQUIRED_ACKS = 21, "acks is not -1, 0 or 1"
    ILLEGAL_GENERATION = 22, "the group has another generation now"
    INCONSISTENT_GROUP_PROTOCOL = 23, "the member has no assignor in common with the others"
    INVALID_GROUP_ID = 24, "the group's name is not valid"
    UNKNOWN_MEMBER_ID = 25, "the group does not know this member"
    INVALID_SESSION_TIMEOUT = 26, "the session timeout is outside the range that the broker accepts"
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing: join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the offset with its metadata is too large to be stored"
    TOPIC_AUTHORIZATION_FAILED = 29, "not allowed on this topic"
    GROUP_AUTHORIZATION_FAILED = 30, "not allowed on this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, "not allowed on this cluster"
    INVALID_TIMESTAMP = (
        32,
        (
            "the timestamp is out of the topic's range (message.timestamp.after.max.ms,"
            " message.timestamp.before.max.ms), or may not be set by a client"
        ),
    )
    UNSUPPORTED_SASL_MECHANISM = 33, "the broker does not accept this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, "the request is not valid at this point of the authentication"
    UNSUPPORTED_VERSION = 35, "the broker does not serve this version"
    TOPIC_ALREADY_EXISTS = 36, "a topic of this name exists already"
    INVALID_PARTITIONS = 37, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = (
        38,
        "the replication factor is not valid",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, "the assignment of replicas is not valid"
    INVALID_CONFIG = 40, "a setting is not valid"
    NOT_CONTROLLER = 41, "this broker is not the controller", _RETRIABLE
    INVALID_REQUEST = 42, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the batches' format on the broker does not allow it"
    POLICY_VIOLATION = 44, "the broker's policy forbids it"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "a batch before this one is missing"
    DUPLICATE_SEQUENCE_NUMBER = 46, "the batch was already written"
    INVALID_PRODUCER_EPOCH = 47, "the producer has an old epoch: another one has taken over"
    INVALID_TXN_STATE = 48, "the transaction is not in a state that allows it"
    INVALID_PRODUCER_ID_MAPPING = 49, "the producer id does not belong to this transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, "the transaction timeout is longer than the broker accepts"
    CONCURRENT_TRANSACTIONS = (
        51,
        "the previous transaction is still being completed",
        _RETRIABLE,
    )
    TRANSACTION_COORDINATOR_FENCED = 52, "the transaction coordinator has been replaced"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "not allowed to use this transactional id"
    SECURITY_DISABLED = 54, "security is not enabled on the broker"
    OPERATION_NOT_ATTEMPTED = 55, "not attempted, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, "the broker's disk failed", _RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, "the credentials are wrong"
    UNKNOWN_PRODUCER_ID = 59, "the broker does not remember this producer"
    REASSIGNMENT_IN_PROGRESS = 60, "the partition is being moved already"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "the delegation token belongs to another principal"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        "not allowed on a connection of this kind",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "not allowed on this delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "the kind of principal is not supported"
    NON_EMPTY_GROUP = 68, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, "the broker does not know this fetch session", _RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "the fetch session has another epoch", _RETRIABLE
    LISTENER_NOT_FOUND = 72, "the leader does not have this listener", _RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "topics can't be deleted on this cluster"
    FENCED_LEADER_EPOCH = (
        74,
        "the client knows only an older leader epoch: look up metadata again",
        _RETRIABLE,
    )
    UNKNOWN_LEADER_EPOCH = (
        75,
        "the client knows a newer leader epoch than this broker",
        _RETRIABLE,
    )
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        "this version does not support the compression of the batches",
    )
    STALE_BROKER_EPOCH = 77, "the broker has registered again since then"
    OFFSET_NOT_AVAILABLE = (
        78,
        "the new leader has no high watermark yet",
        _RETRIABLE,
    )
    MEMBER_ID_REQUIRED = 79, "join again with the member id in this answer"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader is not available", _RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "the group is full"
    FENCED_INSTANCE_ID = 82, "another member has taken over this group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "no replica that could lead is available", _RETRIABLE
    ELECTION_NOT_NEEDED = 84, "the partition has the right leader already", _RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "the partition is not being moved"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "the group still reads the topic"
    INVALID_RECORD = 87, "a record is not valid for the topic"
    UNSTABLE_OFFSET_COMMIT = 88, "a transaction that commits this offset is still open", _RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "the quota is exceeded: try again later", _RETRIABLE
    PRODUCER_FENCED = 90, "another producer with the same transactional id has taken over"
    RESOURCE_NOT_FOUND = 91, "there is no such resource"
    DUPLICATE_RESOURCE = 92, "the resource exists already, or is named twice"
    UNACCEPTABLE_CREDENTIAL = 93, "the credential does not meet the requirements"
    INCONSISTENT_VOTER_SET = 94, "the request names other voters than the quorum has"
    INVALID_UPDATE_VERSION = 95, "the version to update from is not the current one"
    FEATURE_UPDATE_FAILED = 96, "the features could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "the forwarded principal could not be read"
    SNAPSHOT_NOT_FOUND = 98, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, "the position is outside of the snapshot"
    UNKNOWN_TOPIC_ID = 100, "the broker has no topic with this id", _RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "another broker with this id is registered"
    BROKER_ID_NOT_REGISTERED = 102, "no broker with this id is registered"
    INCONSISTENT_TOPIC_ID = 103, "the topic has another id on disk", _RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "the request is meant for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = (
        106,
        "the session mixes names and ids of topics",
        _RETRIABLE,
    )
    INELIGIBLE_REPLICA = 107, "the replica may not be in sync"
    NEW_LEADER_ELECTED = 108, "the change has made another broker the leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "the offset is in remote storage only"
    FENCED_MEMBER_EPOCH = 110, "the member has an old epoch: join again"
    UNRELEASED_INSTANCE_ID = 111, "another member still uses this group.instance.id"
    UNSUPPORTED_ASSIGNOR = 112, "the coordinator does not have this assignor"
    STALE_MEMBER_EPOCH = 113, "the member has a newer epoch: try again with it"
    MISMATCHED_ENDPOINT_TYPE = (
        114,
        "the request is for the other type of endpoint (broker or controller)",
    )
    UNSUPPORTED_ENDPOINT_TYPE = 115, "there is no such type of endpoint"
    UNKNOWN_CONTROLLER_ID = 116, "no controller with this id is known"
    UNKNOWN_SUBSCRIPTION_ID = 117, "the telemetry subscription is not known"
    TELEMETRY_TOO_LARGE = 118, "the telemetry is larger than the broker accepts"
    INVALID_REGISTRATION = 119, "the controller refused the broker's registration"
    TRANSACTION_ABORTABLE = 120, "abort the transaction; the producer can then continue"
    INVALID_RECORD_STATE = 121, "the record is not in a state that allows it"
    SHARE_SESSION_NOT_FOUND = 122, "the broker does not know this share session", _RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "the share session has another epoch", _RETRIABLE
    FENCED_STATE_EPOCH = 124, "the share group's state has an old epoch"
    INVALID_VOTER_KEY = 125, "the voter has another directory id"
    DUPLICATE_VOTER = 126, "the voter set contains this voter already"
    VOTER_NOT_FOUND = 127, "the voter set does not contain this voter"
    INVALID_REGULAR_EXPRESSION = 128, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, "start over from the bootstrap addresses"
    STREAMS_INVALID_TOPOLOGY = 130, "the topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "the topology's epoch is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, "the topology has an old epoch"
    SHARE_SESSION_LIMIT_REACHED = (
        133,
        "the broker has reached its limit of share sessions",
        _RETRIABLE,
    )


_CLASSES: Final[dict[int, type[errors.LogError]]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: errors.OffsetOutOfRange,
    ErrorCode.CORRUPT_MESSAGE: errors.CorruptMessage,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: errors.UnknownTopicOrPartition,
    ErrorCode.UNKNOWN_TOPIC_ID: errors.UnknownTopicOrPartition,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: errors.NotLeader,
    ErrorCode.FENCED_LEADER_EPOCH: errors.NotLeader,
    ErrorCode.MESSAGE_TOO_LARGE: errors.MessageTooLarge,
    ErrorCode.INVALID_TIMESTAMP: errors.RecordsRefused,
    ErrorCode.INVALID_RECORD: errors.RecordsRefused,
    ErrorCode.UNKNOWN_MEMBER_ID: errors.UnknownMember,
    ErrorCode.REBALANCE_IN_PROGRESS: errors.RebalanceInProgress,
    ErrorCode.UNSUPPORTED_VERSION: errors.UnsupportedVersion,
    ErrorCode.TOPIC_ALREADY_EXISTS: errors.TopicExists,
    ErrorCode.INVALID_PRODUCER_EPOCH: errors.ProducerFenced,
    ErrorCode.PRODUCER_FENCED: errors.ProducerFenced,
    ErrorCode.TRANSACTION_ABORTABLE: errors.TransactionAborted,
    ErrorCode.SASL_AUTHENTICATION_FAILED: errors.AuthenticationFailed,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: errors.AuthenticationFailed,
    ErrorCode.ILLEGAL_SASL_STATE: errors.AuthenticationFailed,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: errors.NotAuthorized,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: errors.NotAuthorized,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: errors.NotAuthorized,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: errors.NotAuthorized,
}
_FATAL: Final = frozenset({ErrorCode.FENCED_INSTANCE_ID})
_ABORTS_TRANSACTION: Final = frozenset({ErrorCode.TRANSACTION_ABORTABLE})


def error_for(code: int, detail: str, said: str | None = None) -> errors.LogError:
    """Return the exception for an error code.

    Args:
        code: the error code, not 0.
        detail: what was requested, and where, for the message.
        said: the broker's own message, if it sent one.

    Raises:
        UsageError: the code is 0, which means no error.
    """
    if code == ErrorCode.NONE:
        raise errors.UsageError(f"no error: {detail}")
    meaning = describe(code)
    if said:
        # A broker that gives the reason says more than the meaning, which would only repeat it;
        # the name is what people search for. Some messages of our own brokers end with the meaning.
        reason = said.removesuffix(meaning).rstrip(" .:")
        message = f"{detail}: {reason} ({_name(code)})" if reason else f"{detail}: {meaning}"
    else:
        message = detail if detail.endswith(meaning) else f"{detail}: {meaning}"
    error = _CLASSES.get(code, errors.LogError)(message)
    error.code = code
    # On the instance, because several codes share a class, and not all of them are retriable.
    error.retriable = is_retriable(code)
    # Some classes are fatal themselves.
    error.fatal = error.fatal or code in _FATAL
    error.aborts_transaction = code in _ABORTS_TRANSACTION
    return error


def describe(code: int) -> str:
    """Return name, number and meaning of a code, for messages."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return f"error {code}, which this release does not know"
    return f"{known.name} ({code}): {known.meaning}"


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def is_retriable(code: int) -> bool:
    """Whether a retry of the request may succeed; False for an unknown code."""
    try:
        return ErrorCode(code).retriable
    except ValueError:
        return False
