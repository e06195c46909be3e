"""Connectors in a worker of this process: offsets, policies, metrics, purge and the end."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from streamlog import App, on_error
from streamlog.connect import (
    BadRecords,
    Batch,
    Flush,
    Read,
    Sink,
    SinkContext,
    SinkTask,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.errors import ProcessingError, UnknownMember
from streamlog.log import Log
from streamlog.protocol.messages.classic_groups import LeaveGroupRequest, MemberIdentity
from streamlog.replace import replace
from streamlog.transport.client_connection import TcpTransport
from streamlog.worker import worker
from streamlog.worker.connect.connect_room import ConnectRoom
from streamlog.worker.connect.sink_group import purge_once
from streamlog.worker.program import WorkerStart
from streamlog.worker.worker import Worker
from tests.worker.processes import read_whole

PAGE = (Path(__file__).parents[3] / "docs" / "watching.md").read_text()


class Words(Source[str, str], frozen=True, kw_only=True):
    """Ten words, and then nothing more."""

    acknowledged: ClassVar[list[int]] = []

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, str]]:
        at = 0 if offset is None else int(str(offset["at"]))
        for number in range(at, 10):
            record = context.record(f"word {number}", key=f"{number}", timestamp=number)
            context.count("words")
            context.measure("word_number", number)
            yield Read(
                [record],
                {"at": number + 1},
                committed=lambda number=number: self.acknowledged.append(number),
            )


class Out(Sink[str, str], frozen=True, kw_only=True):
    """A list that refuses one word."""

    refuses: str = ""
    values: ClassVar[list[str]] = []

    def open(self, context: SinkContext) -> SinkTask[str, str]:
        return OutTask(self)


class OutTask(SinkTask[str, str]):
    def __init__(self, sink: Out) -> None:
        self.sink = sink

    async def write(self, batch: Batch[str, str]) -> None:
        bad = {at: "refused" for at, word in enumerate(batch.values) if word == self.sink.refuses}
        if bad:
            raise BadRecords(bad)
        self.sink.values.extend(batch.values)


def build(path: Path, **settings: Any) -> App:
    Words.acknowledged.clear()
    Out.values.clear()
    return App("words", state_dir=f"{path}/state", commit_interval="20ms", **settings)


async def run(app: App, path: Path, until: Callable[[], bool], *, web: str | None = None) -> str:
    """Run a worker until something is so; returns its metrics, if it has a server."""
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    app.web = web

    def announce(start: WorkerStart) -> None:
        ready.set_result(start.web)

    worker = Worker(app.program(), log_url=f"embedded:{path}/log", announce=announce)
    running = asyncio.create_task(worker.run(stop))
    metrics = ""
    async with asyncio.timeout(60):
        while not (until() or running.done()):  # noqa: ASYNC110 - of the worker's own threads
            await asyncio.sleep(0.02)
        if web is not None and not running.done():
            url = f"http://{await ready}/metrics"
            metrics = (await asyncio.to_thread(urllib.request.urlopen, url)).read().decode()
        stop.set()
        await running
    return metrics


def test_offsets_of_sources_are_in_the_topic_as_kafka_connect_writes_them(tmp_path: Path) -> None:
    async def story() -> None:
        app = build(tmp_path)
        words = app.topic("words", key=str, value=str, partitions=2)
        app.source(words, Words(), name="in")
        app.sink(words, Out(flush=Flush(every="10ms")), name="out")
        metrics = await run(app, tmp_path, lambda: len(Out.values) == 10, web="127.0.0.1:0")
        assert sorted(Words.acknowledged) == [*range(10)]
        # A second life reads nothing again: it begins behind the offset.
        await run(app, tmp_path, lambda: True)
        async with Log.open(f"embedded:{tmp_path}/log") as log:
            records = await read_whole(log, "words")
            offsets = await read_whole(log, "words-connect-offsets")
            committed = await log.admin().group_offsets("words-out")
        assert len(records) == 10
        assert offsets[-1][1].key == b'["in",{}]'
        assert json.loads(offsets[-1][1].value or b"") == {"at": 10}
        assert sum(committed.values()) >= 10
        for name, labels in (
            ("kafka_connect_source_task_metrics_source_record_write_total", 'in",task="0'),
            ("kafka_connect_sink_task_metrics_sink_record_send_total", 'out",task="0'),
            ("streamlog_connector_words_total", "in"),
        ):
            assert f'{name}{{connector="{labels}"}} 10' in metrics
        assert 'streamlog_connector_word_number{connector="in",task="0"} 9' in metrics
        named = re.findall(r"^\| `((?:kafka_connect|streamlog_connector)_\w+)", PAGE, re.MULTILINE)
        shown = re.findall(
            r"^# TYPE ((?:kafka_connect|streamlog_connector)_\w+)", metrics, re.MULTILINE
        )
        own = {"streamlog_connector_words_total", "streamlog_connector_word_number"}
        assert {*named} == {*shown} - own

    asyncio.run(story())


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_what_a_sink_refuses_is_a_dead_letter(tmp_path: Path, guarantee: str) -> None:
    async def story() -> None:
        app = build(tmp_path, guarantee=guarantee, on_error=on_error.dlq())
        words = app.topic("words", key=str, value=str, partitions=1)
        app.source(words, Words(), name="in")
        app.sink(words, Out(refuses="word 3", flush=Flush(every="10ms")), name="out")
        await run(app, tmp_path, lambda: len(Out.values) == 9)
        async with Log.open(f"embedded:{tmp_path}/log") as log:
            letters = await read_whole(log, "words-dlq")
        assert [record.value for _, record in letters] == [b"word 3"]

    asyncio.run(story())


def test_under_fail_the_worker_ends_with_the_connector_in_the_error(tmp_path: Path) -> None:
    async def story() -> None:
        app = build(tmp_path)
        words = app.topic("words", key=str, value=str, partitions=1)
        app.source(words, Words(), name="in")
        app.sink(words, Out(refuses="word 3", flush=Flush(every="10ms")), name="out")
        with pytest.raises(ExceptionGroup) as raised:
            await run(app, tmp_path, lambda: False)
        (error,) = raised.value.exceptions
        assert isinstance(error, ProcessingError)
        assert error.exit_code == 7
        assert "refused" in str(error)

    asyncio.run(story())


def test_a_sink_whose_task_moves_to_a_new_worker_goes_on(tmp_path: Path) -> None:
    """Each of two sinks has one task; the second worker gets one of them, and no other slot."""

    async def story() -> None:
        # The first worker hears of the second by a heartbeat.
        app = build(tmp_path, consumer={"heartbeat.interval.ms": 50})
        words = app.topic("words", key=str, value=str, partitions=1)
        for name in ("one", "two"):
            app.sink(words, Out(flush=Flush(every="10ms")), name=name)
        stops = [asyncio.Event(), asyncio.Event()]
        async with (
            asyncio.timeout(60),
            Log.open(f"embedded:{tmp_path}/log") as log,
            log.producer() as producer,
            asyncio.TaskGroup() as group,
        ):
            for number, stop in enumerate(stops):
                program = replace(app.program(), state_dir=f"{tmp_path}/state-{number}")
                worker = Worker(
                    program, log_url=f"embedded:{tmp_path}/log", announce=lambda _: None
                )
                group.create_task(worker.run(stop))
                slots = 2 - number
                while len(worker.exchange.given_slots) != slots:  # noqa: ASYNC110 - of a worker
                    await asyncio.sleep(0.02)
                await producer.send("words", b"word", key=b"k")
                while len(Out.values) < 2 * (number + 1):  # noqa: ASYNC110 - of a worker
                    await asyncio.sleep(0.02)
            for stop in stops:
                stop.set()
        assert Out.values == ["word"] * 4

    asyncio.run(story())


def test_a_worker_whose_session_ends_in_the_middle_of_a_round_joins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that stands still: the broker has given the member up meanwhile."""
    removed: list[str] = []

    async def on_round(room: ConnectRoom, commit: Callable[[], Awaitable[bool]]) -> None:
        if not removed:
            removed.append(room._deps.consumer.group_metadata().member_id)
            await remove(removed[0])
            # The next heartbeat tells it; the member then joins again, while this round is old.
            while is_member(room):  # noqa: ASYNC110 - nothing else tells it
                await asyncio.sleep(0)
        await real(room, commit)

    def is_member(room: ConnectRoom) -> bool:
        try:
            return room._deps.consumer.group_metadata().member_id == removed[0]
        except UnknownMember:
            return False

    async def remove(member: str) -> None:
        async with Log.open(f"embedded:{tmp_path}/log") as log:
            request = LeaveGroupRequest(
                group_id="words", members=[MemberIdentity(member_id=member)]
            )
            assert log.address is not None
            transport = await TcpTransport.connect(
                *log.address, client_id="operator", timeout_ms=5_000
            )
            answer = await transport.call(request, timeout_ms=5_000)
            await transport.close()
            assert (answer.error_code, answer.members[0].error_code) == (0, 0)

    real = ConnectRoom.on_round
    monkeypatch.setattr(ConnectRoom, "on_round", on_round)
    monkeypatch.setattr(worker, "HEARTBEAT_INTERVAL_MS", 100)
    app = build(tmp_path)
    words = app.topic("words", key=str, value=str, partitions=1)
    app.source(words, Words(), name="in")
    app.sink(words, Out(flush=Flush(every="10ms")), name="out")
    asyncio.run(run(app, tmp_path, lambda: len(Out.values) == 10))
    assert removed
    assert sorted(Out.values) == sorted(f"word {number}" for number in range(10))


def test_what_the_target_has_is_removed_from_the_own_topic_of_a_sink(tmp_path: Path) -> None:
    async def story() -> None:
        app = build(tmp_path)
        words = app.topic("words", key=str, value=str, partitions=1)
        app.source(words, Words(), name="in")
        app.stream(words).sink(Out(flush=Flush(every="10ms")), name="out")
        await run(app, tmp_path, lambda: len(Out.values) == 10)
        async with Log.open(f"embedded:{tmp_path}/log") as log:
            await purge_once(log, "words", app.program().sink_connectors)
            committed = await log.admin().group_offsets("words-out")
            async with log.consumer() as consumer:
                begins = await consumer.begin_offsets(committed)
            assert begins == committed
            assert sum(begins.values()) >= 10

    asyncio.run(story())
