"""OffsetsForLeaderEpoch: consumers and admins apply one rule to a log's epoch ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import pytest

from streamlog.client.admin.topic_admin import EpochAdmin
from streamlog.client.cluster import Cluster
from streamlog.client.offset_lookup import find_truncated, list_epoch_ends
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import NotLeader
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.cluster_metadata import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from streamlog.protocol.messages.produce_and_fetch import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from streamlog.record import TopicPartition
from streamlog.records.epoch_chains import EpochEnd
from tests.client.conftest import OpenLog

T0 = TopicPartition("t", 0)
R = TypeVar("R")


class OneBroker:
    """A cluster of one broker that answers epoch requests from a table."""

    leaders = (0,)

    def __init__(self, ends: dict[int, tuple[int, int]], *, is_ours: bool, error: int = 0) -> None:
        self.requests: list[OffsetForLeaderEpochRequest] = []
        self.forgotten: list[str] = []
        self._ends = ends
        self._is_ours = is_ours
        self._error = error

    async def topic(self, name: str) -> OneBroker:
        return self

    def leader(self, partition: TopicPartition) -> int:
        return 1

    def leader_epoch(self, partition: TopicPartition) -> int:
        return 3

    def forget(self, topics: list[str]) -> None:
        self.forgotten += topics

    async def speaks(self, node_id: int, api_key: int, version: int) -> bool:
        return self._is_ours

    async def retrying(self, attempt: Callable[[], Awaitable[R]]) -> R:
        return await attempt()

    async def call(self, node_id: int, request: object, answer: type[R]) -> R:
        if not isinstance(request, OffsetForLeaderEpochRequest):
            begin = ListOffsetsPartitionResponse(partition_index=0, offset=0)
            topic = ListOffsetsTopicResponse(name="t", partitions=[begin])
            return cast("R", ListOffsetsResponse(topics=[topic]))
        self.requests.append(request)
        epoch, end = self._ends[request.topics[0].partitions[0].leader_epoch]
        found = EpochEndOffset(
            partition=0, error_code=self._error, leader_epoch=epoch, end_offset=end
        )
        topics = [OffsetForLeaderTopicResult(topic="t", partitions=[found])]
        return cast("R", OffsetForLeaderEpochResponse(topics=topics))


def cluster_of(broker: OneBroker) -> Cluster:
    return cast("Cluster", broker)


def find_losses(broker: OneBroker, offset: int, epoch: int) -> tuple[bool, bool]:
    """Return whether a consumer and an admin find lost records before this position."""

    async def main() -> tuple[bool, bool]:
        position = OffsetAndMetadata(offset, leader_epoch=epoch)
        lost = await find_truncated(cluster_of(broker), {T0: position})
        chains = {T0: (offset, ((1, 0), (epoch, 6)))}
        return T0 in lost, T0 in await EpochAdmin(cluster_of(broker)).divergences(chains)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("ends", "is_ours", "is_lost"),
    [
        ({2: (2, 9), 1: (1, 6), 0: (0, 0)}, True, False),
        ({2: (2, 7), 1: (1, 6), 0: (0, 0)}, True, True),
        ({2: (2, 7), 1: (1, 6), 0: (0, 0)}, False, True),
        # Epoch 2 is missing: our brokers keep all epochs, Kafka's lose some by compaction.
        ({2: (1, 9), 1: (1, 9), 0: (0, 0)}, True, True),
        ({2: (1, 9), 1: (1, 9), 0: (0, 0)}, False, False),
        # The epoch begins later: compaction has removed its first records.
        ({2: (2, 9), 1: (1, 7), 0: (0, 0)}, False, False),
        ({2: (-1, -1), 1: (-1, -1), 0: (-1, -1)}, True, True),
        ({2: (-1, -1), 1: (-1, -1), 0: (-1, -1)}, False, True),
    ],
)
def test_consumers_and_admins_agree_on_lost_records(
    ends: dict[int, tuple[int, int]], is_ours: bool, is_lost: bool
) -> None:
    broker = OneBroker(ends, is_ours=is_ours)
    assert find_losses(broker, 8, 2) == (is_lost, is_lost)
    fenced = {request.topics[0].partitions[0].current_leader_epoch for request in broker.requests}
    assert fenced == {3}


def test_a_position_without_an_epoch_is_not_looked_up() -> None:
    broker = OneBroker({}, is_ours=True)
    unknown = {T0: OffsetAndMetadata(8), TopicPartition("t", 1): OffsetAndMetadata(0, "", 2)}
    assert asyncio.run(find_truncated(cluster_of(broker), unknown)) == frozenset()
    assert not broker.requests


def test_an_epoch_end_says_whether_the_log_keeps_its_epochs() -> None:
    for is_ours in (False, True):
        broker = cluster_of(OneBroker({2: (1, 9)}, is_ours=is_ours))
        assert asyncio.run(list_epoch_ends(broker, {T0: 2})) == {T0: EpochEnd(1, 9, is_ours)}


def test_an_epoch_lookup_error_refreshes_the_leader() -> None:
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    broker = OneBroker({2: (-1, -1)}, is_ours=True, error=code)
    with pytest.raises(NotLeader, match="leader epochs of t-0"):
        asyncio.run(list_epoch_ends(cluster_of(broker), {T0: 2}))
    assert broker.forgotten == ["t"]


def test_every_broker_reports_an_intact_log(open_log: OpenLog) -> None:
    """Kafka's brokers serve none of streamlog's own APIs; that is not an error here."""

    async def main() -> None:
        async with open_log(t=1) as log, log.producer() as producer:
            await (await producer.send("t", b"a", partition=0))
            async with log.consumer(auto_offset_reset="earliest") as consumer:
                consumer.assign([T0])
                assert len((await consumer.poll(timeout_ms=60_000))[T0]) == 1
                kept_position = consumer.offset_and_metadata(T0, 1)
                assert kept_position.leader_epoch >= 0
                assert await consumer.truncated({T0: kept_position}) == frozenset()
                beyond = OffsetAndMetadata(9, leader_epoch=kept_position.leader_epoch)
                assert await consumer.truncated({T0: beyond}) == {T0}

    asyncio.run(main())
