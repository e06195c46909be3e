"""A stall is logged with its cause within the watchdog's time, in workers as users run them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from streamlog.client.producer import Producer
from streamlog.clock import ManualClock, SystemClock
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.worker.engine import EngineThread
from streamlog.worker.health.loop_watch import Limits, WorkerWatch
from streamlog.worker.health.watchdog import Sight
from tests.worker.processes import STREAMLOG, Process, attached, running

HANGING = """
import asyncio, os, threading, time
from streamlog import App, Stream

app = App(
    "hanging",
    log="embedded:./log",
    state_dir="./state",
    commit_interval="50ms",
    watchdog="1s",
    watchdog_exit=os.environ.get("EXIT"),
)
ins = app.topic("ins", key=str, value=str, partitions=1)
outs = app.topic("outs", key=str, value=str)

def hang(value: str) -> str:
    if value == "for ever":
        threading.Event().wait()
    return value

HOW = os.environ["HOW"]
if HOW == "function":
    app.stream(ins).map_values(hang, name="hung").to(outs)
elif HOW == "agent":
    @app.agent(ins)
    async def waiting(stream: Stream[str, str]) -> None:
        async for value in stream:
            if value == "for ever":
                await asyncio.Event().wait()
elif HOW == "loop":
    @app.agent(ins)
    async def blocking(stream: Stream[str, str]) -> None:
        async for value in stream:
            if value == "for ever":
                time.sleep(4)
            print("got", value)
"""


async def send(log: Log) -> None:
    async with log.producer() as producer:
        await all_sent(producer)


async def all_sent(producer: Producer) -> None:
    for value in (b"first", b"for ever", b"last"):
        await producer.send("ins", value, partition=0)


def hanging(path: Path, how: str, **environment: str) -> Process:
    (path / "hanging.py").write_text(HANGING)
    return Process(*STREAMLOG, "-A", "hanging", "worker", cwd=path, HOW=how, **environment)


@pytest.mark.parametrize(
    ("how", "line"),
    [
        (
            "function",
            (
                r"WARNING task 0_0 has made no progress for \d+ s: ins-0 at offset \d, "
                r"\d records? behind; "
                r"task 0_0 has been at work in 'hung' \(hanging.py:\d+, in hang\) for \d+ s"
            ),
        ),
        (
            "agent",
            (
                r"WARNING agent waiting has made no progress for \d+ s: ins-0 at offset 1, "
                r"\d records? behind; "
                r"it waits in hanging.py:\d+, in waiting"
            ),
        ),
        (
            "loop",
            r"WARNING the event loop has been blocked for \d+ s by hanging.py:\d+, in blocking",
        ),
    ],
)
def test_a_stall_is_logged_with_its_cause(tmp_path: Path, how: str, line: str) -> None:
    worker = hanging(tmp_path, how)
    try:
        worker.line("rebalance: this worker has")
        attached(f"embedded:{tmp_path}/log", send)
        worker.line(line)
    finally:
        worker.kill()


class FirstLine(logging.Handler):
    """The first line of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.line: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def emit(self, record: logging.LogRecord) -> None:
        if not self.line.done():
            self.line.set_result(record.getMessage())


class Waiting:
    """A task that lags and is not running."""

    def sights(self) -> Mapping[str, Sight]:
        part = TopicPartition("ins", 0)
        return {"task 1_0": Sight({part: 1}, {part: 2})}

    def reason(self, who: str) -> str:
        return f"{who} waits for nobody"


async def log_a_task_behind_another() -> str:
    """The line for task 1_0 while task 0_0 is at work."""
    clock, released, first_line = SystemClock(), threading.Event(), FirstLine()
    logger = logging.getLogger("streamlog.worker.health.loop_watch")
    logger.addHandler(first_line)
    try:
        with closing(EngineThread(clock)) as engine:
            work = asyncio.ensure_future(engine.call(TaskId(0, 0), released.wait))
            watching = WorkerWatch(Limits(tell_ms=50), Waiting(), engine, clock)
            look = asyncio.ensure_future(watching.run())
            line = await asyncio.wait_for(first_line.line, 60)
            look.cancel()
            released.set()
            await work
            return line
    finally:
        logger.removeHandler(first_line)


def test_a_task_waiting_for_its_turn_is_not_blamed() -> None:
    line = asyncio.run(log_a_task_behind_another())
    assert line.startswith("task 1_0 has made no progress for")
    assert "; it waits behind task 0_0, which has been at work in " in line


class ManyWaiting(Waiting):
    """Thirty tasks that lag."""

    def sights(self) -> Mapping[str, Sight]:
        part = TopicPartition("ins", 0)
        return {f"task 1_{at}": Sight({part: 1}, {part: 2}) for at in range(30)}


async def look_at_many() -> None:
    clock = ManualClock()
    with closing(EngineThread(clock)) as engine:
        watching = WorkerWatch(Limits(tell_ms=50), ManyWaiting(), engine, clock)
        watching._look()
        clock.advance(60)
        watching._look()


def test_many_tasks_behind_one_are_logged_in_a_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        asyncio.run(look_at_many())
    *alone, shared = [record.getMessage() for record in caplog.records]
    assert [line.split(" has made no progress")[0] for line in alone] == [
        f"task 1_{n}" for n in range(3)
    ]
    assert shared.startswith("27 more have made no progress either: task 1_3, task 1_4, ")
    assert shared.endswith(" and 7 others")


def test_a_worker_that_hangs_too_long_exits_to_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    command = (*STREAMLOG, "-A", "hanging", "worker")
    with running(*command, cwd=tmp_path, HOW="function", EXIT="2s") as worker:
        worker.line("rebalance: this worker has")
        attached(f"embedded:{tmp_path}/log", send)
        assert worker.wait() == 7
        assert "the worker ends, so that another one can take over" in worker.output
