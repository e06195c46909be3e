"""Elections: who was elected last to lead a partition, as far as a client has heard (KIP-320).

A broker that has missed elections, because it is cut off or its disk is full, names the leaders of
before and may take itself for one. Leader epochs only grow, so what is older than what is known is
not believed. A topic that was made again is another one, with another id, and begins anew.
Pure: answers go in, and it tells which of them are behind.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from streamlog.assignors import TopicPartition
from streamlog.client.offset_metadata import NO_EPOCH
from streamlog.protocol.messages.cluster import MetadataResponseTopic
from streamlog.protocol.schema import ZERO_UUID

NOBODY: Final = -1


class Elected(NamedTuple):
    """The leader of one epoch, `NOBODY` if it is not known or there is none."""

    leader: int
    epoch: int


FORMER_IDS_MAX: Final = 16
"""Remembered per topic name. An id is never used twice, so one that was replaced is old news."""


class _Topic(NamedTuple):
    topic_id: bytes
    partitions: dict[int, Elected]
    former_ids: tuple[bytes, ...] = ()


class Elections:
    """The newest that is known of each partition; it outlives metadata that turned out wrong."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def learn(self, answer: MetadataResponseTopic) -> tuple[dict[int, int], bool]:
        """Who leads its partitions, and whether the broker that says so has missed elections."""
        name = answer.name or ""
        known = self._topics.get(name)
        if known is not None and answer.topic_id in known.former_ids:
            return {number: each.leader for number, each in known.partitions.items()}, True
        if known is None:
            known = self._topics[name] = _Topic(answer.topic_id, {})
        elif known.topic_id != answer.topic_id:
            former = (*known.former_ids, known.topic_id)[-FORMER_IDS_MAX:]
            known = self._topics[name] = _Topic(answer.topic_id, {}, former)
        is_behind = False
        for each in answer.partitions:
            newest = known.partitions.get(each.partition_index)
            if newest is not None and NO_EPOCH < each.leader_epoch < newest.epoch:
                is_behind = True
            else:
                elected = Elected(each.leader_id, each.leader_epoch)
                known.partitions[each.partition_index] = elected
        numbers = [each.partition_index for each in answer.partitions]
        return {number: known.partitions[number].leader for number in numbers}, is_behind

    def topic_id(self, name: str) -> bytes:
        """The newest id of a topic; zero if nothing is known, or brokers tell none."""
        known = self._topics.get(name)
        return ZERO_UUID if known is None else known.topic_id

    def epoch(self, partition: TopicPartition) -> int:
        """The newest of a partition; -1 if nothing is known, or brokers don't tell."""
        newest = self._newest(partition)
        return NO_EPOCH if newest is None else newest.epoch

    def note(self, partition: TopicPartition, epoch: int) -> bool:
        """Somebody has read what the leader of `epoch` wrote; whether that is news."""
        newest = self._newest(partition)
        if newest is None or not NO_EPOCH < newest.epoch < epoch:
            return False
        self._topics[partition.topic].partitions[partition.partition] = Elected(NOBODY, epoch)
        return True

    def _newest(self, partition: TopicPartition) -> Elected | None:
        known = self._topics.get(partition.topic)
        return None if known is None else known.partitions.get(partition.partition)
