"""Admin: creates, deletes and describes topics.

Every request names all of its topics and is answered topic by topic; the first that was refused
is raised as an error, with the others' names if there are several.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from streamlog.client.cluster import Cluster, TopicMetadata
from streamlog.errors import StreamlogError
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

TOPIC_TIMEOUT_MS = 30_000
"""How long the controller may take to have a topic created or deleted everywhere."""

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


class Admin:
    """Manages topics. It uses the connections of whoever made it, and leaves them open."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

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
            error.retriable = error.retriable and len(results) == 1 and not what.startswith("del")
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
