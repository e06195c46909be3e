"""Authorization rules of requests about topics: Produce, Fetch, offsets, Metadata, topics.

As in Kafka's `KafkaApis`: a refused topic gets TOPIC_AUTHORIZATION_FAILED; a topic that the
principal may not DESCRIBE is missing from Metadata for all topics. DescribeTopicPartitions narrows
the request before the page is made, so that hidden topics take no room on a page and no cursor
names them.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.broker.security.acl_authorizer import (
    GO_ON,
    Access,
    Verdict,
    item_errors,
    split,
    withhold,
)
from streamlog.errors import NotAuthorized
from streamlog.protocol.acls import CLUSTER, Operation, ResourceType
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import response_by_item
from streamlog.protocol.messages.cluster_metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderTopic,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from streamlog.protocol.schema import ZERO_UUID
from streamlog.records.control_batches import group_of


def describe_topic_partitions(request: DescribeTopicPartitionsRequest, access: Access) -> Verdict:
    """Require DESCRIBE on topics; a request for all topics gets the visible ones."""
    asked = [topic.name for topic in request.topics]
    kept, refused = split(
        asked or access.topics(), lambda name: access.topic(Operation.DESCRIBE, name)
    )
    cursor = request.cursor
    if cursor is not None and cursor.topic_name not in kept:
        if not asked or cursor.topic_name in refused:
            request.cursor = None  # The page begins with the next visible topic.
        kept = [name for name in kept if name >= cursor.topic_name]
    request.topics = [TopicRequest(name=name) for name in kept]
    answers = [
        DescribeTopicPartitionsResponseTopic(
            name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
        for name in (refused if asked else ())
    ]
    if not request.topics:
        return Verdict(DescribeTopicPartitionsResponse(topics=answers))

    def finish(response: DescribeTopicPartitionsResponse) -> None:
        for each in response.topics:
            if not each.error_code:
                each.topic_authorized_operations = access.operations(
                    ResourceType.TOPIC, each.name or ""
                )
        response.topics = [*response.topics, *answers]

    return Verdict(finish=finish)


DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
FOLLOWER_ID_MIN = 0
"""A Fetch with a broker id claims to be a follower's."""
ALL_TOPICS_VERSION_MAX = 0
IDS_VERSION_MIN = 12
"""From this version on, Metadata asks by topic id; 10 and 11 have the field, and refuse it."""
BY_STATE_VERSION = 6
NO_OPERATIONS = 0


def produce(request: ProduceRequest, access: Access) -> Verdict:
    """Require WRITE on topics and on the transactional id."""
    name = request.transactional_id
    if name is not None and not access.transactional_id(Operation.WRITE, name):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return Verdict(item_errors(request, code))

    def may(topic: TopicProduceData) -> bool:
        return may_write(topic.name, access)

    refused = [each.name for each in request.topic_data if not may(each)]
    if not refused:
        return GO_ON
    if request.acks == 0:
        # No response is read: the connection is closed, as in Kafka.
        names = ", ".join(refused)
        raise NotAuthorized(f"{access.principal} may not write to {names}", code=DENIED)
    if len(refused) == len(request.topic_data):
        return Verdict(item_errors(request, DENIED))
    return withhold(request, "topic_data", may, DENIED)


def may_write(topic: str, access: Access) -> bool:
    """Return whether Produce may append to a topic, by `produce` and for a run of requests."""
    return access.topic(Operation.WRITE, topic)


def may_read(topic: FetchTopic, access: Access) -> bool:
    """Return whether Fetch may read a topic, by `fetch` and for a request that repeats another.

    A topic id that no topic has is let through: its answer is UNKNOWN_TOPIC_ID for everyone.
    """
    name = topic.topic or access.name_of(topic.topic_id)
    return name is None or access.topic(Operation.READ, name)


def fetch(request: FetchRequest, access: Access) -> Verdict:
    """Require READ on topics, in each request, including topics that only a session names.

    A time mark may carry event time for applications whose groups the reader may READ.
    """
    state = request.replica_state
    claimed = request.replica_id if state is None else max(request.replica_id, state.replica_id)
    if claimed >= FOLLOWER_ID_MIN and not access.cluster(Operation.CLUSTER_ACTION):
        return Verdict(_unreadable(request.topics))

    for wanted in (each for topic in request.topics for each in topic.partitions):
        # Without the right, the reader still gets records; only its mark requests are dropped.
        if wanted.mark_clock and not access.group(Operation.READ, group_of(wanted.mark_clock)):
            wanted.mark_clock, wanted.mark_to_ms = "", -1

    def may(topic: FetchTopic) -> bool:
        return may_read(topic, access)

    def readable(
        topics: Iterable[FetchTopic],
    ) -> tuple[list[FetchTopic], list[FetchableTopicResponse]]:
        kept, refused = split(topics, may)
        return kept, _unreadable(refused).responses

    return Verdict(readable=readable)


def _unreadable(topics: list[FetchTopic]) -> FetchResponse:
    return response_by_item(FetchRequest(topics=topics), FetchResponse, lambda *_: DENIED)


def list_offsets(request: ListOffsetsRequest, access: Access) -> Verdict:
    """Require DESCRIBE on topics."""

    def may(topic: ListOffsetsTopic) -> bool:
        return access.topic(Operation.DESCRIBE, topic.name)

    return withhold(request, "topics", may, DENIED)


def epoch_ends(request: OffsetForLeaderEpochRequest, access: Access) -> Verdict:
    """Require DESCRIBE on topics."""

    def may(topic: OffsetForLeaderTopic) -> bool:
        return access.topic(Operation.DESCRIBE, topic.topic)

    return withhold(request, "topics", may, DENIED)


def metadata(request: MetadataRequest, access: Access) -> Verdict:
    """Require DESCRIBE on topics, and CREATE on those that the request would create."""
    asked = request.topics
    by_id = any(each.name is None or each.topic_id != ZERO_UUID for each in asked or ())
    if by_id and access.version < IDS_VERSION_MIN:
        # The handler refuses the whole request, whatever the principal may see.
        return GO_ON
    wants_all = asked is None or (not asked and access.version <= ALL_TOPICS_VERSION_MAX)
    refused: list[MetadataRequestTopic] = []
    if asked is not None and not wants_all:

        def may(topic: MetadataRequestTopic) -> bool:
            return _may_describe(topic, request, access)

        request.topics, refused = split(asked, may)
    answers = [
        MetadataResponseTopic(
            error_code=DENIED,
            name=None if each.topic_id != ZERO_UUID else each.name,
            topic_id=each.topic_id,
        )
        for each in refused
    ]
    with_topics = request.include_topic_authorized_operations
    with_cluster = request.include_cluster_authorized_operations

    def finish(response: MetadataResponse) -> None:
        if answers and not request.topics:
            response.topics = []  # Version 0: an empty list means all topics.
        if wants_all:
            response.topics = [
                each
                for each in response.topics
                if access.topic(Operation.DESCRIBE, each.name or "")
            ]
        for each in response.topics if with_topics else ():
            if not each.error_code:
                each.topic_authorized_operations = access.operations(
                    ResourceType.TOPIC, each.name or ""
                )
        response.topics = [*response.topics, *answers]
        if with_cluster:
            response.cluster_authorized_operations = _cluster_operations(access)

    return Verdict(finish=finish)


def _may_describe(topic: MetadataRequestTopic, request: MetadataRequest, access: Access) -> bool:
    name = access.name_of(topic.topic_id) if topic.topic_id != ZERO_UUID else topic.name
    if name is None:
        return True  # An unknown id gets the handler's error.
    if not access.topic(Operation.DESCRIBE, name):
        return False
    if access.exists(name) or not request.allow_auto_topic_creation:
        return True
    may_all = access.cluster(Operation.CREATE, logs_denied=False)
    return may_all or access.topic(Operation.CREATE, name)


def _cluster_operations(access: Access) -> int:
    if not access.cluster(Operation.DESCRIBE):
        return NO_OPERATIONS
    return access.operations(ResourceType.CLUSTER, CLUSTER)


def describe_cluster(request: DescribeClusterRequest, access: Access) -> Verdict:
    """Allow everyone; the allowed operations need DESCRIBE on the cluster."""
    if not request.include_cluster_authorized_operations:
        return GO_ON

    def finish(response: DescribeClusterResponse) -> None:
        response.cluster_authorized_operations = _cluster_operations(access)

    return Verdict(finish=finish)


def create_topics(request: CreateTopicsRequest, access: Access) -> Verdict:
    """Require CREATE on the cluster or on topics; settings need DESCRIBE_CONFIGS."""
    may_all = access.cluster(Operation.CREATE, logs_denied=False)
    request.topics, refused = split(
        request.topics, lambda each: may_all or access.topic(Operation.CREATE, each.name)
    )
    answers = [
        CreatableTopicResult(
            name=each.name,
            error_code=DENIED,
            error_message=f"{access.principal} may not create {each.name}",
            configs=None,
        )
        for each in refused
    ]

    def finish(response: CreateTopicsResponse) -> None:
        for each in response.topics:
            if not each.error_code and not access.topic(Operation.DESCRIBE_CONFIGS, each.name):
                # The topic is created, but its settings are withheld, as in Kafka (KIP-525).
                each.configs, each.topic_config_error_code = None, DENIED
                each.num_partitions = each.replication_factor = -1
        response.topics = [*response.topics, *answers]

    return Verdict(finish=finish)


def delete_topics(request: DeleteTopicsRequest, access: Access) -> Verdict:
    """Require DELETE on topics; without DESCRIBE, the response does not name the topic."""
    if access.version < BY_STATE_VERSION:
        return withhold(
            request, "topic_names", lambda name: access.topic(Operation.DELETE, name), DENIED
        )

    def may(topic: DeleteTopicState) -> bool:
        name = access.name_of(topic.topic_id) if topic.name is None else topic.name
        return name is None or access.topic(Operation.DELETE, name)

    return withhold(request, "topics", may, DENIED)


def delete_records(request: DeleteRecordsRequest, access: Access) -> Verdict:
    """Require DELETE on topics."""

    def may(topic: DeleteRecordsTopic) -> bool:
        return access.topic(Operation.DELETE, topic.name)

    return withhold(request, "topics", may, DENIED)
