"""EpochAdmin: by which leader epochs partitions were written, and whether they still are.

The part of `Admin` that is about OffsetsForLeaderEpoch (KIP-320), for who keeps positions without a
consumer. A broker that does not know the request, or tells no leader epochs, knows of no cuts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from streamlog.assignors import TopicPartition
from streamlog.client.admin_room import AdminRoom
from streamlog.client.epoch_ends import epoch_ends
from streamlog.client.offsets import EARLIEST, list_offsets
from streamlog.errors import UnsupportedVersion
from streamlog.records.epoch_chains import (
    Asking,
    EpochChain,
    divergence,
    learnt,
    questions,
)

T = TypeVar("T")


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
                wanted = rounds.send(await epoch_ends(self._cluster, wanted))
        except StopIteration as end:
            found: dict[TopicPartition, T] = end.value
            return found
        except UnsupportedVersion:
            return dict.fromkeys(askings, unknown)
