"""A worker whose state has seen a record of the year 2099, and the reset of its stream time."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlog import App, Emit, Windowed, tumbling
from streamlog.agents.offsets import noted_of
from streamlog.cli.session import Session
from streamlog.cli.topology_commands import stream_time
from streamlog.client.admin import NewTopic
from streamlog.clock import SystemClock
from streamlog.durations import when_ms
from streamlog.errors import TopicExists, UsageError
from streamlog.log import Log
from streamlog.processing.provenance import (
    PROVENANCE,
    ProvenanceMark,
    identity,
    mark_headers,
    pack_record,
)
from streamlog.record import TopicPartition
from streamlog.worker.operations.stream_times import reset_stream_times, stream_times_ahead
from streamlog.worker.topics.app_topics import EVERY_TIMESTAMP
from streamlog.worker.worker import Worker
from tests.worker.commit_steps import IS_THOROUGH

FAR_MS = when_ms("2099-01-01T00:00:00Z")
MINUTE_MS = 60_000
BEGIN_MS = when_ms("2026-01-01T00:00:00Z")
"""The time of the first records."""


def program(directory: Path, *, rekeyed: bool, guarantee: Any) -> App:
    """Build an app that counts per key in windows of a minute, and in total."""
    url, state = f"embedded:{directory / 'log'}", str(directory / "state")
    app = App("shop", log=url, state_dir=state, commit_interval="20ms", guarantee=guarantee)
    sales = app.topic("sales", key=str, value=int, partitions=1)
    windows = app.topic("windows", key=str, value=str, partitions=1)
    sums = app.topic("sums", key=str, value=int, partitions=1)
    stream = app.stream(sales)
    grouped = stream.rekey(lambda key, _: key).group_by_key() if rekeyed else stream.group_by_key()
    counted = grouped.windowed(tumbling("1m")).emit(Emit.UPDATE).count(name="n")
    counted.changes().map(format_window).to(windows)
    grouped.reduce(lambda a, b: a + b, name="sum").changes().to(sums)
    return app


def format_window(window: Windowed[str], count: int) -> tuple[str, str]:
    return window.key, f"{(when_ms(window.start) - BEGIN_MS) // MINUTE_MS} {count}"


@contextmanager
def running_worker(app: App) -> Iterator[None]:
    """Run a worker in a thread until the block ends."""
    asyncio.run(create_topics_of(app))
    started = Event()
    stops: list[Any] = []

    async def work() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        await Worker(app.program(), log_url=app.log, announce=lambda _: started.set()).run(stop)

    thread = Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert started.wait(60)
    try:
        yield
    finally:
        stops[0]()
        thread.join()


async def create_topics_of(app: App) -> None:
    """Create missing topics, so that they accept any timestamp."""
    topics = [NewTopic(name, 1, configs=EVERY_TIMESTAMP) for name in app.topics]
    async with Log.open(app.log) as log:
        for topic in topics:
            with suppress(TopicExists):
                await log.admin().create_topics([topic])


async def feed(app: App, *records: tuple[str, int, int]) -> None:
    """Write key, value and timestamp of each record, and wait for each one's row in `sums`."""
    before, topic = len(await rows_of(app, "sums")), app.topics["sales"]
    async with Log.open(app.log) as log, log.producer() as producer:
        for key, value, timestamp_ms in records:
            await producer.send(
                "sales",
                topic.value.dumps(value),
                key=topic.key.dumps(key),
                timestamp_ms=timestamp_ms,
            )
        await producer.flush()
    async with asyncio.timeout(30):
        while len(await rows_of(app, "sums")) < before + len(records):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def rows_of(app: App, topic: str) -> list[tuple[str, Any]]:
    topic_partition, t = TopicPartition(topic, 0), app.topics[topic]
    found: list[tuple[str, Any]] = []
    async with (
        Log.open(app.log) as log,
        log.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([topic_partition])
        end = (await consumer.end_offsets([topic_partition]))[topic_partition]
        while await consumer.position(topic_partition) < end:
            polled = (await consumer.poll(timeout_ms=100)).get(topic_partition, ())
            found += [(t.key.loads(each.key), t.value.loads(each.value)) for each in polled]
    return found


async def ahead(app: App) -> list[Any]:
    async with Log.open(app.log) as log:
        return await stream_times_ahead(app.program().topology, log=log)


async def logs_of(app: App) -> dict[Any, Any]:
    """Return the committed offsets, with the log of each."""
    async with Log.open(app.log) as log:
        topic_partitions = list(await log.admin().group_offsets(app.id))
        async with log.consumer(group_id=app.id) as consumer:
            found = await consumer.committed_metadata(topic_partitions)
    return {
        at: (each.offset, each.leader_epoch, noted_of(each.offset, each.metadata).log)
        for at, each in found.items()
        if each is not None
    }


async def reset(app: App, to_ms: int) -> list[Any]:
    async with Log.open(app.log) as log:
        return await reset_stream_times(app.program().topology, to_ms, log=log)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


FIRST = [("a", 1, BEGIN_MS), ("b", 2, BEGIN_MS + 1), ("a", 4, BEGIN_MS + MINUTE_MS)]
POISON = ("far", 100, FAR_MS)
LOST = [("a", 8, BEGIN_MS + 2 * MINUTE_MS)]
LATER = [
    ("a", 16, BEGIN_MS + 3 * MINUTE_MS),
    ("a", 32, BEGIN_MS + 3 * MINUTE_MS + 1),
    ("b", 64, BEGIN_MS + 4 * MINUTE_MS),
]


SOME_CASES = [
    (False, "exactly_once", False),
    (False, "at_least_once", True),
    (True, "exactly_once", True),
    (True, "at_least_once", False),
]
ALL_CASES = list(product([False, True], ["exactly_once", "at_least_once"], [False, True]))


@pytest.mark.parametrize(
    ("rekeyed", "guarantee", "keeps_state"), ALL_CASES if IS_THOROUGH else SOME_CASES
)
def test_later_records_count_again_after_a_reset(
    tmp_path: Path, rekeyed: bool, guarantee: str, keeps_state: bool
) -> None:
    app = program(tmp_path, rekeyed=rekeyed, guarantee=guarantee)
    with running_worker(app):
        asyncio.run(feed(app, *FIRST))
        asyncio.run(feed(app, POISON))
        asyncio.run(feed(app, *LOST))
    rows = asyncio.run(rows_of(app, "windows"))
    assert ("a", "2 1") not in rows  # Late: the far time is part of the state.
    shown_before = asyncio.run(ahead(app))
    logs = asyncio.run(logs_of(app))
    assert {each.stored.time_ms for each in shown_before} == {FAR_MS}
    assert asyncio.run(ahead(app)) == shown_before  # Reading changes nothing.
    assert asyncio.run(reset(app, BEGIN_MS + 2 * MINUTE_MS)) == shown_before
    assert asyncio.run(ahead(app)) == []
    assert asyncio.run(logs_of(app)) == logs
    assert asyncio.run(reset(app, BEGIN_MS)) == []  # Nothing is left to reset.
    if not keeps_state:
        (tmp_path / "state").rename(tmp_path / "lost state")
    again = program(tmp_path, rekeyed=rekeyed, guarantee=guarantee)
    with running_worker(again):
        asyncio.run(feed(again, *LATER))
    assert asyncio.run(ahead(again)) == []
    new = asyncio.run(rows_of(again, "windows"))[len(rows) :]
    assert new == [("a", "3 1"), ("a", "3 2"), ("b", "4 1")]
    sums = dict(asyncio.run(rows_of(again, "sums")))
    assert sums == {"a": 61, "b": 66, "far": 100}


async def repartitioned(app: App, *records: dict[str, Any]) -> None:
    """Append records to the repartition topic, as a killed worker may leave them."""
    async with Log.open(app.log) as log:
        found = [t.name for t in await log.admin().list_topics() if t.name.endswith("-repartition")]
        async with log.producer() as producer:
            for record in records:
                await producer.send(found[0], partition=0, **record)
            await producer.flush()


def test_unread_provenance_marks_do_not_restore_the_far_time(tmp_path: Path) -> None:
    app = program(tmp_path, rekeyed=True, guarantee="exactly_once")
    with running_worker(app):
        asyncio.run(feed(app, *FIRST, POISON))
    source = identity(("sales", 0))
    mark: Any = {
        "value": None,
        "headers": mark_headers(ProvenanceMark(FAR_MS, FAR_MS, 0), source, -1),
    }
    asyncio.run(repartitioned(app, mark))
    assert asyncio.run(reset(app, BEGIN_MS + 2 * MINUTE_MS))
    rows = asyncio.run(rows_of(app, "windows"))
    with running_worker(app):
        asyncio.run(feed(app, *LATER))
    assert asyncio.run(ahead(app)) == []
    assert asyncio.run(rows_of(app, "windows"))[len(rows) :] == [
        ("a", "3 1"),
        ("a", "3 2"),
        ("b", "4 1"),
    ]


def test_a_reset_skips_no_unread_record(tmp_path: Path) -> None:
    app = program(tmp_path, rekeyed=True, guarantee="exactly_once")
    with running_worker(app):
        asyncio.run(feed(app, *FIRST, POISON))
    found = asyncio.run(ahead(app))
    header = pack_record(FAR_MS, FAR_MS, 1_000, 0) + identity(("sales", 0))
    topic = app.topics["sales"]
    left: Any = {
        "key": topic.key.dumps("a"),
        "value": topic.value.dumps(1),
        "headers": [(PROVENANCE, header)],
    }
    asyncio.run(repartitioned(app, left))
    with pytest.raises(UsageError, match=r"shop-.*-repartition-0 has 1 unprocessed record that"):
        asyncio.run(reset(app, BEGIN_MS))
    assert asyncio.run(ahead(app)) == found


def test_a_reset_is_refused_while_a_worker_runs(tmp_path: Path) -> None:
    app = program(tmp_path, rekeyed=False, guarantee="exactly_once")
    with running_worker(app):
        asyncio.run(feed(app, *FIRST, POISON))
        found = asyncio.run(ahead(app))
        assert found
        with pytest.raises(UsageError, match="app 'shop' has 1 running worker "):
            asyncio.run(reset(app, BEGIN_MS))
    assert asyncio.run(ahead(app)) == found


def test_a_reset_to_a_future_time_is_refused(tmp_path: Path) -> None:
    app = program(tmp_path, rekeyed=False, guarantee="exactly_once")
    with pytest.raises(UsageError, match="between 1970 and now"):
        asyncio.run(reset(app, SystemClock().wall_ms() + 3_600_000))


def test_the_stream_time_command_shows_and_resets(tmp_path: Path) -> None:
    import typer  # noqa: PLC0415

    commands = typer.Typer()
    commands.command()(stream_time)
    app = program(tmp_path, rekeyed=False, guarantee="exactly_once")

    def say(*arguments: str) -> str:
        done = CliRunner().invoke(
            commands, [*arguments], obj=Session(app=app), catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        return done.output

    with running_worker(app):
        asyncio.run(feed(app, *FIRST))
    assert say() == "no stored stream time of 'shop' is ahead of the clock\n"
    with running_worker(app):
        asyncio.run(feed(app, POISON))
    for _ in range(2):
        printed = say()
        assert "task 0_0  sales  all sources  2099-01-01T00:00:00+00:00" in printed
        assert "nothing was changed" in printed
    with pytest.raises(UsageError, match="--reset-to takes 'now' or a time"):
        say("--reset-to", "yesterday")
    assert {
        "task": "0_0", "node": "sales", "source": None, "time_ms": FAR_MS, "reset_to_ms": None,
    } in json.loads(say("--json"))  # fmt: skip
    assert "stream time of 1 task (0_0) was reset to " in say("--reset-to", "now")
    assert say("--json") == "[]\n"
    assert say() == "no stored stream time of 'shop' is ahead of the clock\n"
