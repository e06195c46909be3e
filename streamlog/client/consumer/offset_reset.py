"""OffsetReset: finds the position of partitions that have none.

The order is: the group's committed offset, else `auto_offset_reset`; `seek_to_beginning` and
`seek_to_end` look up the log's start or end instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeAlias

from streamlog.client.cluster import Cluster
from streamlog.client.consumer.consumer_settings import FetchSettings
from streamlog.client.consumer.subscription_state import (
    PartitionState,
    PositionStart,
    SubscriptionState,
    known_id,
)
from streamlog.client.offset_lookup import EARLIEST, LATEST, OffsetAndTimestamp, list_offsets
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import OffsetOutOfRange
from streamlog.record import TopicPartition

Committed: TypeAlias = Callable[
    [Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata | None]]
]


class OffsetReset:
    """Looks up the missing positions of partitions, and sets them in a `SubscriptionState`."""

    def __init__(
        self, cluster: Cluster, positions: SubscriptionState, settings: FetchSettings
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._settings = settings
        self._finding = asyncio.Lock()
        self._committed: Committed | None = None

    def begin_at_committed(self, committed: Committed) -> None:
        """Use this function to look up the offsets that the group has committed."""
        self._committed = committed

    async def find(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Look up and set the positions of partitions that have none.

        Args:
            partitions: the partitions to look up; None: all for which `on_assigned` does not run.

        Raises:
            OffsetOutOfRange: a partition has no committed offset, and `auto_offset_reset` is
                "none".
        """
        async with self._finding:
            # A loop, for partitions that are assigned during the look-up:
            # 1. The committed offset of t-0 is looked up; t-1 is assigned meanwhile.
            # 2. t-1 has no position either, and the reset below would take it along.
            # 3. It would start at the log's end, although its group has committed an offset.
            while asked := self._unknown(partitions, {PositionStart.COMMITTED}):
                await self._from_committed(asked)
            await self._by_time(self._unknown(partitions))

    def _unknown(
        self,
        wanted: Collection[TopicPartition] | None,
        starts: Collection[PositionStart] = frozenset(PositionStart),
    ) -> dict[TopicPartition, PartitionState]:
        return {
            partition: state
            for partition, state in self._positions.items()
            if state.position is None
            and state.start in starts
            and (not state.is_held if wanted is None else partition in wanted)
        }

    async def _from_committed(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        eras = {partition: state.era for partition, state in states.items()}
        committed = await self._committed(eras) if self._committed is not None else {}
        for partition, era in eras.items():
            state = self._positions.get(partition)
            # A partition that was sought or reassigned during the look-up has another era: its new
            # position wins.
            if state is not None and state.era == era:
                stored = committed.get(partition)
                if stored is None:
                    # `_by_time` then applies `auto_offset_reset`.
                    state.move(None, PositionStart.RESET)
                else:
                    state.move(
                        stored.offset,
                        leader_epoch=stored.leader_epoch,
                        topic_id=known_id(stored.topic_id),
                    )

    async def _by_time(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        times = {
            partition: self._time_of(partition, state.start) for partition, state in states.items()
        }
        eras = {partition: state.era for partition, state in states.items()}
        if not times:
            return
        ids = {partition: await self._topic_id(partition) for partition in times}
        for partition, found in (await self._ends(times)).items():
            unmoved = self._positions.get(partition)
            if unmoved is not None and unmoved.era == eras[partition]:
                # The id from before the look-up: if the topic was created again in between, the
                # first fetch finds the new id, and resets the position.
                unmoved.move(found.offset, topic_id=known_id(ids[partition]))

    async def _topic_id(self, partition: TopicPartition) -> bytes:
        return (await self._cluster.topic(partition.topic)).topic_id

    async def _ends(
        self, times: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(self._cluster, times, isolation=self._settings.isolation_level)

    def _time_of(self, partition: TopicPartition, start: PositionStart) -> int:
        match start:
            case PositionStart.EARLIEST:
                return EARLIEST
            case PositionStart.LATEST:
                return LATEST
            case _ if self._settings.auto_offset_reset == "none":
                raise OffsetOutOfRange(
                    f"{partition.topic}-{partition.partition} has no committed offset, and "
                    "auto_offset_reset is 'none': seek, commit, or set it to 'earliest' or 'latest'"
                )
            case _:
                return EARLIEST if self._settings.auto_offset_reset == "earliest" else LATEST
