"""TopicAdmin: creates, describes, enlarges and deletes topics, and deletes their records.

The part of `Admin` that is about topics. Every request names all of its topics and is answered
topic by topic; records are deleted at the leaders of their partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from streamlog.assignors import TopicPartition
from streamlog.client.admin_room import ADMIN_TIMEOUT_MS, AdminRoom, raise_refused
from streamlog.client.cluster import TopicMetadata
from streamlog.client.offsets import by_leader
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from streamlog.protocol.messages.partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)

HIGH_WATERMARK = -1
"""In `delete_records`: everything that consumers can see."""
PARTITIONS_DEFAULT = -1
"""In `NewTopic`: as many as the broker gives a topic that does not say."""
REPLICAS_DEFAULT = -1
"""Likewise; one copy on a cluster of many brokers is lost with one disk."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int
    replication_factor: int = REPLICAS_DEFAULT
    """Copies of each partition; without a number as many as the cluster gives to any topic."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Kafka's topic settings by name, such as `retention.ms`."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the log knows it."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    is_internal: bool
    leaders: Mapping[int, int]
    """Partition to broker; -1 while nobody leads it."""


class TopicAdmin(AdminRoom):
    """Manages topics."""

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> None:
        """Create topics; those that could be created are, even if others are refused.

        With `validate_only` nothing is created, and what would be refused is.

        Raises:
            TopicExists: one of them is there already.
            LogError: a name, a number or a setting is not allowed.
        """
        wanted = list(topics)

        def read(response: CreateTopicsResponse) -> None:
            outcomes = [
                (each.name, each.error_code, each.error_message) for each in response.topics
            ]
            raise_refused("create topic", outcomes, retriable=len(wanted) == 1)

        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in wanted],
            timeout_ms=ADMIN_TIMEOUT_MS,
            validate_only=validate_only,
        )
        await self._ask_controller(request, CreateTopicsResponse, read)

    async def create_partitions(
        self, topic: str, partitions: int, *, validate_only: bool = False
    ) -> None:
        """Give a topic so many partitions in all. Records with keys may go elsewhere from then on.

        Raises:
            UnknownTopicOrPartition: it does not exist.
            LogError: it has as many already, or can't have so many.
        """

        def read(response: CreatePartitionsResponse) -> None:
            raise_refused(
                "add partitions to",
                [(each.name, each.error_code, each.error_message) for each in response.results],
            )
            self._cluster.forget([topic])

        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=partitions, assignments=None)],
            timeout_ms=ADMIN_TIMEOUT_MS,
            validate_only=validate_only,
        )
        await self._ask_controller(request, CreatePartitionsResponse, read)

    async def delete_topics(self, names: Collection[str]) -> None:
        """Delete topics with all their records.

        Raises:
            UnknownTopicOrPartition: one of them does not exist.
        """
        wanted = list(names)

        def read(response: DeleteTopicsResponse) -> None:
            raise_refused(
                "delete topic",
                [(each.name, each.error_code, each.error_message) for each in response.responses],
            )

        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted],
            topic_names=wanted,
            timeout_ms=ADMIN_TIMEOUT_MS,
        )
        await self._ask_controller(request, DeleteTopicsResponse, read)
        self._cluster.forget(wanted)

    async def list_topics(self, *, internal: bool = False) -> list[TopicDescription]:
        """All topics, by name; those that the log keeps for itself only if they are asked for."""
        found = await self._cluster.retrying(self._cluster.describe)
        return [
            _description(topic) for topic in _by_name(found) if internal or not topic.is_internal
        ]

    async def describe_topics(self, names: Collection[str]) -> list[TopicDescription]:
        """These topics, by name.

        Raises:
            UnknownTopicOrPartition: one of them does not exist.
        """
        await self._cluster.retrying(lambda: self._cluster.refresh(names))
        found = await self._cluster.retrying(lambda: self._cluster.describe(names))
        return [_description(topic) for topic in _by_name(found)]

    async def find_topics(self, names: Collection[str]) -> list[TopicDescription]:
        """Those of these topics that exist, by name; for who looks again and again."""
        found = await self._cluster.retrying(lambda: self._cluster.survey(names))
        return [_description(topic) for topic in _by_name(found.values())]

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset, per partition; -1 stands for all there are.

        Returned is where each partition begins now.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
            LogError: an offset is beyond the end, or the topic is only compacted.
        """

        async def attempt() -> dict[TopicPartition, int]:
            begins: dict[TopicPartition, int] = {}
            for leader, wanted in (await by_leader(self._cluster, offsets)).items():
                response = await self._cluster.call(
                    leader, _deletion(wanted), DeleteRecordsResponse
                )
                begins |= self._begins(response)
            return begins

        return await self._cluster.retrying(attempt)

    def _begins(self, response: DeleteRecordsResponse) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code:
                    self._cluster.forget([topic.name])
                    where = f"delete records of {topic.name}-{each.partition_index}"
                    raise error_for(each.error_code, where)
                found[TopicPartition(topic.name, each.partition_index)] = each.low_watermark
        return found


def _deletion(offsets: Mapping[TopicPartition, int]) -> DeleteRecordsRequest:
    topics: dict[str, list[DeleteRecordsPartition]] = {}
    for partition, offset in offsets.items():
        wanted = DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
        topics.setdefault(partition.topic, []).append(wanted)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=many) for name, many in topics.items()],
        timeout_ms=ADMIN_TIMEOUT_MS,
    )


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )


def _by_name(topics: Iterable[TopicMetadata]) -> list[TopicMetadata]:
    return sorted(topics, key=lambda topic: topic.name)


def _description(topic: TopicMetadata) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=len(topic.leaders),
        replication_factor=max((len(nodes) for nodes in topic.replicas.values()), default=0),
        is_internal=topic.is_internal,
        leaders=topic.leaders,
    )
