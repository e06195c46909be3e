"""ClusterTopics: which topics there are, for rooms below that know no metadata."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from streamlog.broker.quorum.registrations import NO_LEADER

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata import ClusterMetadata


class ClusterTopics:
    """A view of the metadata; what it says changes with it."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def names(self) -> Collection[str]:
        """Every topic."""
        return self._metadata.topic_names()

    def topic_id(self, name: str) -> bytes | None:
        """Its identity; None if there is no such topic."""
        topic = self._metadata.topic(name)
        return None if topic is None else topic.topic_id

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with this identity."""
        topic = self._metadata.topics.get(topic_id)
        return None if topic is None else topic.name

    def leader(self, name: str, partition: int) -> tuple[int, int] | None:
        """Who leads a partition, and in which leader epoch; None if nobody does."""
        topic = self._metadata.topic(name)
        found = None if topic is None else topic.partitions.get(partition)
        if found is None or found.leader == NO_LEADER:
            return None
        return found.leader, found.leader_epoch

    def partitions(self, name: str) -> int:
        """How many it has; 0 if there is no such topic."""
        topic = self._metadata.topic(name)
        return 0 if topic is None else len(topic.partitions)
