"""OffsetReset: where partitions without a position begin."""

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
    """A group that has committed offset 5, and that rebalances during its first lookup."""

    def __init__(self, positions: SubscriptionState) -> None:
        self.lookups = 0
        self._positions = positions

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self.lookups += 1
        await asyncio.sleep(0)
        if self.lookups == 1:
            self._positions.assign(())
            self._positions.assign(partitions)
        return dict.fromkeys(partitions, OffsetAndMetadata(5))


def test_a_rebalance_during_the_offset_lookup_repeats_the_lookup() -> None:
    """It does not begin at the earliest record, which would repeat everything."""

    async def main() -> None:
        positions = SubscriptionState()
        positions.assign([T0])
        group = Group(positions)
        no_cluster = cast("Cluster", None)
        offset_reset = OffsetReset(
            no_cluster, positions, FetchSettings(auto_offset_reset="earliest")
        )
        offset_reset.begin_at_committed(group.committed)
        await offset_reset.find()
        assert (positions.state(T0).position, group.lookups) == (5, 2)

    asyncio.run(main())
