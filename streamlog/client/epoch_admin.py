"""EpochAdmin: by which leader epochs partitions were written, and whether they still are.

The part of `Admin` that is about OffsetsForLeaderEpoch (KIP-320), for who keeps positions without a
consumer. A broker that does not know the request, or tells no leader epochs, knows of no cuts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from streamlog.assignors import TopicPartition
from streamlog.client.admin_room import AdminRoom
from streamlog.client.offset_metadata import NO_EPOCH
from streamlog.client.offsets import EARLIEST, by_leader, list_offsets
from streamlog.errors import UnsupportedVersion
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.cluster import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from streamlog.records.epoch_chains import (
    Asking,
    EpochChain,
    EpochEnd,
    divergence,
    learnt,
    questions,
)

T = TypeVar("T")
REPLICA_ID_OF_A_CONSUMER = -1


class EpochAdmin(AdminRoom):
    """Tells logs from others at the same offsets."""

    async def leader_epochs(
        self,
        offsets: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, EpochChain] | None = None,
    ) -> dict[TopicPartition, EpochChain]:
        """The last leader epochs of the records before each offset; empty where nobody knows.

        Args:
            offsets: by partition.
            known: what this told of earlier offsets; spares requests.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
        """
        await self._cluster.retrying(
            lambda: self._cluster.refresh(sorted({at.topic for at in offsets}))
        )
        before = known or {}
        return await self._answered(
            {
                at: learnt(offset, self._cluster.leader_epoch(at), before.get(at, ()))
                for at, offset in offsets.items()
            },
            unknown=(),
        )

    async def divergences(
        self, places: Mapping[TopicPartition, tuple[int, EpochChain]]
    ) -> dict[TopicPartition, int]:
        """The partitions that are not the logs any more that had these epochs before an offset.

        Returns:
            Up to where each still is that log; -1 if nobody knows.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
        """
        asked = {at: place for at, place in places.items() if place[1]}
        for _ in range(2):
            # Again: a log whose beginning was moved meanwhile has forgotten epochs.
            begins = await list_offsets(self._cluster, dict.fromkeys(asked, EARLIEST))
            found = await self._answered(
                {at: divergence(*place, begins[at].offset) for at, place in asked.items()},
                unknown=None,
            )
            asked = {at: asked[at] for at, offset in found.items() if offset is not None}
        return {at: offset for at, offset in found.items() if offset is not None}

    async def _answered(
        self, askings: Mapping[TopicPartition, Asking[T]], *, unknown: T
    ) -> dict[TopicPartition, T]:
        rounds = questions(askings)
        try:
            wanted = next(rounds)
            while True:
                wanted = rounds.send(await self._ends(wanted))
        except StopIteration as end:
            found: dict[TopicPartition, T] = end.value
            return found
        except UnsupportedVersion:
            return dict.fromkeys(askings, unknown)

    async def _ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        async def attempt() -> dict[TopicPartition, EpochEnd]:
            found: dict[TopicPartition, EpochEnd] = {}
            for leader, wanted in (await by_leader(self._cluster, epochs)).items():
                response = await self._cluster.call(
                    leader, _request(wanted), OffsetForLeaderEpochResponse
                )
                found |= self._found(response)
            return found

        return await self._cluster.retrying(attempt)

    def _found(self, response: OffsetForLeaderEpochResponse) -> dict[TopicPartition, EpochEnd]:
        found: dict[TopicPartition, EpochEnd] = {}
        for topic in response.topics:
            for each in topic.partitions:
                at = TopicPartition(topic.topic, each.partition)
                if each.error_code:
                    self._cluster.forget([topic.topic])
                    where = f"leader epochs of {at.topic}-{at.partition}"
                    raise error_for(each.error_code, where)
                found[at] = EpochEnd(each.leader_epoch, each.end_offset)
        return found


def _request(epochs: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for at, epoch in epochs.items():
        topics.setdefault(at.topic, []).append(
            OffsetForLeaderPartition(
                partition=at.partition, current_leader_epoch=NO_EPOCH, leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=REPLICA_ID_OF_A_CONSUMER,
        topics=[OffsetForLeaderTopic(topic=name, partitions=many) for name, many in topics.items()],
    )
