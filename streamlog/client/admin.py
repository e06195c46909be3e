"""Admin: topics, their records and settings, and users with passwords.

Every request names all of its topics and is answered topic by topic; the first that was refused
is raised as an error, with the others' names if there are several.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from streamlog.assignors import TopicPartition
from streamlog.client import users
from streamlog.client.cluster import TopicMetadata
from streamlog.client.group_admin import GroupAdmin
from streamlog.client.offsets import by_leader
from streamlog.errors import StreamlogError
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
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
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from streamlog.protocol.messages.partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from streamlog.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)
from streamlog.protocol.scram import ITERATIONS_DEFAULT, ScramMechanism

TOPIC_TIMEOUT_MS = 30_000
"""How long the controller may take to have a topic created or deleted everywhere."""

HIGH_WATERMARK = -1
"""In `delete_records`: everything that consumers can see."""
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
SET = 0
DELETE = 1
SOURCES = {1: "topic", 2: "broker", 3: "all brokers", 4: "start", 5: "default"}
"""Where a value comes from, by Kafka's numbers: set for the topic, altered for the broker or for
all of them, given when the broker was started, or nobody's wish."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int
    replication_factor: int = 1
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


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting of a topic or broker."""

    name: str
    value: str | None
    source: str
    """One of `SOURCES`, or empty if the log knows others."""
    is_read_only: bool
    documentation: str | None


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """What clients may use, in bytes a second."""

    entity: Mapping[str, str | None]
    """For whom: `user`, `client-id` or both, each with a name, or None for its default."""
    rates: Mapping[str, float]
    """`producer_byte_rate` and `consumer_byte_rate`."""


class Admin(GroupAdmin):
    """Manages topics and groups, over the connections of whoever made it, which it leaves open."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is left to do: every call has been answered."""

    async def create_topics(self, topics: Iterable[NewTopic]) -> None:
        """Create topics; those that could be created are, even if others are refused.

        Raises:
            TopicExists: one of them is there already.
            LogError: a name, a number or a setting is not allowed.
        """
        wanted = list(topics)

        async def attempt() -> None:
            request = CreateTopicsRequest(
                topics=[_creatable(topic) for topic in wanted], timeout_ms=TOPIC_TIMEOUT_MS
            )
            response = await self._cluster.call_controller(request, CreateTopicsResponse)
            _raise_first(
                "create topic",
                [(each.name, each.error_code, each.error_message) for each in response.topics],
            )

        await self._cluster.retrying(attempt)

    async def create_partitions(self, topic: str, partitions: int) -> None:
        """Give a topic so many partitions in all. Records with keys may go elsewhere from then on.

        Raises:
            UnknownTopicOrPartition: it does not exist.
            LogError: it has as many already, or can't have so many.
        """

        async def attempt() -> None:
            wanted = CreatePartitionsTopic(name=topic, count=partitions, assignments=None)
            request = CreatePartitionsRequest(topics=[wanted], timeout_ms=TOPIC_TIMEOUT_MS)
            response = await self._cluster.call_controller(request, CreatePartitionsResponse)
            _raise_first(
                "add partitions to",
                [(each.name, each.error_code, each.error_message) for each in response.results],
            )
            self._cluster.forget([topic])

        await self._cluster.retrying(attempt)

    async def delete_topics(self, names: Collection[str]) -> None:
        """Delete topics with all their records.

        Raises:
            UnknownTopicOrPartition: one of them does not exist.
        """
        wanted = list(names)

        async def attempt() -> None:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in wanted],
                topic_names=wanted,
                timeout_ms=TOPIC_TIMEOUT_MS,
            )
            response = await self._cluster.call_controller(request, DeleteTopicsResponse)
            _raise_first(
                "delete topic",
                [(each.name, each.error_code, each.error_message) for each in response.responses],
            )

        await self._cluster.retrying(attempt)
        self._cluster.forget(wanted)

    async def list_topics(self) -> list[TopicDescription]:
        """All topics, by name, without those that the log keeps for itself."""
        found = await self._cluster.retrying(self._cluster.describe)
        return [_description(topic) for topic in _by_name(found) if not topic.is_internal]

    async def describe_topics(self, names: Collection[str]) -> list[TopicDescription]:
        """These topics, by name.

        Raises:
            UnknownTopicOrPartition: one of them does not exist.
        """
        await self._cluster.retrying(lambda: self._cluster.refresh(names))
        found = await self._cluster.retrying(lambda: self._cluster.describe(names))
        return [_description(topic) for topic in _by_name(found)]

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

    async def describe_configs(self, topic: str | None = None) -> dict[str, ConfigEntry]:
        """All settings of a topic, by name; without one, of the broker that manages topics.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
        """

        async def attempt() -> dict[str, ConfigEntry]:
            node_id, kind, name = await self._resource(topic)
            asked = DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=None
            )
            request = DescribeConfigsRequest(resources=[asked], include_documentation=True)
            response = await self._cluster.call(node_id, request, DescribeConfigsResponse)
            _raise_first(
                "describe settings of",
                [
                    (each.resource_name, each.error_code, each.error_message)
                    for each in response.results
                ],
            )
            return {
                entry.name: ConfigEntry(
                    name=entry.name,
                    value=entry.value,
                    source=SOURCES.get(entry.config_source, ""),
                    is_read_only=entry.read_only,
                    documentation=entry.documentation,
                )
                for result in response.results
                for entry in result.configs
            }

        return await self._cluster.retrying(attempt)

    async def describe_client_quotas(self) -> list[ClientQuota]:
        """The quotas that were set, of users and client ids."""

        async def attempt() -> list[ClientQuota]:
            request = DescribeClientQuotasRequest()
            response = await self._cluster.call_controller(request, DescribeClientQuotasResponse)
            _raise_first("describe quotas", [(None, response.error_code, response.error_message)])
            return [
                ClientQuota(
                    entity={part.entity_type: part.entity_name for part in each.entity},
                    rates={value.key: value.value for value in each.values},
                )
                for each in response.entries or []
            ]

        return await self._cluster.retrying(attempt)

    async def alter_client_quotas(
        self, entity: Mapping[str, str | None], rates: Mapping[str, float | None]
    ) -> None:
        """Change what clients may use, see `ClientQuota`; a rate of None is taken away.

        Raises:
            LogError: there is no such quota, or no such entity can have one.
        """

        async def attempt() -> None:
            alteration = QuotaAlteration(
                entity=[QuotaEntity(entity_type=k, entity_name=v) for k, v in entity.items()],
                ops=[
                    QuotaOperation(key=key, value=rate or 0.0, remove=rate is None)
                    for key, rate in rates.items()
                ],
            )
            request = AlterClientQuotasRequest(entries=[alteration])
            response = await self._cluster.call_controller(request, AlterClientQuotasResponse)
            _raise_first(
                "alter quotas",
                [(None, each.error_code, each.error_message) for each in response.entries],
            )

        await self._cluster.retrying(attempt)

    async def alter_configs(
        self, changes: Mapping[str, str | None], *, topic: str | None = None
    ) -> None:
        """Change settings of a topic, all of them or none; None gives one back to its default.

        Without a topic they are those of the broker that manages topics.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            LogError: a setting is unknown, or a value not allowed.
        """

        async def attempt() -> None:
            node_id, kind, name = await self._resource(topic)
            configs = [
                AlterableConfig(
                    name=setting, config_operation=DELETE if value is None else SET, value=value
                )
                for setting, value in changes.items()
            ]
            resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
            request = IncrementalAlterConfigsRequest(resources=[resource])
            response = await self._cluster.call(node_id, request, IncrementalAlterConfigsResponse)
            _raise_first(
                "alter settings of",
                [
                    (each.resource_name, each.error_code, each.error_message)
                    for each in response.responses
                ],
            )

        await self._cluster.retrying(attempt)

    async def set_password(
        self, user: str, password: str, *, iterations: int = ITERATIONS_DEFAULT
    ) -> None:
        """Give a user a password, for PLAIN and every SCRAM mechanism; it replaces the old one.

        Raises:
            LogError: the broker does not take it.
        """
        await users.set_password(self._cluster, user, password, iterations=iterations)

    async def remove_user(self, user: str) -> None:
        """Take a user's password away.

        Raises:
            LogError: there is no such user.
        """
        await users.remove_user(self._cluster, user)

    async def list_users(self) -> dict[str, frozenset[ScramMechanism]]:
        """Everybody who has a password, and the mechanisms that prove it."""
        return await users.list_users(self._cluster)

    async def _resource(self, topic: str | None) -> tuple[int, int, str]:
        """Whom to ask, and the type and name of what."""
        node_id = await self._cluster.controller()
        if topic is None:
            return node_id, BROKER_RESOURCE, str(node_id)
        return node_id, TOPIC_RESOURCE, topic


def _deletion(offsets: Mapping[TopicPartition, int]) -> DeleteRecordsRequest:
    topics: dict[str, list[DeleteRecordsPartition]] = {}
    for partition, offset in offsets.items():
        wanted = DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
        topics.setdefault(partition.topic, []).append(wanted)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=many) for name, many in topics.items()],
        timeout_ms=TOPIC_TIMEOUT_MS,
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


def _raise_first(what: str, results: list[tuple[str | None, int, str | None]]) -> None:
    problems: list[StreamlogError] = []
    for name, error_code, message in results:
        if error_code:
            detail = f"{what} {name!r}" + (f": {message}" if message else "")
            error = error_for(error_code, detail)
            # Asked again, the others would fail as well; a topic that is missing stays missing.
            error.retriable = error.retriable and len(results) == 1 and what == "create topic"
            problems.append(error)
    for problem in problems[1:]:
        log.warning("%s", problem)
    if problems:
        raise problems[0]


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
