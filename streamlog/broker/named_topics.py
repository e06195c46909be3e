"""Topics by name or by id: OffsetCommit and OffsetFetch use either (KIP-848).

Pure. A topic id ends with its topic: a commit for a deleted topic is refused, rather than kept for
a new topic of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol

from streamlog.protocol.messages.classic_groups import (
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from streamlog.protocol.schema import ZERO_UUID

MIRRORED_LOGS: Final = "__mirrored."
"""How the names of topics begin in which links mirror their sources' internal topics, for apps.
Only brokers read them, and those who may act for one (CLUSTER_ACTION)."""
TOPIC_IDS_VERSION: Final = 10
"""From this version of both requests on topics go by their ids."""


class TopicKey(Protocol):
    """A topic in a request."""

    name: str
    topic_id: bytes


def topic_key(topic: TopicKey, name_of: Callable[[bytes], str | None]) -> str:
    """Return the name of a topic that a request names or gives by id; empty for an unknown id.

    Within a process, requests give names in every version.
    """
    if topic.topic_id == ZERO_UUID:
        return topic.name
    return name_of(topic.topic_id) or ""


def refuse_topic(topic: OffsetFetchRequestTopics, code: int) -> OffsetFetchResponseTopics:
    """Return the response for one topic with an error code for each partition."""
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=-1, metadata="", error_code=code
            )
            for index in topic.partition_indexes
        ],
    )


class Topics(Protocol):
    """All topics of the cluster, as they are now."""

    def names(self) -> Collection[str]:
        """Return the names of all topics."""
        ...

    def topic_id(self, name: str) -> bytes | None:
        """Return the topic id; None if there is no such topic."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id; None if there is no such topic."""
        ...

    def leader(self, name: str, partition: int) -> tuple[int, int] | None:
        """Return a partition's leader and leader epoch; None if it has no leader."""
        ...

    def partitions(self, name: str) -> int:
        """Return the number of partitions; 0 if there is no such topic."""
        ...
