"""MetadataRequests: Metadata, DescribeCluster and DeleteRecords. TopicPages: topics page by page.

Responses come from the metadata image that this broker has applied, which may lag behind the
controller's. Clients name a topic by its name or by its id; a topic that is deleted and created
again has another id, by which clients notice.

Not done here: changes to topics, which the controller makes (`quorum/controller/topic_control`).
Metadata asks it to create a missing topic if the client and the settings allow that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from streamlog.broker.future_responses import Answer, map_response
from streamlog.broker.handlers import Handlers, entry
from streamlog.broker.named_topics import MIRRORED_LOGS
from streamlog.broker.quorum.controller.topic_control import DEFAULT, check_name, is_topic_name
from streamlog.broker.quorum.metadata.registrations import NO_LEADER
from streamlog.broker.quorum.raft.raft_wire import METADATA_TOPIC
from streamlog.errors import LogError, StreamlogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.cluster_metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from streamlog.protocol.schema import ZERO_UUID, Message, id_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamlog.broker.config.connections import AdvertisedEndpoint
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata, TopicRegistration
    from streamlog.broker.quorum.metadata.registrations import PartitionRegistration
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.broker.storage.log_directory import LogDirectory


ALL_TOPICS_VERSION_MAX = 0
"""The last Metadata version in which an empty list asks for all topics."""
TOPIC_IDS_VERSION = 12
"""The first Metadata version in which a client may ask for topics by id."""
AUTO_CREATION_TIMEOUT_MS = 10_000
"""How long a Metadata response waits for the controller to create the missing topics."""
CONTROLLERS_ENDPOINT = 2
"""The endpoint type in DescribeCluster of a client that talks to controllers (KIP-919)."""

NOT_ASKED = -(2**31)
"""The value of authorized operations in a response to a client that did not ask for them."""
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""All operations on a topic, as the bit field of KIP-430. The authorizer, if any, narrows them."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""All operations on the cluster, as the bit field of KIP-430."""


class Deletion(NamedTuple):
    """A deletion on this broker, and the partition's part of the response."""

    partition: Partition
    start_offset: int
    """The log start offset after the deletion."""
    result: DeleteRecordsPartitionResult

    def refuse(self, failure: StreamlogError) -> None:
        """Report an error: the deletion may not survive a restart, or not reach all replicas."""
        self.result.low_watermark, self.result.error_code = -1, _code(failure)


class MetadataRequests:
    """Handles requests about the cluster and its topics."""

    def __init__(
        self,
        directory: LogDirectory,
        metadata: ClusterMetadata,
        partitions: Partitions,
        *,
        internal_topics: frozenset[str],
        submit: Callable[[Message], Answer],
        controller_id: Callable[[], int | None],
    ) -> None:
        """`submit` sends a request to the controller; `controller_id` returns its node id."""
        self._controller_id = controller_id
        self._directory = directory
        self._metadata = metadata
        self._partitions = partitions
        self._internal_topics = internal_topics
        self._submit = submit

    # ---- the cluster ----

    def metadata(
        self, request: MetadataRequest, version: int, reached: AdvertisedEndpoint
    ) -> MetadataResponse | asyncio.Future[MetadataResponse]:
        """Return the brokers and topics; create missing topics first, where that is allowed."""
        if version < TOPIC_IDS_VERSION and _has_ids(request):
            return _invalid(request)
        missing = self._to_be_made(request)
        if not missing:
            # No future here: the usual request is answered at once.
            return self._metadata_of(request, version, reached, {})
        topics = [
            CreatableTopic(name=name, num_partitions=DEFAULT, replication_factor=DEFAULT)
            for name in missing
        ]
        creation = CreateTopicsRequest(topics=topics, timeout_ms=AUTO_CREATION_TIMEOUT_MS)

        def then(made: Message) -> MetadataResponse:
            # A new topic may not be in this broker's metadata yet: the client then gets
            # UNKNOWN_TOPIC_OR_PARTITION, which it retries.
            results = made.topics if isinstance(made, CreateTopicsResponse) else []
            refused = {each.name: each.error_code for each in results if each.error_code}
            return self._metadata_of(request, version, reached, refused)

        return map_response(self._submit(creation), then)

    def _to_be_made(self, request: MetadataRequest) -> list[str]:
        if not (request.allow_auto_topic_creation and self._directory.config.auto_create_topics):
            return []
        names = {
            each.name: None
            for each in request.topics or ()
            if each.name is not None and each.topic_id == ZERO_UUID
        }
        return [
            name
            for name in names
            if is_topic_name(name)
            and name not in self._internal_topics
            and name != METADATA_TOPIC
            and self._metadata.topic(name) is None
        ]

    def _metadata_of(
        self,
        request: MetadataRequest,
        version: int,
        reached: AdvertisedEndpoint,
        refused: Mapping[str, int],
    ) -> MetadataResponse:
        """Return the metadata of now; `refused` maps topics not created to their error codes."""
        asked, metadata = request.topics, self._metadata
        if asked is None or (not asked and version <= ALL_TOPICS_VERSION_MAX):
            found = [metadata.topic(name) for name in metadata.topic_names()]
            topics = [self._described(each) for each in found if each is not None]
        else:
            topics = [self._topic(each, refused) for each in asked]
        if request.include_topic_authorized_operations:
            for topic in topics:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
        with_operations = request.include_cluster_authorized_operations
        brokers = self.brokers(reached)
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
                for node_id, host, port, rack in brokers
            ],
            cluster_id=self._directory.cluster_id,
            controller_id=self._controller(brokers),
            topics=topics,
            cluster_authorized_operations=CLUSTER_OPERATIONS if with_operations else NOT_ASKED,
        )

    def describe_cluster(
        self, request: DescribeClusterRequest, reached: AdvertisedEndpoint
    ) -> DescribeClusterResponse:
        """Return the brokers; refuse a client that asks for controllers (endpoint type 2)."""
        if request.endpoint_type == CONTROLLERS_ENDPOINT:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this is a broker, not a controller: ask with endpoint type 1",
            )
        with_operations = request.include_cluster_authorized_operations
        registered = self._metadata.brokers
        shown = self.brokers(reached, with_fenced=request.include_fenced_brokers)
        return DescribeClusterResponse(
            cluster_id=self._directory.cluster_id,
            controller_id=self._controller(self.brokers(reached)),
            brokers=[
                DescribeClusterBroker(
                    broker_id=node_id,
                    host=host,
                    port=port,
                    rack=rack,
                    is_fenced=registered[node_id].is_fenced,
                )
                for node_id, host, port, rack in shown
            ],
            cluster_authorized_operations=CLUSTER_OPERATIONS if with_operations else NOT_ASKED,
        )

    # ---- records ----

    def delete_records(
        self, request: DeleteRecordsRequest
    ) -> tuple[DeleteRecordsResponse, list[Deletion]]:
        """Delete the oldest records of partitions that this broker leads.

        A deletion survives a restart once the log start offset is in a checkpoint, which this
        method does not wait for.

        Returns:
            The response so far, and the deletions to wait for before it is sent.
        """
        done: list[Deletion] = []
        topics = [
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    self._delete_before(topic.name, each, done) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return DeleteRecordsResponse(topics=topics), done

    def _delete_before(
        self, topic: str, asked: DeleteRecordsPartition, done: list[Deletion]
    ) -> DeleteRecordsPartitionResult:
        try:
            partition = self._partitions.get(topic, asked.partition_index)
            if topic in self._internal_topics:
                raise error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is an internal topic")
            if not partition.log.config.deletes:
                raise error_for(
                    ErrorCode.POLICY_VIOLATION,
                    f"{topic}: its cleanup.policy does not include delete",
                )
            partition.delete_before(asked.offset)
        except StreamlogError as error:
            return DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=-1, error_code=_code(error)
            )
        start = partition.log.log_start_offset
        result = DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=start
        )
        done.append(Deletion(partition, start, result))
        return result

    # ---- topics ----

    def _find(self, name: str | None, topic_id: bytes) -> TopicRegistration:
        topic = self._metadata.topics.get(topic_id) if name is None else self._metadata.topic(name)
        if topic is not None:
            return topic
        if name is None and topic_id == ZERO_UUID:
            raise error_for(ErrorCode.INVALID_REQUEST, "a topic has neither a name nor an id")
        if name is None:
            raise error_for(ErrorCode.UNKNOWN_TOPIC_ID, f"unknown topic id {id_text(topic_id)}")
        raise UnknownTopicOrPartition(f"there is no topic {name}")

    def _topic(
        self, asked: MetadataRequestTopic, refused: Mapping[str, int]
    ) -> MetadataResponseTopic:
        # An id takes precedence: the Java client sends an empty name with it, others send null.
        name = asked.name if asked.topic_id == ZERO_UUID else None
        try:
            if name is not None and name not in refused:
                check_name(name)
            return self._described(self._find(name, asked.topic_id))
        except StreamlogError as error:
            return MetadataResponseTopic(
                error_code=refused.get(name or "", _code(error)),
                name=name,
                topic_id=asked.topic_id,
                is_internal=name in self._internal_topics,
            )

    def _described(self, topic: TopicRegistration) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=_is_internal(topic.name, self._internal_topics),
            partitions=[
                MetadataResponsePartition(
                    error_code=(
                        ErrorCode.LEADER_NOT_AVAILABLE
                        if partition.leader == NO_LEADER
                        else ErrorCode.NONE
                    ),
                    partition_index=number,
                    leader_id=partition.leader,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=list(partition.replicas),
                    isr_nodes=list(partition.isr),
                    offline_replicas=offline(self._metadata, partition),
                )
                for number, partition in sorted(topic.partitions.items())
            ],
        )

    def _controller(self, brokers: list[tuple[int, str, int, str | None]]) -> int:
        """Return the broker to which clients send changes: the controller, or this broker.

        This broker forwards changes to a controller that is not a broker: clients can't connect to
        such a controller. Returns -1 if the response does not list this broker either.
        """
        controller_id, own = self._controller_id(), self._directory.node_id
        shown = {broker_id for broker_id, *_ in brokers}
        if controller_id is not None and controller_id in shown:
            return controller_id
        return own if own in shown else -1

    def brokers(
        self, reached: AdvertisedEndpoint, *, with_fenced: bool = False
    ) -> list[tuple[int, str, int, str | None]]:
        """Return (id, host, port, rack) of the brokers that are not fenced, or of all registered.

        Addresses are those of the listener over which the client is connected: another listener
        may be in a network that the client can't reach, or require other credentials. A broker
        without a listener of that name is left out (KIP-103).
        """
        own, metadata = self._directory.node_id, self._metadata
        found = []
        for broker_id, broker in sorted(metadata.brokers.items()):
            if broker_id == own:
                # Listed even while it is fenced: the client is connected to it.
                found.append((own, reached.host, reached.port, broker.rack))
            elif with_fenced or not broker.is_fenced:
                endpoint = broker.endpoint(reached.listener)
                if endpoint is not None:
                    found.append((broker_id, endpoint.host, endpoint.port, broker.rack))
        return found


def offline(metadata: ClusterMetadata, partition: PartitionRegistration) -> list[int]:
    """Return the replicas of a partition whose brokers are fenced or not registered."""
    brokers = metadata.brokers
    return [each for each in partition.replicas if each not in brokers or brokers[each].is_fenced]


def _is_internal(name: str, internal_topics: frozenset[str]) -> bool:
    return name in internal_topics or name.startswith(MIRRORED_LOGS)


def _has_ids(request: MetadataRequest) -> bool:
    return any(each.name is None or each.topic_id != ZERO_UUID for each in request.topics or ())


def _invalid(request: MetadataRequest) -> MetadataResponse:
    """Refuse topic ids in versions 10 and 11, which have the field but, in Kafka, not the use."""
    code = ErrorCode.INVALID_REQUEST
    topics = [
        MetadataResponseTopic(error_code=code, name=each.name or "", topic_id=each.topic_id)
        for each in request.topics or ()
    ]
    return MetadataResponse(topics=topics)


def _code(error: StreamlogError) -> int:
    return error.code if isinstance(error, LogError) else ErrorCode.KAFKA_STORAGE_ERROR


PAGE_PARTITIONS_MAX: Final = 2_000
"""The most partitions on a page; Kafka's `max.request.partition.size.limit`."""


class TopicPages:
    """Handles DescribeTopicPartitions: topics in pages (KIP-966)."""

    def __init__(self, metadata: ClusterMetadata, *, internal_topics: frozenset[str]) -> None:
        self._metadata = metadata
        self._internal_topics = internal_topics

    def handlers(self) -> Handlers:
        """Return the handler of each request type."""
        return dict(
            [entry(DescribeTopicPartitionsRequest, lambda request, _: self.describe(request))]
        )

    def describe(self, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
        """Return the page that begins at the cursor, or the first page."""
        cursor = request.cursor or Cursor()
        asked = {topic.name for topic in request.topics}
        if request.cursor is not None and (
            cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)
        ):
            return DescribeTopicPartitionsResponse(
                topics=[_missing(name, ErrorCode.INVALID_REQUEST) for name in sorted(asked)]
            )
        names = sorted(
            name for name in asked or self._metadata.topic_names() if name >= cursor.topic_name
        )
        limit = max(min(request.response_partition_limit, PAGE_PARTITIONS_MAX), 1)
        return self._page(names, cursor, limit, with_missing=bool(asked))

    def _page(
        self, names: Iterable[str], cursor: Cursor, room: int, *, with_missing: bool
    ) -> DescribeTopicPartitionsResponse:
        page = DescribeTopicPartitionsResponse()
        for name in names:
            if not room:
                # The page ended with the last partition of a topic: the next page begins at the
                # next name, whether or not that topic still exists then.
                page.next_cursor = Cursor(topic_name=name, partition_index=0)
                break
            state = self._metadata.topic(name)
            if state is None:
                if with_missing:
                    # Costs no room: only partitions count towards the limit.
                    page.topics.append(_missing(name, _why_missing(name)))
                continue
            first = cursor.partition_index if name == cursor.topic_name else 0
            numbers = range(len(state.partitions))[first : first + room]
            page.topics.append(self._described(state, numbers))
            room -= len(numbers)
            if numbers and numbers[-1] + 1 < len(state.partitions):
                page.next_cursor = Cursor(topic_name=name, partition_index=numbers[-1] + 1)
                break
        return page

    def _described(
        self, state: TopicRegistration, numbers: Sequence[int]
    ) -> DescribeTopicPartitionsResponseTopic:
        return DescribeTopicPartitionsResponseTopic(
            name=state.name,
            topic_id=state.topic_id,
            is_internal=_is_internal(state.name, self._internal_topics),
            partitions=[self._partition(number, state.partitions[number]) for number in numbers],
            topic_authorized_operations=TOPIC_OPERATIONS,
        )

    def _partition(
        self, number: int, partition: PartitionRegistration
    ) -> DescribeTopicPartitionsResponsePartition:
        has_leader = partition.leader != NO_LEADER
        return DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=number,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            eligible_leader_replicas=list(partition.elr),
            last_known_elr=[],
            offline_replicas=offline(self._metadata, partition),
        )


def _missing(name: str, code: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=code)


def _why_missing(name: str) -> int:
    try:
        check_name(name)
    except LogError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
