"""What hangs is told by name within the watchdog's time, with workers as their users run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.client.producer import Producer
from streamlog.log import Log
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
                r"WARNING task 0_0 has not moved for \d+ s: ins-0 at offset \d, \d behind; "
                r"task 0_0 is at work in 'hung' \(hanging.py:\d+, in hang\) for \d+ s"
            ),
        ),
        (
            "agent",
            (
                r"WARNING agent waiting has not moved for \d+ s: ins-0 at offset 1, \d behind; "
                r"it waits in hanging.py:\d+, in waiting"
            ),
        ),
        (
            "loop",
            r"WARNING the event loop has been blocked for \d+ s by hanging.py:\d+, in blocking",
        ),
    ],
)
def test_what_hangs_is_told_by_name(tmp_path: Path, how: str, line: str) -> None:
    worker = hanging(tmp_path, how)
    try:
        worker.line("rebalance: this worker has")
        attached(f"embedded:{tmp_path}/log", send)
        worker.line(line)
    finally:
        worker.kill()


def test_a_worker_that_hangs_for_too_long_ends_so_that_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    command = (*STREAMLOG, "-A", "hanging", "worker")
    with running(*command, cwd=tmp_path, HOW="function", EXIT="2s") as worker:
        worker.line("rebalance: this worker has")
        attached(f"embedded:{tmp_path}/log", send)
        assert worker.wait() == 7
        assert "the worker ends, so that another one may try" in worker.output
