"""Mirror conventions: names of topics and bytes of records, as MirrorMaker 2 has them (KIP-382).

Others read them: `RemoteClusterUtils` and `MirrorClient` of Kafka's own libraries, and MirrorMaker
2 itself. The records are structs of Kafka's protocol: integers are big-endian, a text has its
length before it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from streamlog.record import TopicPartition

KeyAndValue: TypeAlias = tuple[bytes, bytes]
HEARTBEATS: Final = "heartbeats"
VERSION: Final = 0
"""The version of checkpoints and heartbeats; offset syncs have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorNames:
    """The names of a mirror's topics in the target."""

    source: str
    """The alias of the cluster that is mirrored."""
    target: str
    """The alias of the cluster that gets the records."""
    separator: str = "."
    keeps_names: bool = False
    """Whether topics keep their names, as with `IdentityReplicationPolicy`."""

    def remote(self, topic: str) -> str:
        """Return the name of a topic in the target."""
        # Heartbeats keep the way that they have come in their name, whatever the policy is.
        if self.keeps_names and not topic.endswith(HEARTBEATS):
            return topic
        return f"{self.source}{self.separator}{topic}"

    @property
    def offset_syncs(self) -> str:
        """The topic with pairs of offsets of one record in both clusters."""
        return self._internal("mm2-offset-syncs", self.source)

    @property
    def checkpoints(self) -> str:
        """The topic with the positions of groups in both clusters."""
        return self._internal(self.source, "checkpoints")

    @property
    def positions(self) -> str:
        """The topic with the mirror's own positions. It is ours; the name hides it from others."""
        return self._internal("mm2-streamlog-positions", self.source)

    @property
    def remote_heartbeats(self) -> str:
        """The topic whose name alone tells readers which clusters lead here."""
        return self.remote(HEARTBEATS)

    def _internal(self, *words: str) -> str:
        return self.separator.join((*words, "internal"))


def offset_sync(at: TopicPartition, upstream: int, downstream: int) -> KeyAndValue:
    """Return the record that says where one record is in both clusters.

    Args:
        at: the partition in the source.
        upstream: the record's offset there.
        downstream: its offset in the target.
    """
    return _text(at.topic) + _INT32.pack(at.partition), _TWO_OFFSETS.pack(upstream, downstream)


def checkpoint(
    group: str, at: TopicPartition, upstream: int, downstream: int, metadata: str
) -> KeyAndValue:
    """Return the record that says where a group is in both clusters.

    Args:
        group: the group.
        at: the partition in the target.
        upstream: the group's offset in the source.
        downstream: the offset from which it would go on in the target.
        metadata: what the group has committed with its offset.
    """
    key = _text(group) + _text(at.topic) + _INT32.pack(at.partition)
    return key, _INT16.pack(VERSION) + _TWO_OFFSETS.pack(upstream, downstream) + _text(metadata)


def heartbeat(names: MirrorNames, time_ms: int) -> KeyAndValue:
    """Return the record that says when the mirror was alive."""
    key = _text(names.source) + _text(names.target)
    return key, _INT16.pack(VERSION) + _INT64.pack(time_ms)


_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_TWO_OFFSETS: Final = struct.Struct(">qq")


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data
