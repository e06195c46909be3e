"""A source is deleted and created again while an app runs, or while it is stopped.

The rule: with `source_lost="earliest"`, every record of the new topic is reflected in the output
exactly once, on top of the earlier state; with `"fail"`, the worker ends with code 5 and commits
nothing for the new topic.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from streamlog import App, Stream
from streamlog.client.admin import NewTopic
from streamlog.clock import SystemClock
from streamlog.errors import SourceLost, StreamlogError, UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.protocol.schema import id_text
from streamlog.record import TopicPartition
from streamlog.worker.inputs.source_watch import RETURN_MS, SourceWatch
from streamlog.worker.worker import Worker
from tests.worker.recreated_topics import (
    DEADLINE_S,
    GUARANTEES,
    Guarantee,
    failing,
    feed,
    running,
    said,
)

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS: Final = range(16 if IS_THOROUGH else 1)
PARTITIONS: Final = 2
KEYS: Final = ("a", "b", "c", "d")

Fed = tuple[str, str]
"""Key and value."""


@dataclass
class Case:
    """An app under test, and its output."""

    url: str
    log: Log
    path: Path
    shape: str
    guarantee: Guarantee
    source_lost: Literal["fail", "earliest", "latest"] | None = None
    topics_own: Literal["fail", "earliest", "latest"] | None = None
    """The `source_lost` setting of the source itself."""
    state: str = "state"
    """Each machine has its own directory."""
    first: int = 0
    """The first portion in the current topic."""
    handled: list[str] = field(default_factory=list)
    """Values that the agent has handled."""

    def app(self) -> App:
        app = App(
            "again",
            log=self.url,
            state_dir=str(self.path / self.state),
            commit_interval="50ms",
            guarantee=self.guarantee,
            source_lost=self.source_lost,
        )
        source = app.topic(
            "source", key=str, value=str, partitions=PARTITIONS, source_lost=self.topics_own
        )
        out = app.topic("out", key=str, value=str, partitions=1)
        SHAPES[self.shape](self, app, app.stream(source) if self.shape != "agent" else source, out)
        return app

    async def rows(self) -> list[str]:
        """Return the committed output in order."""
        if self.shape == "agent":
            return list(self.handled)
        topic_partition, found = TopicPartition("out", 0), list[str]()
        async with self.log.consumer(
            auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([topic_partition])
            end = (await consumer.end_offsets([topic_partition]))[topic_partition]
            while await consumer.position(topic_partition) < end:
                for records in (await consumer.poll(timeout_ms=200)).values():
                    found += [(record.value or b"").decode() for record in records]
        return found


def mapped(_case: Case, _app: App, source: Any, out: Any) -> None:
    source.map_values(lambda value: value).to(out)


def counted(_case: Case, _app: App, source: Any, out: Any) -> None:
    counts = source.group_by_key().count(name="n")
    counts.changes().map(lambda key, n: (key, f"{key} {n}")).to(out)


def repartitioned(_case: Case, _app: App, source: Any, out: Any) -> None:
    counts = source.group_by(lambda key, _: key * 2, name="by-double").count(name="n")
    counts.changes().map(lambda key, n: (key, f"{key} {n}")).to(out)


def joined(_case: Case, app: App, source: Any, out: Any) -> None:
    names = app.topic("names", key=str, value=str, partitions=PARTITIONS)
    table = app.table(names, name="names")
    source.join(table, lambda value, name: f"{value} {name}").to(out)


def handled_by_agent(case: Case, app: App, source: Any, _out: Any) -> None:
    @app.agent(source)
    async def handle(stream: Stream[str, str]) -> None:
        async for value in stream:
            case.handled.append(value)


SHAPES: dict[str, Callable[[Case, App, Any, Any], None]] = {
    "map": mapped,
    "count": counted,
    "repartition": repartitioned,
    "join": joined,
    "agent": handled_by_agent,
}


def expected(shape: str, portions: list[list[Fed]]) -> Counter[str]:
    """Return the rows that the app's definition gives for these records, in any order."""
    records = [record for portion in portions for record in portion]
    if shape in {"map", "agent"}:
        return Counter(value for _, value in records)
    if shape == "join":
        return Counter(f"{value} name-{key}" for key, value in records)
    times = 2 if shape == "repartition" else 1
    seen: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for key, _ in records:
        seen[key] += 1
        rows[f"{key * times} {seen[key]}"] += 1
    return rows


async def create(log: Log, *names: str) -> None:
    await log.admin().create_topics([NewTopic(name, PARTITIONS) for name in names])


@asynccontextmanager
async def worker(case: Case) -> AsyncIterator[asyncio.Task[None]]:
    """Run the app in a task until the block ends."""
    async with running(case.app().program(), case.url) as (task, _):
        yield task


async def until(
    found: Callable[[], Awaitable[Counter[str]]], wanted: Counter[str], task: asyncio.Task[None]
) -> None:
    """Wait until the rows are there; fail on any unexpected row."""
    async with asyncio.timeout(DEADLINE_S):
        while (rows := await found()) != wanted:
            assert not rows - wanted, f"too many: {rows - wanted}, missing: {wanted - rows}"
            if task.done():
                task.result()
            await asyncio.sleep(0.1)


def portion(chance: random.Random, name: str, count: int) -> list[Fed]:
    return [(chance.choice(KEYS), f"{name}{number}") for number in range(count)]


async def recreate(case: Case, records: list[Fed], pause_s: float = 0) -> None:
    log, case.first = case.log, 1
    await log.admin().delete_topics(["source"])
    await asyncio.sleep(pause_s)
    await create(log, "source")
    await feed(log, "source", records)


@asynccontextmanager
async def opened(path: Path, chance: random.Random, shape: str) -> AsyncIterator[Case]:
    async with Log.open(f"embedded:{path / 'log'}") as log:
        assert log.address is not None
        await create(log, "source", "names")
        await log.admin().create_topics([NewTopic("out", 1)])
        await feed(log, "names", [(key, f"name-{key}") for key in KEYS])
        guarantee: Guarantee = chance.choice(GUARANTEES)
        yield Case("kafka://{}:{}".format(*log.address), log, path, shape, guarantee)


def rows_of(case: Case) -> Callable[[], Awaitable[Counter[str]]]:
    async def rows() -> Counter[str]:
        return Counter(await case.rows())

    return rows


async def settled(case: Case, portions: list[list[Fed]], task: asyncio.Task[None]) -> None:
    """Wait until every record in the log is reflected once."""

    await until(rows_of(case), expected(case.shape, portions), task)
    last = sum(map(len, portions[case.first :]))
    async with asyncio.timeout(DEADLINE_S):
        while True:
            at = await case.log.admin().group_offsets("again")
            if sum(n for part, n in at.items() if part.topic == "source") == last:
                return
            assert not task.done()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("live", [False, True], ids=["down", "live"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_record_of_the_recreated_topic_counts_once(
    tmp_path: Path, shape: str, live: bool, seed: int
) -> None:
    chance = random.Random(f"{shape} {live} {seed}")

    async def main() -> None:
        async with opened(tmp_path, chance, shape) as case:
            case.source_lost = "earliest"
            portions = [portion(chance, "old", chance.randint(5, 30))]
            portions.append(portion(chance, "new", chance.randint(1, 60)))
            await feed(case.log, "source", portions[0])
            pause_s = chance.choice([0, 0, 1])
            if live:
                async with worker(case) as task:
                    await settled(case, portions[:1], task)
                    await recreate(case, portions[1], pause_s)
                    await settled(case, portions, task)
            else:
                async with worker(case) as task:
                    await settled(case, portions[:1], task)
                await recreate(case, portions[1], pause_s)
            if chance.random() < 0.5:
                shutil.rmtree(tmp_path / "state", ignore_errors=True)
            # The loss is recognized once: from here on the app behaves as always.
            async with worker(case) as task:
                await settled(case, portions, task)
                portions.append(portion(chance, "more", 10))
                await feed(case.log, "source", portions[2])
                await settled(case, portions, task)
            case.source_lost = None
            async with worker(case) as task:
                portions.append(portion(chance, "last", 5))
                await feed(case.log, "source", portions[3])
                await settled(case, portions, task)

    asyncio.run(main())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("live", [False, True], ids=["down", "live"])
@pytest.mark.parametrize("shape", SHAPES)
def test_with_fail_a_worker_commits_nothing_for_the_recreated_topic(
    tmp_path: Path, shape: str, live: bool, seed: int
) -> None:
    chance = random.Random(f"fail {shape} {live} {seed}")

    async def main() -> None:
        async with opened(tmp_path, chance, shape) as case:
            # That is the default for topics from which state is derived.
            has_state = shape in {"count", "join"}
            case.source_lost = None if has_state and chance.random() < 0.5 else "fail"
            old, new = portion(chance, "old", 20), portion(chance, "new", chance.choice([5, 40]))
            await feed(case.log, "source", old)
            if not live:
                async with worker(case) as task:
                    await settled(case, [old], task)
                await recreate(case, new)
                if chance.random() < 0.5:
                    shutil.rmtree(tmp_path / "state", ignore_errors=True)
            with pytest.raises(SourceLost, match="source") as caught:
                await ended(case, old, new if live else None)
            assert caught.value.exit_code == 5
            assert Counter(await case.rows()) == expected(shape, [old])
            committed = await case.log.admin().group_offsets("again")
            assert {at: n for at, n in committed.items() if at.topic == "source" and n} == {}

    asyncio.run(main())


async def ended(case: Case, old: list[Fed], new: list[Fed] | None) -> None:
    """Wait for the worker's end; with `new`, recreate the topic while it runs."""
    async with failing(worker(case)) as task:
        if new is not None:
            await settled(case, [old], task)
            await recreate(case, new)
        async with asyncio.timeout(DEADLINE_S):
            await task


WITHOUT_STATE: Final = ("map", "repartition", "agent")


@pytest.mark.parametrize("shape", WITHOUT_STATE)
def test_a_task_without_state_reports_the_recreated_topic_once(
    tmp_path: Path, shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its offsets were deleted with the old topic: nothing else would show the loss."""
    chance = random.Random(shape)
    old, new, last = portion(chance, "old", 5), portion(chance, "new", 10), [("a", "last")]

    async def main() -> None:
        async with opened(tmp_path, chance, shape) as case:
            await feed(case.log, "source", old)
            async with worker(case) as task:
                await settled(case, [old], task)
            assert not lines()
            await recreate(case, new)
            (topic,) = await case.log.admin().find_topics(["source"])
            async with worker(case) as task:
                await settled(case, [old, new], task)
            (line,) = lines()
            assert line.startswith("source: the topic that app 'again' has read was deleted")
            assert f"now {id_text(topic.topic_id)})" in line
            assert line.endswith("Reading from its beginning, as source_lost is 'earliest'")
            async with worker(case) as task:
                await feed(case.log, "source", last)
                await settled(case, [old, new, last], task)
            assert len(lines()) == 1

    def lines() -> list[str]:
        messages = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        return [line for line in messages if "another topic" in line or "created again" in line]

    asyncio.run(main())


LATEST_CASES: Final = list(product([*WITHOUT_STATE, "count"], [False, True]))


@pytest.mark.parametrize(
    ("shape", "is_topics"),
    LATEST_CASES if IS_THOROUGH else [("map", False), ("agent", True), ("count", True)],
)
def test_latest_keeps_the_state_and_begins_at_the_end(
    tmp_path: Path, shape: str, is_topics: bool
) -> None:
    """The setting of a topic overrides the app's."""
    chance = random.Random(f"latest {shape}")

    async def main() -> None:
        async with opened(tmp_path, chance, shape) as case:
            case.topics_own = "latest" if is_topics else None
            case.source_lost = "fail" if is_topics else "latest"
            old, skipped = portion(chance, "old", 20), portion(chance, "skipped", 30)
            await feed(case.log, "source", old)
            async with worker(case) as task:
                await settled(case, [old], task)
            await recreate(case, skipped)
            async with worker(case) as task:
                async with asyncio.timeout(DEADLINE_S):
                    while True:
                        at = await case.log.admin().group_offsets("again")
                        if sum(n for p, n in at.items() if p.topic == "source") == len(skipped):
                            break
                        assert not task.done()
                        await asyncio.sleep(0.1)
                new = portion(chance, "new", 10)
                await feed(case.log, "source", new)
                await until(rows_of(case), expected(shape, [old, new]), task)

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_global_table_follows_a_recreated_topic(tmp_path: Path, backend: str) -> None:
    """It is read again at the start; a running worker would see rows of both topics, so it ends."""
    chance = random.Random(backend)

    def looked_up(_case: Case, app: App, source: Any, out: Any) -> None:
        names = app.topic("names", key=str, value=str, partitions=PARTITIONS)
        table = app.global_table(names, name="names", backend=backend)
        source.lookup(table, on=lambda key, _: key, fn=lambda value, name: f"{value} {name}").to(
            out
        )

    async def renamed(case: Case, name: str) -> None:
        await case.log.admin().delete_topics(["names"])
        await create(case.log, "names")
        await feed(case.log, "names", [(key, f"{name}-{key}") for key in KEYS[:3]])

    async def main() -> None:
        async with opened(tmp_path, chance, "lookup") as case:
            old, new = [("a", "1"), ("d", "2")], [("a", "3"), ("d", "4")]
            await feed(case.log, "source", old)
            async with worker(case) as task:
                await until(rows_of(case), Counter(["1 name-a", "2 name-d"]), task)
            await renamed(case, "other")
            async with worker(case) as task:
                await feed(case.log, "source", new)
                wanted = Counter(["1 name-a", "2 name-d", "3 other-a", "4 None"])
                await until(rows_of(case), wanted, task)
            with pytest.raises(
                SourceLost, match=r"names-\d: the topic was deleted.*reads the table again"
            ):
                await under(case)

    async def under(case: Case) -> None:
        async with failing(worker(case)) as task:
            await feed(case.log, "source", [("b", "5")])
            wanted = Counter(["1 name-a", "2 name-d", "3 other-a", "4 None", "5 other-b"])
            await until(rows_of(case), wanted, task)
            await renamed(case, "third")
            async with asyncio.timeout(DEADLINE_S):
                await task

    SHAPES["lookup"] = looked_up
    try:
        asyncio.run(main())
    finally:
        del SHAPES["lookup"]


@pytest.mark.parametrize("policy", ["earliest", "fail"])
def test_a_topic_that_is_back_before_the_worker_looks_is_a_recreated_one(
    tmp_path: Path, policy: Literal["fail", "earliest"]
) -> None:
    """The consumer misses a topic for a second; it is created again before the worker looks."""
    missed = UnknownTopicOrPartition("the log has no topic 'source'")

    async def main() -> None:
        async with (
            opened(tmp_path, random.Random(policy), "map") as case,
            case.log.consumer(auto_offset_reset="none") as consumer,
        ):
            await feed(case.log, "source", [("a", "1"), ("b", "2")])
            parts = [TopicPartition("source", n) for n in range(PARTITIONS)]
            names = TopicPartition("names", 0)
            consumer.assign([*parts, names])
            await consumer.seek_to_beginning(*parts, names)
            for part in (*parts, names):
                await consumer.position(part)
            watch = SourceWatch(
                consumer, SystemClock(), app_id="again", policy=lambda _topic: policy
            )
            with pytest.raises(UnknownTopicOrPartition, match="no topic 'source'"):
                await watch.affected(missed, asyncio.Event())
            await recreate(case, [("a", "3")])
            if policy == "fail":
                with pytest.raises(
                    SourceLost, match=r"source-\d: the topic was deleted and created"
                ):
                    await watch.affected(missed, asyncio.Event())
                return
            assert await watch.affected(missed, asyncio.Event()) == {*parts}
            assert {loss.restart.offset for loss in watch.losses.values()} == {0}

    asyncio.run(main())


def test_an_unknown_source_lost_policy_is_refused() -> None:
    with pytest.raises(StreamlogError, match="source_lost must be one of fail, earliest"):
        App("again", source_lost="skip")  # type: ignore[arg-type]
    with pytest.raises(StreamlogError, match="topic 'source': source_lost must be one of"):
        App("again").topic("source", key=str, value=str, source_lost="skip")  # type: ignore[arg-type]


def test_the_command_line_overrides_the_policy_of_topics() -> None:
    app = App("again", source_lost="fail")
    source = app.topic("source", key=str, value=str, source_lost="latest")
    app.stream(source).to(app.topic("out", key=str, value=str))
    program = app.program()
    assert (program.source_policy("source"), program.source_policy("other")) == ("latest", "fail")
    assert program.with_source_lost("earliest").source_policy("source") == "earliest"


class Gate:
    """A function of an app that returns when it is let through."""

    def __init__(self) -> None:
        self._reached, self.opened = threading.Event(), threading.Event()

    def shape(self, _case: Case, _app: App, source: Any, out: Any) -> None:
        source.map_values(self._pass).to(out)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, DEADLINE_S)

    def _pass(self, value: str) -> str:
        self._reached.set()
        assert self.opened.wait(DEADLINE_S)
        return value


@asynccontextmanager
async def gated(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Case, Gate]]:
    gate = Gate()
    monkeypatch.setitem(SHAPES, "gated", gate.shape)
    async with opened(path, random.Random(1), "gated") as case:
        await feed(case.log, "source", [("a", "1"), ("b", "2")])
        try:
            yield case, gate
        finally:
            gate.opened.set()


@pytest.mark.parametrize("guarantee", GUARANTEES if IS_THOROUGH else GUARANTEES[:1])
def test_a_worker_that_stops_in_a_rebalance_does_not_wait_for_a_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarantee: Guarantee
) -> None:
    """It ends without an error; what it has not committed is processed by the next one."""
    # By its heartbeats, the first worker learns that the second one joins.
    monkeypatch.setattr("streamlog.worker.worker.HEARTBEAT_INTERVAL_MS", 100)

    async def main() -> None:
        async with gated(tmp_path, monkeypatch) as (case, gate):
            case.guarantee = guarantee
            async with worker(case):
                await gate.reached()
                case.state = "other"
                second = Worker(case.app().program(), log_url=case.url, announce=lambda _: None)
                joining = asyncio.create_task(second.run(asyncio.Event()))
                # Both have joined the new generation; the first one has not polled since.
                async with asyncio.timeout(DEADLINE_S):
                    while not await is_pair(case.log):  # noqa: ASYNC110 - no event tells
                        await asyncio.sleep(0.05)
                await case.log.admin().delete_topics(["source"])
                # The loop gets the function's result after the request to stop.
                gate.opened.set()
            joining.cancel()
            await asyncio.wait([joining])

    asyncio.run(main())


async def is_pair(log: Log) -> bool:
    """Return whether two workers of the app have joined its group."""
    (group,) = await log.admin().describe_groups(["again"])
    return group.state == "Stable" and len(group.members) == 2


def test_a_commit_that_a_deleted_topic_aborts_is_followed_by_a_wait_for_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The records that were not committed are lost with the topic."""

    async def main() -> None:
        async with gated(tmp_path, monkeypatch) as (case, gate):
            case.guarantee, case.source_lost = "exactly_once", "earliest"
            async with worker(case) as task:
                await gate.reached()
                await case.log.admin().delete_topics(["source"])
                gate.opened.set()
                await said(caplog, "waiting 60 s for it to be created again", task)
                assert "a commit was aborted" in caplog.text
                await create(case.log, "source")
                await feed(case.log, "source", [("c", "3"), ("d", "4")])
                await until(rows_of(case), Counter(["3", "4"]), task)

    asyncio.run(main())


@pytest.mark.parametrize("guarantee", GUARANTEES if IS_THOROUGH else GUARANTEES[:1])
def test_a_worker_that_waits_for_a_deleted_topic_stops_at_once(
    tmp_path: Path, guarantee: Guarantee, caplog: pytest.LogCaptureFixture
) -> None:
    """It commits nothing for the topic, and leaves the decision to the next worker."""
    old, new = [("a", "1"), ("b", "2")], [("a", "3")]

    async def main() -> None:
        async with opened(tmp_path, random.Random(1), "count") as case:
            case.guarantee, case.source_lost = guarantee, "earliest"
            await feed(case.log, "source", old)
            async with worker(case) as task:
                await settled(case, [old], task)
                await case.log.admin().delete_topics(["source"])
                await said(caplog, "waiting 60 s for it to be created again", task)
                stopped_s = time.monotonic()
            # A third of the wait: the stop has ended it, however slow the machine is.
            assert time.monotonic() - stopped_s < RETURN_MS / 3_000
            await create(case.log, "source")
            await feed(case.log, "source", new)
            async with worker(case) as task:
                await until(rows_of(case), expected("count", [old, new]), task)

    asyncio.run(main())
