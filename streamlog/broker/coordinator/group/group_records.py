"""The records of `__consumer_offsets`, byte for byte as Kafka writes them.

Two kinds, told apart by the version in front of the key: 0 and 1 are committed offsets, 2 is a
group. Values have a version of their own. This module writes what Kafka has written since 2.3
(group value 3; offset value 1 with an expiry time, otherwise 3, or since 4.1 the version 4 that
names the topic by id) and reads every other version, so that a partition of Kafka's can be read as
it is. Keys of later versions are other kinds of groups, and are skipped.
"""

from __future__ import annotations

import msgspec

from streamlog.broker.coordinator.shard import CoordinatorRecord
from streamlog.protocol.codec import decode_versioned, encode_versioned
from streamlog.protocol.messages.classic_groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from streamlog.protocol.schema import ZERO_UUID

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_OF_TOPICS = 4
"""From this version on, a committed offset names its topic by id."""
EXPIRING_OFFSET_VALUE_VERSION = 1
GROUP_VALUE_VERSION = 3


class OffsetChange(msgspec.Struct, frozen=True):
    """A group's committed offset in one partition; None if it is deleted."""

    key: OffsetCommitKey
    value: OffsetCommitValue | None


class GroupChange(msgspec.Struct, frozen=True):
    """A group as of its last completed rebalance; None if it is deleted."""

    group_id: str
    value: GroupMetadataValue | None


def encode_change(change: OffsetChange | GroupChange) -> CoordinatorRecord:
    """Encode one change."""
    if isinstance(change, OffsetChange):
        position = change.value
        return CoordinatorRecord(
            encode_versioned(change.key, OFFSET_KEY_VERSION),
            None if position is None else encode_versioned(position, _version_of(position)),
        )
    value = change.value
    return CoordinatorRecord(
        encode_versioned(GroupMetadataKey(group=change.group_id), GROUP_KEY_VERSION),
        None if value is None else encode_versioned(value, GROUP_VALUE_VERSION),
    )


def decode_change(record: CoordinatorRecord) -> OffsetChange | GroupChange | None:
    """Decode a record; None for a record of another kind.

    Raises:
        CorruptData: it is cut off, or its value has an unknown version.
    """
    # A key begins with its version, as a 16-bit integer.
    version = int.from_bytes(record.key[:2], signed=True)
    data = record.value
    if version > GROUP_KEY_VERSION:
        return None
    if version == GROUP_KEY_VERSION:
        group = decode_versioned(GroupMetadataKey, record.key)
        return GroupChange(
            group.group, None if data is None else decode_versioned(GroupMetadataValue, data)
        )
    return OffsetChange(
        decode_versioned(OffsetCommitKey, record.key),
        None if data is None else decode_versioned(OffsetCommitValue, data),
    )


def _version_of(position: OffsetCommitValue) -> int:
    """Return the oldest version that can hold the value's fields."""
    if position.expire_timestamp >= 0:
        return EXPIRING_OFFSET_VALUE_VERSION
    is_of_topic = position.topic_id != ZERO_UUID
    return OFFSET_VALUE_VERSION_OF_TOPICS if is_of_topic else OFFSET_VALUE_VERSION
