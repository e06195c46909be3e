"""Values of a commit: the offset with its metadata, and the group member that commits it.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition

NO_GENERATION: Final = -1
NO_MEMBER: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata:
    """A consumer as its group knows it; see `Consumer.group_metadata`."""

    group_id: str
    generation_id: int = NO_GENERATION
    """-1 for who assigns partitions itself: nobody can take them away, so nothing is checked."""
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    """Of a static member."""


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
