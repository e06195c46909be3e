"""ReadableEnds: what consumers can read of mirror partitions, anywhere in this cluster.

A replica on this broker knows it if it leads, or is in touch with its leader. Of other partitions
the leader is asked; its last answer counts until the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from streamlog.broker.mirroring.group_copy import MirrorEnds, Where
from streamlog.errors import CorruptData, LogError
from streamlog.protocol.messages.lag_messages import (
    FindNextRecordsRequest,
    FindNextRecordsResponse,
    PartitionPositions,
    TopicPositions,
)

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.broker.replication.partition import Partitions
    from streamlog.protocol.schema import Message

PARTITIONS_PER_REQUEST = 1_000
LEADER_MS = 2_000
"""How long to wait for a leader."""

AskLeader = Callable[[int, "Message", int], Awaitable["Message"]]
"""Sends a question to another broker, by id, with a time-out in ms. Raises StreamlogError."""


class ReadableEnds:
    """The ends of partitions, as far as this broker knows them.

    Args:
        metadata: the committed metadata.
        partitions: the partitions of this broker.
        ask_leader: asks another broker.
    """

    def __init__(
        self, metadata: ClusterMetadata, partitions: Partitions, ask_leader: AskLeader
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._ask_leader = ask_leader
        self._answers: dict[int, dict[Where, tuple[int, int]]] = {}
        """Start and end of partitions, by the leader that has sent them."""

    def known(self, topics: Iterable[str]) -> dict[Where, MirrorEnds]:
        """Return the ends of partitions of these topics, without those that are not known."""
        found = {}
        for where, leader, epoch in self._where(topics):
            ends = self._near(where)
            if ends is None and leader is not None:
                ends = self._answers.get(leader, {}).get(where)
            if ends is not None:
                found[where] = MirrorEnds(*ends, epoch)
        return found

    def far(self, topics: Iterable[str]) -> dict[int, list[Where]]:
        """Return the partitions that have to be asked for, by leader."""
        asked: dict[int, list[Where]] = {}
        for where, leader, _ in self._where(topics):
            if leader is not None and self._near(where) is None:
                asked.setdefault(leader, []).append(where)
        self._answers = {leader: ends for leader, ends in self._answers.items() if leader in asked}
        return asked

    async def ask(self, leader: int, partitions: Sequence[Where]) -> None:
        """Ask a leader for the ends of its partitions.

        Raises:
            StreamlogError: it does not answer.
        """
        found: dict[Where, tuple[int, int]] = {}
        for begin in range(0, len(partitions), PARTITIONS_PER_REQUEST):
            topics: dict[str, list[PartitionPositions]] = {}
            for name, index in partitions[begin : begin + PARTITIONS_PER_REQUEST]:
                # Without offsets: only the ends are wanted.
                asked = PartitionPositions(partition_index=index, offsets=[])
                topics.setdefault(name, []).append(asked)
            request = FindNextRecordsRequest(
                timeout_ms=LEADER_MS,
                topics=[
                    TopicPositions(name=name, partitions=each) for name, each in topics.items()
                ],
            )
            answer = await self._ask_leader(leader, request, LEADER_MS)
            if not isinstance(answer, FindNextRecordsResponse):
                raise CorruptData(f"broker {leader} answered {type(answer).__name__}")
            found.update(_ends_in(answer))
        self._answers[leader] = found

    def _where(self, topics: Iterable[str]) -> Iterator[tuple[Where, int | None, int]]:
        """Yield partitions with their leaders and leader epochs."""
        for name in topics:
            for index in range(self._partitions.partitions(name)):
                found = self._partitions.leader(name, index)
                topic = self._metadata.topic(name)
                if topic is not None:
                    leader = None if found is None else found[0]
                    yield (name, index), leader, topic.partitions[index].leader_epoch

    def _near(self, where: Where) -> tuple[int, int] | None:
        """Return the ends of a partition whose end for readers is known on this broker."""
        partition = self._partitions.hosted(*where)
        if partition is None or not (partition.is_leader or partition.is_copy):
            return None
        try:
            if partition.is_leader:
                partition.check_end_known()
        except LogError:
            return None
        return partition.log.log_start_offset, partition.high_watermark


def _ends_in(answer: FindNextRecordsResponse) -> Iterator[tuple[Where, tuple[int, int]]]:
    for topic in answer.topics:
        for each in topic.partitions:
            if not each.error_code:
                yield (
                    (topic.name, each.partition_index),
                    (each.log_start_offset, each.high_watermark),
                )
