"""AdminRequests: who is there, and topics: created, described, deleted as a whole or in part.

Synchronous, answered from the log directory. This broker is the whole cluster: it leads every
partition, coordinates every group and is the controller. A topic is known by its id as well as
by its name; the id is new for each topic, so a client notices when one was made again.
A refusal of one topic or setting is that one's answer and says what would be taken instead.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from typing import TYPE_CHECKING

from streamlog.broker.config import PARTITIONS_MAX, TopicConfig
from streamlog.broker.settings import Source
from streamlog.errors import (
    ConfigError,
    LogError,
    StreamlogError,
    TopicExists,
    UnknownTopicOrPartition,
)
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.admin import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from streamlog.protocol.messages.cluster import (
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
from streamlog.protocol.messages.coordination import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from streamlog.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.topic_state import TopicState

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's rule; "." and ".." are excluded besides."""
DEFAULT = -1
"""Partitions or replicas of a topic whose creator leaves them to the broker (KIP-464)."""
ALL_TOPICS_VERSION_MAX = 0
"""Up to this Metadata version an empty list of topics means all of them."""
MANY_COORDINATORS_VERSION = 4
"""From this FindCoordinator version on several keys are asked for at once (KIP-699)."""
TOPICS_BY_STATE_VERSION = 6
"""From this DeleteTopics version on topics are named by name or by id."""
GROUP_KEY_TYPE = 0
TRANSACTION_KEY_TYPE = 1
CONTROLLERS_ENDPOINT = 2

NOT_ASKED = -(2**31)
"""Authorized operations that were not asked for."""
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Everything that can be done to a topic, by the numbers of KIP-430: nothing is forbidden here."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))

Listener = tuple[str, int]
"""Host and port at which the client that asks can reach this broker."""


class AdminRequests:
    """Answers for the cluster and its topics."""

    def __init__(
        self,
        directory: LogDirectory,
        partitions: Partitions,
        *,
        internal_topics: frozenset[str],
        inherited_source: Callable[[str], Source],
    ) -> None:
        """`inherited_source` tells where the value of a topic's setting comes from by itself."""
        self._directory = directory
        self._partitions = partitions
        self._internal_topics = internal_topics
        self._inherited_source = inherited_source

    # ---- the cluster ----

    def metadata(
        self, request: MetadataRequest, version: int, listener: Listener
    ) -> MetadataResponse:
        """Brokers and topics; a topic that is not there may be made on the way."""
        asked = request.topics
        if asked is None or (not asked and version <= ALL_TOPICS_VERSION_MAX):
            states: Iterable[TopicState] = self._directory.topics.values()
            topics = [self._described(state) for state in states]
        else:
            create = request.allow_auto_topic_creation and self._directory.config.auto_create_topics
            topics = [self._topic(each, create=create) for each in asked]
        if request.include_topic_authorized_operations:
            for topic in topics:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
        host, port = listener
        node_id = self._directory.node_id
        with_operations = request.include_cluster_authorized_operations
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=node_id, host=host, port=port)],
            cluster_id=self._directory.cluster_id,
            controller_id=node_id,
            topics=topics,
            cluster_authorized_operations=CLUSTER_OPERATIONS if with_operations else NOT_ASKED,
        )

    def describe_cluster(
        self, request: DescribeClusterRequest, listener: Listener
    ) -> DescribeClusterResponse:
        """Brokers alone; controllers are not to be talked to."""
        if request.endpoint_type == CONTROLLERS_ENDPOINT:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this is a broker, not a controller: ask with endpoint type 1",
            )
        host, port = listener
        node_id = self._directory.node_id
        with_operations = request.include_cluster_authorized_operations
        return DescribeClusterResponse(
            cluster_id=self._directory.cluster_id,
            controller_id=node_id,
            brokers=[DescribeClusterBroker(broker_id=node_id, host=host, port=port)],
            cluster_authorized_operations=CLUSTER_OPERATIONS if with_operations else NOT_ASKED,
        )

    def find_coordinator(
        self, request: FindCoordinatorRequest, version: int, listener: Listener
    ) -> FindCoordinatorResponse:
        """This broker, for any group and any transactional id."""
        if version >= MANY_COORDINATORS_VERSION:
            found = [self._coordinator(k, request, listener) for k in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=found)
        one = self._coordinator(request.key, request, listener)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _coordinator(
        self, key: str, request: FindCoordinatorRequest, listener: Listener
    ) -> Coordinator:
        refusal = None
        if request.key_type not in (GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE):
            refusal = ErrorCode.INVALID_REQUEST, f"there is no key type {request.key_type}"
        elif not key and request.key_type == GROUP_KEY_TYPE:
            refusal = ErrorCode.INVALID_GROUP_ID, "group.id is empty"
        elif not key:
            refusal = ErrorCode.INVALID_REQUEST, "transactional.id is empty"
        if refusal is not None:
            code, message = refusal
            return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=message)
        host, port = listener
        return Coordinator(key=key, node_id=self._directory.node_id, host=host, port=port)

    # ---- topics ----

    def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """Make topics, or with `validate_only` say what would come of it."""
        counts = Counter(topic.name for topic in request.topics)
        results = []
        for topic in request.topics:
            try:
                if counts[topic.name] > 1:
                    raise error_for(
                        ErrorCode.INVALID_REQUEST, f"{topic.name} is {counts[topic.name]} times in"
                    )
                results.append(self._create(topic, validate_only=request.validate_only))
            except StreamlogError as error:
                results.append(
                    CreatableTopicResult(
                        name=topic.name,
                        error_code=_code(error),
                        error_message=str(error),
                        configs=None,
                    )
                )
        return CreateTopicsResponse(topics=results)

    def delete_topics(
        self, request: DeleteTopicsRequest, version: int, forget: Callable[[str], None]
    ) -> DeleteTopicsResponse:
        """Delete topics; `forget` is told of each."""
        asked = request.topics
        if version < TOPICS_BY_STATE_VERSION:
            asked = [DeleteTopicState(name=name) for name in request.topic_names]
        return DeleteTopicsResponse(responses=[self._delete(each, forget) for each in asked])

    def _delete(
        self, asked: DeleteTopicState, forget: Callable[[str], None]
    ) -> DeletableTopicResult:
        try:
            state = self._find(asked.name, asked.topic_id)
            if state.name in self._internal_topics:
                raise error_for(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"{state.name} is the broker's own"
                )
            self._partitions.delete(state.name)
            forget(state.name)
        except StreamlogError as error:
            return DeletableTopicResult(
                name=asked.name,
                topic_id=asked.topic_id,
                error_code=_code(error),
                error_message=str(error),
            )
        return DeletableTopicResult(name=state.name, topic_id=state.topic_id)

    # ---- records ----

    def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Delete the oldest records of partitions; it is for good once checkpoints are kept."""
        topics = [
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[self._delete_before(topic.name, each) for each in topic.partitions],
            )
            for topic in request.topics
        ]
        return DeleteRecordsResponse(topics=topics)

    def refuse_deletions(self, response: DeleteRecordsResponse, failure: StreamlogError) -> None:
        """They may not be for good: the answer says so."""
        for topic in response.topics:
            for each in topic.partitions:
                if not each.error_code:
                    each.low_watermark, each.error_code = -1, _code(failure)

    def _delete_before(
        self, topic: str, asked: DeleteRecordsPartition
    ) -> DeleteRecordsPartitionResult:
        try:
            partition = self._partitions.get(topic, asked.partition_index)
            if topic in self._internal_topics:
                raise error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is the broker's own")
            if not self._directory.topics[topic].config.deletes:
                raise error_for(
                    ErrorCode.POLICY_VIOLATION, f"{topic}: cleanup.policy does not delete"
                )
            partition.delete_before(asked.offset)
        except StreamlogError as error:
            return DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=-1, error_code=_code(error)
            )
        return DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=partition.log.log_start_offset
        )

    # ---- creating ----

    def _create(self, topic: CreatableTopic, *, validate_only: bool) -> CreatableTopicResult:
        check_name(topic.name)
        if topic.name in self._directory.topics:
            raise TopicExists(f"{topic.name} is there already: delete it first, or use it")
        count = self._partition_count(topic)
        configs = _texts(topic)
        effective = self._effective(configs)
        topic_id = ZERO_UUID
        if not validate_only:
            topic_id = self._make(topic.name, count, configs).topic_id
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            num_partitions=count,
            replication_factor=1,
            configs=[
                CreatableTopicConfigs(
                    name=name,
                    value=value,
                    config_source=Source.TOPIC if name in configs else self._inherited_source(name),
                )
                for name, value in effective.described().items()
            ],
        )

    def _make(self, name: str, count: int, configs: dict[str, str]) -> TopicState:
        return self._partitions.create(name, count, configs)

    def _partition_count(self, topic: CreatableTopic) -> int:
        if topic.assignments:
            return self._assigned_count(topic)
        if topic.replication_factor not in (DEFAULT, 1):
            raise error_for(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{topic.name}: {topic.replication_factor} replicas on 1 broker; ask for 1",
            )
        if topic.num_partitions == DEFAULT:
            return self._directory.config.num_partitions
        if not 1 <= topic.num_partitions <= PARTITIONS_MAX:
            raise error_for(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.name}: {topic.num_partitions} partitions; "
                f"it has to be from 1 to {PARTITIONS_MAX}",
            )
        return topic.num_partitions

    def _assigned_count(self, topic: CreatableTopic) -> int:
        """The creator says which broker holds what: it can only be this one."""
        if topic.num_partitions != DEFAULT or topic.replication_factor != DEFAULT:
            raise error_for(
                ErrorCode.INVALID_REQUEST,
                f"{topic.name}: with assignments, partitions and replicas have to be -1",
            )
        indexes = sorted(each.partition_index for each in topic.assignments)
        own = [self._directory.node_id]
        if indexes != list(range(len(indexes))) or len(indexes) > PARTITIONS_MAX:
            detail = f"partitions have to be numbered from 0, at most {PARTITIONS_MAX}"
        elif any(each.broker_ids != own for each in topic.assignments):
            detail = f"broker {own[0]} is the only one"
        else:
            return len(indexes)
        raise error_for(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{topic.name}: {detail}")

    def _effective(self, configs: dict[str, str]) -> TopicConfig:
        try:
            return self._directory.config.topic.overridden(configs)
        except ConfigError as error:
            raise error_for(ErrorCode.INVALID_CONFIG, str(error)) from error

    # ---- looking topics up ----

    def _find(self, name: str | None, topic_id: bytes) -> TopicState:
        if name is not None:
            state = self._directory.topics.get(name)
            if state is None:
                raise UnknownTopicOrPartition(f"there is no topic {name}")
            return state
        for state in self._directory.topics.values():
            if state.topic_id == topic_id:
                return state
        raise error_for(
            ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic {uuid.UUID(bytes=topic_id)}"
        )

    def _topic(self, asked: MetadataRequestTopic, *, create: bool) -> MetadataResponseTopic:
        name = asked.name
        try:
            if name is not None and name not in self._directory.topics:
                check_name(name)
                if create and name not in self._internal_topics:
                    return self._described(
                        self._make(name, self._directory.config.num_partitions, {})
                    )
            return self._described(self._find(name, asked.topic_id))
        except StreamlogError as error:
            return MetadataResponseTopic(
                error_code=_code(error),
                name=name,
                topic_id=asked.topic_id,
                is_internal=name in self._internal_topics,
            )

    def _described(self, state: TopicState) -> MetadataResponseTopic:
        node = [self._directory.node_id]
        return MetadataResponseTopic(
            name=state.name,
            topic_id=state.topic_id,
            is_internal=state.name in self._internal_topics,
            partitions=[
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=self._directory.node_id,
                    leader_epoch=log.epochs.current,
                    replica_nodes=node,
                    isr_nodes=node,
                )
                for index, log in sorted(state.partitions.items())
            ],
        )


def check_name(name: str) -> None:
    """Whether a topic may be called so.

    Raises:
        LogError: INVALID_TOPIC_EXCEPTION, it may not.
    """
    if name in (".", "..") or TOPIC_NAME.fullmatch(name) is None:
        raise error_for(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name[:300]!r} is no topic name: use 1 to 249 letters, digits, '.', '_' and '-'",
        )


def _texts(topic: CreatableTopic) -> dict[str, str]:
    configs = {}
    for config in topic.configs:
        if config.value is None:
            raise error_for(ErrorCode.INVALID_CONFIG, f"{topic.name}: {config.name} has no value")
        configs[config.name] = config.value
    return configs


def _code(error: StreamlogError) -> int:
    return error.code if isinstance(error, LogError) else ErrorCode.KAFKA_STORAGE_ERROR
