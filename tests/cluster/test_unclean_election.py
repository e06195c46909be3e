"""A source loses records by an unclean leader election, under an app that has read them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.errors import SourceLost
from streamlog.log import Log
from streamlog.protocol.messages.topics_and_configs import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.cluster.cluster import Cluster
from tests.worker.test_recreated_sources import (
    DEADLINE_S,
    PARTITIONS,
    Case,
    Fed,
    expected,
    failing,
    feed,
    portion,
    rows_of,
    until,
    worker,
)

LEADER, BEHIND, OTHER = 1, 2, 3
SETTINGS = {"default.replication.factor": "3", "min.insync.replicas": "1"}


async def create_source(cluster: Cluster) -> None:
    """Create a source whose replicas are on two brokers, of which the first leads."""
    replicas = [
        CreatableReplicaAssignment(partition_index=number, broker_ids=[LEADER, BEHIND])
        for number in range(PARTITIONS)
    ]
    unclean = CreatableTopicConfig(name="unclean.leader.election.enable", value="true")
    source = CreatableTopic(
        name="source",
        num_partitions=-1,
        replication_factor=-1,
        assignments=replicas,
        configs=[unclean],
    )
    request = CreateTopicsRequest(topics=[source], timeout_ms=int(DEADLINE_S * 1000))
    answer = await cluster.ask(OTHER, request, CreateTopicsResponse)
    assert [each.error_code for each in answer.topics] == [0], answer
    await cluster.in_sync("source")


async def lose(cluster: Cluster) -> None:
    """Kill the complete replica, and wait until the lagging one leads."""
    cluster.kill(LEADER)
    cluster.start(BEHIND)

    async def leads() -> bool:
        partitions = await cluster.partitions("source")
        return {each.leader_id for each in partitions.values()} == {BEHIND}

    await cluster.until(leads, "the one that was behind leads")


@asynccontextmanager
async def opened(cluster: Cluster, path: Path) -> AsyncIterator[Case]:
    await cluster.ready()
    await create_source(cluster)
    async with Log.open(cluster.url) as log:
        await log.admin().create_topics([NewTopic("out", 1)])
        yield Case(cluster.url, log, path, "count", "exactly_once")


async def read_then_lose(
    case: Case, cluster: Cluster, kept: list[Fed], lost: list[Fed], task: asyncio.Task[None]
) -> None:
    await read(case, cluster, kept, lost, task)
    await lose(cluster)


async def read(
    case: Case, cluster: Cluster, kept: list[Fed], lost: list[Fed], task: asyncio.Task[None]
) -> None:
    """Let the app read records of which one replica lacks some."""
    await feed(case.log, "source", kept)
    await until(rows_of(case), expected(case.shape, [kept]), task)
    cluster.kill(BEHIND)
    await feed(case.log, "source", lost)
    await until(rows_of(case), expected(case.shape, [kept, lost]), task)


@pytest.mark.parametrize("count", [3, 60], ids=["fewer", "more"])
def test_a_worker_with_state_fails_and_names_the_partition(tmp_path: Path, count: int) -> None:
    chance = random.Random(count)
    kept, lost = portion(chance, "kept", 12), portion(chance, "lost", 30)

    async def main(cluster: Cluster) -> None:
        async with opened(cluster, tmp_path) as case:
            with pytest.raises(SourceLost, match=r"source-\d: the log was truncated") as caught:
                await ended(case, cluster)
            assert caught.value.exit_code == 5
            assert "--source-lost earliest" in str(caught.value)
            assert await rows_of(case)() == expected("count", [kept, lost])

    async def ended(case: Case, cluster: Cluster) -> None:
        async with failing(worker(case)) as task:
            await read_then_lose(case, cluster, kept, lost, task)
            await feed(case.log, "source", portion(chance, "new", count))
            async with asyncio.timeout(DEADLINE_S):
                await task

    with Cluster(tmp_path, settings=SETTINGS) as cluster:
        asyncio.run(main(cluster))


def test_earliest_counts_each_record_of_both_logs_once(tmp_path: Path) -> None:
    chance = random.Random(1)
    portions = [portion(chance, name, size) for name, size in (("kept", 12), ("lost", 30))]

    async def main(cluster: Cluster) -> None:
        async with opened(cluster, tmp_path) as case:
            case.source_lost = "earliest"
            async with worker(case) as task:
                await read_then_lose(case, cluster, portions[0], portions[1], task)
                for name in ("new", "last"):
                    portions.append(portion(chance, name, 40))
                    await feed(case.log, "source", portions[-1])
                    await until(rows_of(case), expected("count", portions), task)

    with Cluster(tmp_path, settings=SETTINGS) as cluster:
        asyncio.run(main(cluster))


def test_latest_keeps_the_state_and_begins_at_the_end(tmp_path: Path) -> None:
    """Records written while the app was stopped are skipped."""
    chance = random.Random(2)
    kept, lost = portion(chance, "kept", 12), portion(chance, "lost", 30)

    async def main(cluster: Cluster) -> None:
        async with opened(cluster, tmp_path) as case:
            case.source_lost = "latest"
            async with worker(case) as task:
                await read(case, cluster, kept, lost, task)
            # Stopped first: a worker that finds the loss skips nothing that is written behind it.
            await lose(cluster)
            skipped = portion(chance, "skipped", 60)
            await feed(case.log, "source", skipped)
            async with worker(case) as task:
                async with asyncio.timeout(DEADLINE_S):
                    while await committed(case) < len(kept) + len(skipped):
                        assert not task.done()
                        await asyncio.sleep(0.1)
                last = portion(chance, "last", 10)
                await feed(case.log, "source", last)
                await until(rows_of(case), expected("count", [kept, lost, last]), task)

    async def committed(case: Case) -> int:
        at = await case.log.admin().group_offsets("again")
        return sum(offset for part, offset in at.items() if part.topic == "source")

    with Cluster(tmp_path, settings=SETTINGS) as cluster:
        asyncio.run(main(cluster))
