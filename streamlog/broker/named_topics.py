"""Which topic a position is in: OffsetCommit and OffsetFetch say it by name, or by id (KIP-848).

Pure. An id outlives no topic: what is committed for one that was deleted is refused, instead of
being kept for another topic of the same name.
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

TOPIC_IDS_VERSION: Final = 10
"""From this version of both requests on topics go by their ids."""


class TopicKey(Protocol):
    """A topic in a request."""

    name: str
    topic_id: bytes


def topic_key(topic: TopicKey, name_of: Callable[[bytes], str | None]) -> str:
    """The name of a topic that goes by name or by id; empty if there is none with this id.

    Within a process names are given in every version.
    """
    if topic.topic_id == ZERO_UUID:
        return topic.name
    return name_of(topic.topic_id) or ""


def refuse_topic(topic: OffsetFetchRequestTopics, code: int) -> OffsetFetchResponseTopics:
    """The answer about one topic that says why there is no position."""
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
        """Every topic."""
        ...

    def topic_id(self, name: str) -> bytes | None:
        """Its identity; None if there is no such topic."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with this identity."""
        ...

    def leader(self, name: str, partition: int) -> tuple[int, int] | None:
        """Who leads a partition, and in which leader epoch; None if nobody does."""
        ...

    def partitions(self, name: str) -> int:
        """How many it has; 0 if there is no such topic."""
        ...
