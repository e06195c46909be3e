"""An app that is cut and promoted from mirrors that have come to different points."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.mirroring.apps.app_cut import AppCut
from streamlog.broker.mirroring.lost_and_found import FOLDER
from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.cli.operate.app_promotion import (
    AppPlan,
    carry_out,
    mirrors_of,
    plan_promotion,
)
from streamlog.client.admin import Admin
from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import GroupMetadata
from streamlog.client.producer import Producer
from streamlog.errors import LogError, PromotionGivenUp, UsageError
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from tests.broker.mirroring.test_app_logs import mark, mirror_names
from tests.broker.mirroring.test_mirrors import alter, content, link, mirror, serving, until
from tests.broker.node import batch, create, produce

APP = "shop"
IN, MIDDLE, STATE, OUT = "in", "shop-0-repartition", "shop-1-changelog", "out"
TOPICS = {IN: 1, MIDDLE: 2, STATE: 2, OUT: 1}
READ = TopicPartition(IN, 0)


@dataclass
class Work:
    """A committed transaction, as the test has made it."""

    written: list[tuple[str, int, bytes]] = field(default_factory=list)
    """Topic, partition and value of its records."""
    read_to: dict[TopicPartition, int] = field(default_factory=dict)


class App:
    """The two halves of an app: one reads `in` and writes `middle`, the other one reads that."""

    def __init__(self, log: Log, random: Random) -> None:
        self.log = log
        self.random = random
        self.done: list[Work] = []
        self.positions: dict[TopicPartition, int] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Producer, Producer]]:
        async with (
            self.log.producer(transactional_id="shop-a") as first,
            self.log.producer(transactional_id="shop-b") as second,
        ):
            yield first, second

    async def work(self, producers: tuple[Producer, Producer]) -> None:
        """Make one transaction of either half, and abort some."""
        # The first one is of the first half, so that the link finds what the app reads.
        half = self.random.randrange(2) if self.done else 0
        read = [READ] if half == 0 else [TopicPartition(MIDDLE, 0), TopicPartition(MIDDLE, 1)]
        topics = [MIDDLE] if half == 0 else [STATE, OUT]
        work = Work()
        ends = await self.stable_ends(read)
        for where in read:
            begin = self.positions.get(where, 0)
            work.read_to[where] = self.random.randint(begin, max(begin, ends[where]))
        for _ in range(self.random.randint(1, 4)):
            topic = self.random.choice(topics)
            value = str((len(self.done), len(work.written), half)).encode()
            work.written.append((topic, self.random.randrange(TOPICS[topic]), value))
        try:
            async with producers[half].transaction() as transaction:
                for topic, number, value in work.written:
                    await producers[half].send(topic, value, partition=number)
                await transaction.send_offsets(work.read_to, GroupMetadata(group_id=APP))
                if self.random.random() < 0.2:
                    interrupt()
        except InterruptedError:
            return
        self.done.append(work)
        self.positions |= work.read_to

    async def stable_ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        async with self.log.consumer(isolation_level="read_committed") as reader:
            return await reader.end_offsets(partitions)


def interrupt() -> None:
    raise InterruptedError


async def visible(log: Log) -> dict[tuple[str, int], dict[int, bytes]]:
    """Return what a reader of committed records gets, by partition and offset."""
    found: dict[tuple[str, int], dict[int, bytes]] = {}
    async with log.consumer(isolation_level="read_committed") as reader:
        parts = [TopicPartition(topic, n) for topic, count in TOPICS.items() for n in range(count)]
        ends = await reader.end_offsets(parts)
        reader.assign(parts)
        await reader.seek_to_beginning()
        while [each for each, end in ends.items() if await reader.position(each) < end]:
            for where, records in (await reader.poll(timeout_ms=100)).items():
                values = {each.offset: each.value or b"" for each in records}
                found.setdefault((where.topic, where.partition), {}).update(values)
    return found


def check(
    done: list[Work],
    there: dict[tuple[str, int], dict[int, bytes]],
    here: dict[tuple[str, int], dict[int, bytes]],
    positions: dict[TopicPartition, int],
) -> int:
    """Check what is here of an app, by loops over records; return how many works are in."""
    seen = {(*where, value) for where, records in here.items() for value in records.values()}
    inside = [work for work in done if any(each in seen for each in work.written)]
    expected: dict[TopicPartition, int] = {}
    for work in inside:
        # 1. Whole, in all topics.
        assert all(each in seen for each in work.written)
        # 2. What it has read is here, at its offsets.
        for where, end in work.read_to.items():
            key = where.topic, where.partition
            below = {n: value for n, value in there.get(key, {}).items() if n < end}
            assert {n: value for n, value in here.get(key, {}).items() if n < end} == below
        expected |= work.read_to
    # 3. The group stands where the last of them has left it.
    assert positions == expected
    return len(inside)


async def plan(admin: Admin) -> AppPlan:
    found = await admin.describe_mirrors()
    return await plan_promotion(admin, found.links[0], APP, found.mirrors)


def kept(files: MemoryFiles) -> list[str]:
    """Return the names of the files of lost-and-found."""
    try:
        return sorted(files.list(f"data/{FOLDER}"))
    except FileNotFoundError:
        return []


async def story(seed: int) -> tuple[int, int]:
    random = Random(seed)
    here = MemoryFiles()
    async with serving(here) as (target, near):
        async with (
            serving(MemoryFiles()) as (source, address),
            Log.open(f"kafka://{address}") as log,
        ):
            for name, count in TOPICS.items():
                create(source, name, partitions=count)
            async with log.producer() as feed:
                for _ in range(40):
                    await feed.send(IN, b"x")
            app = App(log, random)
            async with app.running() as producers:
                await app.work(producers)
                link_id = await link(target, address, source, apps=APP, topics=OUT)
                await until(lambda: mark(target, link_id) != {})
                names = [*TOPICS, *mirror_names(link_id).values()]
                pauses = {name: random.randrange(12) for name in names}
                for step in range(12):
                    await app.work(producers)
                    await catch_up(target, source, link_id)
                    for name in [each for each in names if pauses[each] == step]:
                        await alter(target, MirrorState.PAUSED, name)
            there = await visible(log)
        async with Log.open(f"kafka://{near}") as log:
            admin = log.admin()
            found = await plan(admin)
            await carry_out(admin, found)
            positions = await admin.group_offsets(APP)
            inside = check(app.done, there, await visible(log), positions)
    return inside, len(app.done)


async def catch_up(target: Broker, source: Broker, link_id: bytes) -> None:
    """Wait until the mirrors that are not paused have what the source has."""
    logs = {ours: theirs for theirs, ours in mirror_names(link_id).items()}
    metadata = target._member.metadata
    copying = [
        metadata.topics[topic_id].name for topic_id, each in metadata.mirrors.items() if each.copies
    ]

    def ends(broker: Broker, name: str) -> list[int]:
        parts = broker.directory.topics[name].partitions
        return [parts[number].log_end_offset for number in sorted(parts)]

    await until(
        lambda: all(ends(target, each) == ends(source, logs.get(each, each)) for each in copying)
    )


@pytest.mark.parametrize("seed", range(4))
def test_consumers_see_whole_transactions_that_have_all_they_have_read(seed: int) -> None:
    inside, done = asyncio.run(story(seed))
    assert 0 < inside <= done


def test_a_leader_that_stops_before_it_has_cut_cuts_after_its_restart() -> None:
    async def restarted() -> None:
        here = MemoryFiles()
        async with (
            serving(MemoryFiles()) as (source, address),
            serving(here) as (target, near),
        ):
            create(source)
            for value in (b"1", b"2", b"3"):
                await produce(source, batch(value))
            await mirror(target, await link(target, address, source), source)
            await until(lambda: content(target) == content(source))
            whole = content(target)
            async with Log.open(f"kafka://{near}") as log:
                # The broker is closed before its task has kept anything.
                target._mirrors._cut_promoted = lambda _: None  # type: ignore[method-assign]
                await log.admin().promote_app_now({"t": {0: 1}})
            partition = target._partitions.hosted("t", 0)
            assert partition is not None
            await until(lambda: not partition.is_leader)
            # It serves no one: neither a reader beyond the cut nor a producer.
            refused = await produce(target, batch(b"early"))
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert content(target) == whole
            assert kept(here) == []
        async with serving(here) as (target, _):
            await until(lambda: kept(here) == ["t-0-1.log"])
            await until(lambda: target._partitions.get("t", 0).is_leader)
            assert not (await produce(target, batch(b"new"))).error_code
            assert content(target).startswith(whole[: len(whole) // 3])
            assert target.directory.topics["t"].partitions[0].log_end_offset == 2
        async with serving(here) as (target, _):
            # A record of the era is there: nothing is cut a second time.
            await until(lambda: target._partitions.get("t", 0).is_leader)
            assert target.directory.topics["t"].partitions[0].log_end_offset == 2
            assert kept(here) == ["t-0-1.log"]

    asyncio.run(restarted())


def test_without_a_mark_an_app_is_not_cut() -> None:
    async def lonely() -> None:
        async with (
            serving(MemoryFiles()) as (source, address),
            serving(MemoryFiles()) as (target, near),
        ):
            create(source, MIDDLE)
            await link(target, address, source, apps=APP)
            await until(lambda: MIDDLE in target.directory.topics)
            async with Log.open(f"kafka://{near}") as log:
                with pytest.raises(LogError, match="has not been copied as a whole once"):
                    await plan(log.admin())

    asyncio.run(lonely())


@asynccontextmanager
async def working(log: Log) -> AsyncIterator[Consumer]:
    """Be a worker of the app."""
    async with log.consumer(group_id=APP) as consumer:
        await consumer.subscribe(["t"])
        while not consumer.assignment():
            await consumer.poll(timeout_ms=50)
        yield consumer


def test_of_a_link_with_two_apps_one_moves_with_what_it_owns_reads_and_writes() -> None:
    async def story() -> None:
        async with (
            serving(MemoryFiles()) as (source, address),
            serving(MemoryFiles()) as (target, near),
            Log.open(f"kafka://{address}") as there,
            Log.open(f"kafka://{near}") as here,
        ):
            for name, count in TOPICS.items():
                create(source, name, partitions=count)
            create(source, "other-0-changelog")
            async with there.producer() as feed:
                await feed.send(IN, b"x")
            link_id = await link(target, address, source, apps=f"{APP},other", topics=OUT)
            await until(lambda: MIDDLE in target.directory.topics)

            async def moving() -> set[str]:
                found = await here.admin().describe_mirrors()
                chosen = await mirrors_of(here.admin(), found.links[0], APP, found.mirrors)
                return {each.name for each in chosen}

            with pytest.raises(
                UsageError, match=r"which of its topics .* promote them by --topics"
            ):
                await moving()
            app = App(there, Random(1))
            async with app.running() as producers:
                while OUT not in {topic for done in app.done for topic, _, _ in done.written}:
                    await app.work(producers)
            await until(lambda: mark(target, link_id) != {})
            await until(lambda: {*TOPICS, "other-0-changelog"} <= target.directory.topics.keys())
            await catch_up(target, source, link_id)
            assert await moving() == {*TOPICS}

    asyncio.run(story())


def copies(broker: Broker) -> bool:
    (found,) = broker._member.metadata.mirrors.values()
    return found.copies


def whole_plan() -> AppPlan:
    """Return the plan of an app that keeps its one record."""
    whole = {("t", 0): 1}
    return AppPlan(
        app=APP,
        topics=("t",),
        copying=("t",),
        ends=whole,
        cut=AppCut(ends=whole, positions={}, committed_by={}, stable=whole, out={}),
        positions={},
        read_bytes=0,
    )


@asynccontextmanager
async def copied() -> AsyncIterator[tuple[Broker, Log]]:
    """Serve a cluster that mirrors `t` of another one, and has its one record."""
    async with (
        serving(MemoryFiles()) as (source, address),
        serving(MemoryFiles()) as (target, near),
        Log.open(f"kafka://{near}") as log,
    ):
        create(source)
        await produce(source, batch(b"1"))
        await mirror(target, await link(target, address, source), source)
        await until(lambda: content(target) == content(source))
        yield target, log


def test_an_app_that_runs_here_already_is_not_cut_whenever_its_worker_comes() -> None:
    async def early() -> None:
        async with copied() as (target, log), AsyncExitStack() as stack:
            admin, planned = log.admin(), whole_plan()
            says = "has 1 worker in this cluster.*stop them"
            async with working(log):
                with pytest.raises(PromotionGivenUp, match=says):
                    await carry_out(admin, planned)
            assert copies(target)
            pause = admin.pause_mirrors

            async def come_late(topics: Collection[str]) -> None:
                await pause(topics)
                assert not copies(target)
                await stack.enter_async_context(working(log))

            admin.pause_mirrors = come_late  # type: ignore[method-assign]
            with pytest.raises(PromotionGivenUp, match=says):
                await carry_out(admin, planned)
            await until(lambda: copies(target))

    asyncio.run(early())


def test_positions_are_the_workers_from_the_decision_on() -> None:
    async def story() -> None:
        async with copied() as (target, log), AsyncExitStack() as stack:
            admin = log.admin()
            decide = admin.promote_app_now

            async def work_at_once(cuts: Mapping[str, Mapping[int, int]]) -> None:
                await decide(cuts)
                reader = await stack.enter_async_context(working(log))
                await reader.commit({TopicPartition("t", 0): 1})

            admin.promote_app_now = work_at_once  # type: ignore[method-assign]
            await carry_out(admin, whole_plan())
            assert (await admin.group_offsets(APP))[TopicPartition("t", 0)] == 1
            assert not (await produce(target, batch(b"own"))).error_code

    asyncio.run(story())
