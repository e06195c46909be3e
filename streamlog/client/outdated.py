"""Which offsets belong to topics that are no more.

OffsetCommit names topics, and a topic that is deleted and created again has the same name: before
offsets are sent, those of the old topic are sorted out. A fetch that meets the deletion makes the
client forget the topic, so a look-up is only needed then.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.assignors import TopicPartition
from streamlog.client.cluster import Cluster
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import UnknownTopicOrPartition
from streamlog.protocol.schema import ZERO_UUID


async def outdated(
    cluster: Cluster, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> frozenset[TopicPartition]:
    """Those that belong to another topic than the present one of the same name, or to none.

    Raises:
        LogError: retriable: it can't be found out just now.
    """
    told = {part: place.topic_id for part, place in offsets.items() if place.topic_id != ZERO_UUID}
    present = {topic: await _topic_id(cluster, topic) for topic in {part.topic for part in told}}
    return frozenset(
        part for part, topic_id in told.items() if present[part.topic] not in (topic_id, ZERO_UUID)
    )


async def _topic_id(cluster: Cluster, topic: str) -> bytes | None:
    """The id of a topic; None if there is none of this name."""
    try:
        return (await cluster.topic(topic)).topic_id
    except UnknownTopicOrPartition:
        return None
