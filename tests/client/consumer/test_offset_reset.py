"""Beginnings: where partitions without a position go on."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import cast

from streamlog.client.cluster import Cluster
from streamlog.client.consumer.consumer_settings import FetchSettings
from streamlog.client.consumer.offset_reset import OffsetReset
from streamlog.client.consumer.subscription_state import SubscriptionState
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.record import TopicPartition

T0 = TopicPartition("t", 0)


class Group:
    """A group that has committed offset 5, and a rebalance while it is asked for the first time."""

    def __init__(self, positions: SubscriptionState) -> None:
        self.asked = 0
        self._positions = positions

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.asked == 1:
            self._positions.assign(())
            self._positions.assign(partitions)
        return dict.fromkeys(partitions, OffsetAndMetadata(5))


def test_who_is_assigned_anew_while_it_is_asked_where_to_begin_begins_there() -> None:
    """Not at the earliest record: everything would be done again."""

    async def main() -> None:
        positions = SubscriptionState()
        positions.assign([T0])
        group = Group(positions)
        nobody = cast("Cluster", None)
        beginnings = OffsetReset(nobody, positions, FetchSettings(auto_offset_reset="earliest"))
        beginnings.begin_at_committed(group.committed)
        await beginnings.find()
        assert (positions.state(T0).position, group.asked) == (5, 2)

    asyncio.run(main())
