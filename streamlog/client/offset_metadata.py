"""OffsetAndMetadata: a place in a partition, with what its committer wants to remember of it.

A value, on its way to the group's coordinator or back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from streamlog.assignors import TopicPartition
from streamlog.protocol.schema import ZERO_UUID

NO_EPOCH: Final = -1


class OffsetAndMetadata(NamedTuple):
    """Where to go on."""

    offset: int
    """Of the next record."""
    metadata: str = ""
    """Whatever the owner writes; nobody else reads it."""
    leader_epoch: int = NO_EPOCH
    """Of the record before it; -1 if nobody knows. By it a reader notices that a log was cut."""
    topic_id: bytes = ZERO_UUID
    """Of the topic that the offset belongs to; zero if it is unknown. By it a reader notices that
    a topic was deleted and created again under the same name."""


Offsets: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]
"""What an owner commits."""


def with_metadata(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """The same, in full."""
    return {
        partition: place if isinstance(place, OffsetAndMetadata) else OffsetAndMetadata(place)
        for partition, place in offsets.items()
    }
