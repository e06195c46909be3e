"""A coordinator without a replica of a partition asks its leader."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from streamlog.broker.broker import Broker
from streamlog.broker.lag.group_lag import Ends
from streamlog.broker.lag.leader_questions import LeaderQuestions
from streamlog.broker.lag.next_records import NextRecord
from streamlog.clock import ManualClock
from streamlog.errors import ConnectionLost
from streamlog.metrics.prometheus import exposition
from streamlog.protocol.messages.classic_groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from streamlog.protocol.messages.lag_messages import (
    FindNextRecordsRequest,
    FindNextRecordsResponse,
    FoundNextRecord,
    PartitionNextRecords,
    TopicNextRecords,
)
from streamlog.protocol.schema import Message
from streamlog.records.batch import encode_batch
from tests.broker.coordinator.driving import commit
from tests.broker.lag.lag_stories import metrics_of
from tests.broker.node import ask, context, produce_request
from tests.broker.test_replication import create
from tests.broker.three_brokers import Cluster, run_cluster, until

LAG = "kafka_consumergroup_group_lag"


async def commit_elsewhere(cluster: Cluster, leader: Broker, offset: int) -> tuple[Broker, str]:
    """Commit for a group whose coordinator is not this leader; return coordinator and group."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    await ask(leader, request, FindCoordinatorResponse)
    async with asyncio.timeout(30):
        while True:
            for number in range(20):
                for broker in cluster.brokers:
                    is_other = broker is not leader
                    name = f"g{number}"
                    if is_other and await commit(broker, offset, group_id=name) == 0:
                        return broker, name
            await asyncio.sleep(0.02)  # no event announces that a coordinator has loaded


def test_lag_of_a_partition_that_only_another_broker_has() -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster, replicas=1)
        (leader,) = [each for each in cluster.brokers if each._partitions._led.get(("t", 0))]
        sent_ms = time.time_ns() // 1_000_000 - 100_000
        data = encode_batch([(sent_ms + 1_000 * n, None, b"x", ()) for n in range(20)])
        await leader.handle(produce_request(data), context(produce_request(data)))
        coordinator, group = await commit_elsewhere(cluster, leader, 5)
        assert coordinator._partitions.hosted("t", 0) is None
        found = await metrics_of(coordinator)
        at_ms = time.time_ns() // 1_000_000
        assert found[LAG, group, "t", "0"] == 15
        age = found[LAG + "_seconds", group, "t", "0"]
        assert 95 <= age <= (at_ms - sent_ms - 5_000) / 1_000
        # What retention has deleted is lost, and the next record is another one.
        leader._partitions.get("t", 0).delete_before(12)
        coordinator_rounds = coordinator.directory.metrics._preparations[0].__self__  # type: ignore[attr-defined]
        coordinator_rounds._looked_ms = None
        found = await metrics_of(coordinator)
        assert found["streamlog_consumergroup_group_lost_records", group, "", ""] == 7
        assert 88 <= found[LAG + "_seconds", group, "t", "0"] < age - 6
        # A leader that is away leaves the lag unknown.
        for node in cluster.nodes.values():
            if node.broker is leader:
                await node.kill()
        coordinator_rounds._looked_ms = None
        text = (await exposition(coordinator.directory.metrics)).decode()
        assert f'{LAG}{{group="{group}"' not in text
        assert "streamlog_consumergroup_unknown_partitions 1\n" in text

    run_cluster(Cluster, story)


def test_a_follower_on_the_coordinator_is_enough() -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster, replicas=3)
        await until(lambda: any(each._partitions._led.get(("t", 0)) for each in cluster.brokers))
        (leader,) = [each for each in cluster.brokers if each._partitions._led.get(("t", 0))]
        data = encode_batch([(time.time_ns() // 1_000_000, None, b"x", ())] * 9)
        with suppress(ConnectionLost):
            await leader.handle(produce_request(data), context(produce_request(data)))
        coordinator, group = await commit_elsewhere(cluster, leader, 5)
        copy = coordinator._partitions.hosted("t", 0)
        assert copy is not None
        await until(lambda: copy.is_copy and copy.high_watermark == 9)

        async def unreachable(*_: object, **__: object) -> Message:
            raise AssertionError("the leader was asked")

        coordinator._lag._rounds._leaders._call = unreachable
        found = await metrics_of(coordinator)
        assert found[LAG, group, "t", "0"] == 4
        assert found[LAG + "_seconds", group, "t", "0"] < 60

    run_cluster(Cluster, story)


def test_found_records_are_not_asked_for_again_for_a_while() -> None:
    clock = ManualClock()
    asked: list[list[int]] = []

    async def call(_: int, request: Message, __: int) -> Message:
        assert isinstance(request, FindNextRecordsRequest)
        (topic,) = request.topics
        (partition,) = topic.partitions
        asked.append(partition.offsets)
        records = [
            FoundNextRecord(offset=each, record_offset=each + 1, timestamp=each)
            for each in partition.offsets
        ]
        answer = PartitionNextRecords(log_start_offset=0, high_watermark=100, records=records)
        return FindNextRecordsResponse(topics=[TopicNextRecords(name="t", partitions=[answer])])

    async def main() -> None:
        questions = LeaderQuestions(call, clock=clock)
        taken: list[tuple[tuple[str, int], Ends, dict[int, NextRecord]]] = []
        for _ in range(2):
            await questions.ask(
                1, {("t", 0): {7}}, lambda *each: taken.append(each), timeout_ms=100
            )
        assert taken == [(("t", 0), Ends(0, 100), {7: NextRecord(8, 7)})] * 2
        clock.advance(31_000)
        await questions.ask(1, {("t", 0): {7}}, lambda *_: None, timeout_ms=100)

    asyncio.run(main())
    assert asked == [[7], [], [7]]


def test_many_offsets_are_asked_for_in_portions() -> None:
    sizes: list[int] = []

    async def call(_: int, request: Message, __: int) -> Message:
        assert isinstance(request, FindNextRecordsRequest)
        sizes.append(sum(len(p.offsets) + 1 for t in request.topics for p in t.partitions))
        return FindNextRecordsResponse()

    async def main() -> None:
        questions = LeaderQuestions(call, clock=ManualClock())
        wanted = {("t", 0): set(range(600)), **{("u", n): {n} for n in range(200)}}
        await questions.ask(1, wanted, lambda *_: None, timeout_ms=100)

    asyncio.run(main())
    assert max(sizes) <= 251
    assert sum(sizes) >= 800
