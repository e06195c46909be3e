"""OffsetAndMetadata and GroupMetadata: an offset to commit, and the member that commits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition

NO_GENERATION: Final = -1
NO_MEMBER: Final = ""


class GroupMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The member by which a coordinator checks a commit; see `Consumer.group_metadata`."""

    group_id: str
    generation_id: int = NO_GENERATION
    """The generation or member epoch; -1 for a consumer that assigns partitions itself, which the
    coordinator does not check."""
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    """The instance id of a static member (KIP-345)."""


NO_EPOCH: Final = -1


class OffsetAndMetadata(NamedTuple):
    """A position, with what detects later that the log has changed."""

    offset: int
    """The offset of the next record to read."""
    metadata: str = ""
    """Text that is stored with the offset; for the caller's use."""
    leader_epoch: int = NO_EPOCH
    """Leader epoch of the record before `offset`; -1 if unknown. A reader detects by it that the
    log was truncated (KIP-320)."""
    topic_id: bytes = ZERO_UUID
    """Id of the topic that the offset belongs to; zero if unknown. A reader detects by it that the
    topic was deleted and created again."""


Offsets: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]
"""Offsets to commit, with or without metadata."""


def with_metadata(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets, each as `OffsetAndMetadata`."""
    return {
        partition: committed
        if isinstance(committed, OffsetAndMetadata)
        else OffsetAndMetadata(committed)
        for partition, committed in offsets.items()
    }
