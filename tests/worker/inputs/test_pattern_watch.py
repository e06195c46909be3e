"""Topics by pattern in workers: topics come and go while one or two workers run.

The rule: every record of every topic that matches, whenever the topic came, is in the output once.
The expected rows are computed here from the records, without the app.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from streamlog import App, Record, Stream
from streamlog.client.admin import NewTopic
from streamlog.errors import TopologyError
from streamlog.log import Log
from streamlog.processing.provenance import PROVENANCE, RECORD_BYTES, pack_record, unpack_record
from streamlog.record import TopicPartition
from streamlog.records.partitioners import partition_by
from streamlog.worker.worker import Worker

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS: Final = range(40 if IS_THOROUGH else 1)
DEADLINE_S: Final = 60
KEYS: Final = ("a", "b", "c", "d")
PATTERN: Final = r"orders-[a-z]+"

Fed = tuple[str, str, str]
"""Topic, key and value."""


@dataclass
class Case:
    """An app under test, what was sent, and what its agents have handled."""

    log: Log
    path: Path
    shape: str
    partitions: dict[str, int] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    sent: list[Fed] = field(default_factory=list)
    handled: list[str] = field(default_factory=list)

    @property
    def has_state(self) -> bool:
        return self.shape in {"count", "table"}

    @property
    def url(self) -> str:
        assert self.log.address is not None
        return "kafka://{}:{}".format(*self.log.address)

    def app(self, number: int) -> App:
        app = App(
            "by-pattern",
            log=self.url,
            state_dir=str(self.path / f"state-{number}"),
            commit_interval="50ms",
            consumer={"metadata.max.age.ms": 300},
        )
        orders = app.topic_pattern("orders", PATTERN, key=str, value=str)
        out = app.topic("out", key=str, value=str, partitions=1)
        SHAPES[self.shape](self, app, orders, out)
        return app

    async def add(self, topic: str, partitions: int) -> None:
        await self.log.admin().create_topics([NewTopic(topic, partitions)])
        self.partitions[topic] = partitions

    async def delete(self, topic: str) -> None:
        await self.log.admin().delete_topics([topic])
        self.deleted.add(topic)

    async def feed(self, chance: random.Random, count: int, *topics: str) -> None:
        async with self.log.producer() as producer:
            for number in range(count):
                topic, key = chance.choice(topics), chance.choice(KEYS)
                value = f"{topic}/{len(self.sent)}-{number}"
                await producer.send(topic, value.encode(), key=key.encode())
                self.sent.append((topic, key, value))

    async def rows(self) -> Counter[str]:
        """Return the committed output."""
        if self.shape == "agent":
            return Counter(self.handled)
        part, found = TopicPartition("out", 0), Counter[str]()
        records = await self.log.read_range(part)
        found.update((record.value or b"").decode() for record in records)
        return found


def mapped(_case: Case, app: App, orders: Any, out: Any) -> None:
    app.stream(orders).map_values(lambda value: value).to(out)


def counted(_case: Case, app: App, orders: Any, out: Any) -> None:
    counts = app.stream(orders).group_by_key().count(name="n")
    counts.changes().map(lambda key, n: (key, f"{key} {n}")).to(out)


def repartitioned(_case: Case, app: App, orders: Any, out: Any) -> None:
    counts = app.stream(orders).group_by(lambda key, _: key * 2, name="by-double").count(name="n")
    counts.changes().map(lambda key, n: (key, f"{key} {n}")).to(out)


def tabled(_case: Case, app: App, orders: Any, out: Any) -> None:
    app.table(orders).changes().to(out)


def handled_by_agent(case: Case, app: App, orders: Any, _out: Any) -> None:
    @app.agent(orders)
    async def handle(stream: Stream[str, str]) -> None:
        record: Record[str, str]
        async for record in stream.records():
            assert record.value.startswith(f"{record.topic}/")
            case.handled.append(record.value)


SHAPES: dict[str, Callable[[Case, App, Any, Any], None]] = {
    "map": mapped,
    "count": counted,
    "repartition": repartitioned,
    "table": tabled,
    "agent": handled_by_agent,
}


def expected(case: Case) -> Counter[str]:
    """Return the rows that the app's definition gives, in any order."""
    if case.shape in {"map", "agent", "table"}:
        return Counter(value for _, _, value in case.sent)
    # A task counts the keys of one partition number over all topics.
    seen: Counter[tuple[str, int]] = Counter()
    rows: Counter[str] = Counter()
    for topic, key, _ in case.sent:
        number = partition_by("murmur2", key.encode(), case.partitions[topic])
        name, at = (key, number) if case.shape == "count" else (key * 2, 0)
        seen[name, at] += 1
        rows[f"{name} {seen[name, at]}"] += 1
    return rows


@asynccontextmanager
async def workers(case: Case, *numbers: int) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run workers in tasks until the block ends."""
    stop = asyncio.Event()
    tasks = [
        asyncio.create_task(
            Worker(case.app(n).program(), log_url=case.url, announce=lambda _: None).run(stop)
        )
        for n in numbers
    ]
    try:
        yield tasks
        stop.set()
        await asyncio.gather(*tasks)
    finally:
        stop.set()
        await asyncio.wait(tasks)


async def settled(case: Case, tasks: list[asyncio.Task[None]]) -> None:
    """Wait until the output is what the definition says, and all of it is committed."""
    wanted = expected(case)
    async with asyncio.timeout(DEADLINE_S):
        while (rows := await case.rows()) != wanted:
            extra = rows - wanted
            if case.shape == "agent":
                # What an agent does outside is done at least once.
                assert not extra.keys() - wanted.keys()
                if not wanted - rows:
                    break
            else:
                assert not extra, f"too many: {extra}"
            for task in tasks:
                assert not task.done() or task.result()
            await asyncio.sleep(0.05)
        while True:
            at = await case.log.admin().group_offsets("by-pattern")
            ends = await ends_of(case)
            if all(at.get(part, 0) >= end for part, end in ends.items()):
                return
            await asyncio.sleep(0.05)


async def ends_of(case: Case) -> dict[TopicPartition, int]:
    parts = [
        TopicPartition(topic, number)
        for topic, count in case.partitions.items()
        for number in range(count)
        if topic not in case.deleted
    ]
    async with case.log.consumer() as consumer:
        return dict(await consumer.end_offsets(parts))


@asynccontextmanager
async def opened(path: Path, shape: str) -> AsyncIterator[Case]:
    async with Log.open(f"embedded:{path / 'log'}") as log:
        await log.admin().create_topics([NewTopic("out", 1), NewTopic("returns", 1)])
        case = Case(log, path, shape)
        async with log.producer() as producer:
            await producer.send("returns", b"never read", key=b"a")
        yield case


@pytest.mark.skipif(not IS_THOROUGH, reason="takes ten minutes; STREAMLOG_PROFILE=thorough")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_topics_come_and_go_and_every_record_counts_once(
    tmp_path: Path, shape: str, seed: int
) -> None:
    chance = random.Random(f"{shape} {seed}")

    async def main() -> None:
        async with opened(tmp_path, shape) as case:
            await case.add("orders-eu", 2)
            await case.feed(chance, chance.randint(0, 20), "orders-eu")
            # Two workers find a new topic one after the other.
            is_pair = shape in {"count", "agent"} or chance.random() < 0.5
            async with workers(case, *((1, 2) if is_pair else (1,))) as tasks:
                await settled(case, tasks)
                # Equal keys have to be in equal partitions, if they are counted.
                await case.add("orders-us", 2 if case.has_state else chance.choice([1, 2]))
                await case.feed(chance, 20, "orders-eu", "orders-us")
                await settled(case, tasks)
                await case.delete("orders-eu")
                await case.add("orders-asia", 2)
                await case.feed(chance, 20, "orders-us", "orders-asia")
                await settled(case, tasks)
            await case.delete("orders-us")
            await case.add("orders-africa", 2 if case.has_state else 1)
            await case.feed(chance, 10, "orders-asia", "orders-africa")
            async with workers(case, 1) as tasks:
                await settled(case, tasks)

    asyncio.run(main())


def test_a_worker_waits_for_the_first_topic_and_takes_up_the_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        chance = random.Random(1)
        async with opened(tmp_path, "count") as case, workers(case, 1) as tasks:
            async with asyncio.timeout(DEADLINE_S):
                while "no topic matches orders-[a-z]+" not in caplog.text:
                    assert not tasks[0].done()
                    await asyncio.sleep(0.02)
            await case.add("orders-eu", 1)
            await case.feed(chance, 5, "orders-eu")
            await settled(case, tasks)
            await case.add("orders-us", 1)
            await case.feed(chance, 20, "orders-eu", "orders-us")
            await settled(case, tasks)

    asyncio.run(main())


def test_an_unread_record_of_a_deleted_topic_is_processed(tmp_path: Path) -> None:
    """It was committed to the repartition topic, and its own topic was deleted before it was read.

    The record is written here, with the headers that the app's last one had: its next position.
    """

    async def main() -> None:
        async with opened(tmp_path, "repartition") as case:
            for topic in ("orders-eu", "orders-us"):
                await case.add(topic, 1)
            await case.feed(random.Random(1), 5, "orders-us")
            async with workers(case, 1) as tasks:
                await settled(case, tasks)
            await send_unread(case)
            await case.delete("orders-us")
            async with workers(case, 1) as tasks:
                await settled(case, tasks)
                await case.feed(random.Random(2), 5, "orders-eu")
                await settled(case, tasks)

    asyncio.run(main())


async def send_unread(case: Case) -> None:
    """Write the record that follows the last one of `orders-us` to the repartition topic."""
    topics = await case.log.admin().list_topics()
    (topic,) = (each for each in topics if each.name.endswith("-repartition"))
    records = [
        record
        for number in range(topic.partitions)
        for record in await case.log.read_range(TopicPartition(topic.name, number))
        if record.headers[-1][0] == PROVENANCE
    ]
    last = max(records, key=lambda record: unpack_record(record.headers[-1][1] or b"")[2])
    data = last.headers[-1][1] or b""
    turn_ms, time_ms, position, _ = unpack_record(data)
    header = pack_record(turn_ms, time_ms, position + 1, 0) + data[RECORD_BYTES:]
    async with case.log.producer() as producer:
        await producer.send(
            topic.name, last.value, key=last.key, partition=0, headers=((PROVENANCE, header),)
        )
    # The partition has the order of what was sent, so this is one more of the last key.
    case.sent.append(case.sent[-1])


def test_a_topic_with_more_partitions_than_the_state_ends_the_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "count") as case:
            await case.add("orders-eu", 1)
            async with workers(case, 1) as tasks:
                await settled(case, tasks)
            await case.add("orders-us", 3)
            with pytest.raises(
                TopologyError,
                match="the number of partitions is 1 in 'orders-eu' and 3 in 'orders-us'",
            ):
                await Worker(case.app(1).program(), log_url=case.url, announce=lambda _: None).run(
                    asyncio.Event()
                )

    asyncio.run(main())


async def sums_of(log: Log) -> list[object]:
    if not any(each.name == "sums" for each in await log.admin().list_topics()):
        return []
    return [*await log.read_range(TopicPartition("sums", 0))]


def test_an_app_reads_none_of_its_own_topics(tmp_path: Path) -> None:
    """The pattern matches everything, and the app has changelogs and repartition topics."""

    async def main() -> None:
        async with opened(tmp_path, "map") as case:
            app = App("own", log=case.url, state_dir=str(tmp_path / "own"))
            every = app.topic_pattern("every", r"(?!sums$).*", key=str, value=str)
            sums = app.topic("sums", key=str, value=int, partitions=1)
            by_word = app.stream(every).group_by(lambda _, word: word, name="by-word")
            by_word.count(name="n").changes().to(sums)
            stop = asyncio.Event()
            found: list[list[str]] = []
            worker = Worker(
                app.program(), log_url=case.url, announce=lambda s: found.append(s.program.sources)
            )
            task = asyncio.create_task(worker.run(stop))
            async with asyncio.timeout(DEADLINE_S):
                while not await sums_of(case.log):  # noqa: ASYNC110 - the log is the witness
                    await asyncio.sleep(0.05)
            program = app.program()
            names = [each.name for each in await case.log.admin().list_topics()]
            assert program.match(names) == {"every": ["out", "returns"]}
            assert {each for each in names if each.startswith("own-")} >= {
                "own-by-word-repartition", "own-1-changelog", "own-topology",
            }  # fmt: skip
            stop.set()
            await task
            assert found == [["out", "own-by-word-repartition", "returns"]]

    asyncio.run(main())
