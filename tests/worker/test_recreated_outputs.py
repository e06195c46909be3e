"""An output is deleted, and created again or not, while an app writes to it.

The rule: the worker says so; each row of a commit is in the new topic once, in the partition that
its key has there; a topic that does not come back ends the worker with the topic's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from streamlog import App, Stream
from streamlog.client.admin import NewTopic
from streamlog.errors import TopicExists, UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.protocol.schema import id_text
from streamlog.record import TopicPartition
from streamlog.records.partitioners import DEFAULT, partition_by
from streamlog.worker.commit import sinks
from tests.worker.recreated_topics import (
    DEADLINE_S,
    GUARANTEES,
    Guarantee,
    failing,
    feed,
    running,
    said,
)

SOURCE: Final = TopicPartition("source", 0)
KEYS: Final = tuple(f"k{number}" for number in range(20))

Rows = list[tuple[int, str, str]]
"""Partition, key and value."""


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "LOOK_MS", 20)


def copying(app: App) -> None:
    source = app.topic("source", key=str, value=str, partitions=1)
    app.stream(source).to(app.topic("out", key=str, value=str, partitions=1))


def yielding(app: App) -> None:
    source = app.topic("source", key=str, value=str, partitions=1)

    @app.agent(source, sink=app.topic("out", key=str, value=str, partitions=1))
    async def copy(stream: Stream[str, str]) -> AsyncIterator[str]:
        async for value in stream:
            yield value


@asynccontextmanager
async def working(
    path: Path, guarantee: Guarantee, build: Callable[[App], None] = copying
) -> AsyncIterator[tuple[Log, asyncio.Task[None], asyncio.Event]]:
    """Run a worker on a log of its own; yields the log, the worker, and what stops it."""
    async with Log.open(f"embedded:{path / 'log'}") as log:
        assert log.address is not None
        app = App(
            "copies",
            log="kafka://{}:{}".format(*log.address),
            state_dir=str(path / "state"),
            commit_interval="20ms",
            guarantee=guarantee,
        )
        build(app)
        for name in ("source", "out"):
            with suppress(TopicExists):
                await create(log, name, 1)
        async with running(app.program(), str(app.log)) as (task, stop):
            yield log, task, stop


async def create(log: Log, name: str, partitions: int) -> None:
    await log.admin().create_topics([NewTopic(name, partitions)])


def words(word: str) -> list[tuple[str, str]]:
    """Return a record with this value for each key."""
    return [(key, word) for key in KEYS]


async def rows(log: Log, partitions: int) -> Rows:
    found: Rows = []
    for number in range(partitions):
        for record in await log.read_range(TopicPartition("out", number)):
            found.append((number, (record.key or b"").decode(), (record.value or b"").decode()))
    return sorted(found)


def expected(word: str, partitions: int) -> Rows:
    """Return the rows of one word, where any producer would put them."""
    return sorted((partition_by(DEFAULT, key.encode(), partitions), key, word) for key in KEYS)


async def until(log: Log, partitions: int, wanted: Rows, task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (found := await rows(log, partitions)) != wanted:
            if task.done():
                task.result()
            assert len(found) <= len(wanted), found
            await asyncio.sleep(0.05)


async def copied(log: Log, task: asyncio.Task[None]) -> None:
    """Feed the old rows, and wait until they are copied and their positions committed.

    At least once, rows are there before their commit. Without it they are written again.
    """
    await feed(log, "source", words("old"))
    await until(log, 1, expected("old", 1), task)
    async with asyncio.timeout(DEADLINE_S):
        while await log.admin().group_offsets("copies") != {SOURCE: len(KEYS)}:
            assert not task.done(), task.result()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_rows_go_to_the_new_topic_by_its_partitions(
    tmp_path: Path, guarantee: Guarantee, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with working(tmp_path, guarantee) as (log, task, _):
            await copied(log, task)
            (old,) = await log.admin().find_topics(["out"])
            # The worker has nothing to write, so no answer of a broker would tell it.
            await log.admin().delete_topics(["out"])
            await create(log, "out", 3)
            (new,) = await log.admin().find_topics(["out"])
            line = await said(caplog, "out: deleted and created again", task)
            assert id_text(old.topic_id) in line
            assert id_text(new.topic_id) in line
            assert "with 3 partitions instead of 1" in line
            await feed(log, "source", words("new"))
            await until(log, 3, expected("new", 3), task)

    asyncio.run(main())


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_tasks_wait_for_an_output_that_is_gone(
    tmp_path: Path, guarantee: Guarantee, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with working(tmp_path, guarantee) as (log, task, _):
            await copied(log, task)
            await log.admin().delete_topics(["out"])
            await said(caplog, "out: deleted while this worker writes to it", task)
            await feed(log, "source", words("new"))
            await said(caplog, "waiting 60 s for outputs to be created again: out", task)
            await create(log, "out", 2)
            await until(log, 2, expected("new", 2), task)

    asyncio.run(main())


async def ended(path: Path, guarantee: Guarantee, build: Callable[[App], None] = copying) -> None:
    """Delete the output under a worker that has more to write, and wait for the worker's end."""
    async with failing(working(path, guarantee, build)) as (log, task, _):
        await copied(log, task)
        await log.admin().delete_topics(["out"])
        await feed(log, "source", words("new"))
        async with asyncio.timeout(DEADLINE_S):
            await task


DELETED: Final = "topic 'out', which app 'copies' writes to, was deleted"


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_an_output_that_stays_away_ends_the_worker_with_its_name(
    tmp_path: Path, guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "RETURN_MS", 100)

    async def main() -> None:
        with pytest.raises(UnknownTopicOrPartition, match=DELETED) as caught:
            await ended(tmp_path, guarantee)
        assert caught.value.exit_code == 3
        # Nothing is lost: the next start writes what this one could not.
        async with working(tmp_path, guarantee) as (log, task, _):
            await until(log, 1, expected("new", 1), task)

    asyncio.run(main())


def test_an_agent_does_not_continue_without_its_output(tmp_path: Path) -> None:
    """What its function has yielded is lost in this process, so no offset behind it may commit."""
    with pytest.raises(UnknownTopicOrPartition, match=DELETED):
        asyncio.run(ended(tmp_path, "exactly_once", yielding))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_stop_does_not_wait_for_the_output(
    tmp_path: Path, guarantee: Guarantee, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with working(tmp_path, guarantee) as (log, task, stop):
            await copied(log, task)
            await log.admin().delete_topics(["out"])
            await feed(log, "source", words("new"))
            await said(caplog, "waiting 60 s", task)
            stop.set()
            async with asyncio.timeout(DEADLINE_S / 2):
                await task

    asyncio.run(main())
