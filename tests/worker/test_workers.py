"""`worker -w N`: processes under a supervisor that are killed, that fail, or that outlive it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from streamlog.log import Log
from tests.worker.processes import DEADLINE_S, STREAMLOG, Process, attached, running

HELLO = """
from streamlog import App, Stream

app = App("hello", log="embedded:./log", state_dir="./state")
greetings = app.topic("greetings", key=str, value=str, partitions=4)

@app.agent(greetings)
async def greet(stream: Stream[str, str]) -> None:
    async for who in stream:
        if who == "nobody":
            raise ValueError("whom?")
        print(f"hello, {who}")

if __name__ == "__main__":
    app.main()
"""
EMBEDDED = "embedded:./log"
GREETED = r"^{number} \| hello, {who}$"


def greet_all(*names: str) -> None:
    """Send each name to every partition."""

    async def story(log: Log) -> None:
        async with log.producer() as producer:
            for name in names:
                for partition in range(4):
                    await producer.send("greetings", name.encode(), partition=partition)
            await producer.flush()

    attached(EMBEDDED, story)


def wait_for_both(process: Process) -> None:
    """Wait until two workers have two partitions each."""
    for number in (1, 2):
        process.line(rf"^{number} \| .*rebalance: this worker has 2 partitions")


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_a_killed_worker_is_replaced_and_a_failing_one_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    command = (*STREAMLOG, "-A", "hello", "worker", "-w", "2")
    monkeypatch.chdir(tmp_path)
    with running(*command, cwd=tmp_path) as process:
        wait_for_both(process)
        greet_all("ann")
        process.line("hello, ann", count=4)
        rounds = process.output.count("rebalance: this worker")
        pid = process.line(r"worker 2 runs as process (\d+)")[1]
        os.kill(int(pid), signal.SIGKILL)
        process.line("worker 2 was killed by SIGKILL: it is replaced$")
        greet_all("bob")
        process.line(r"^1 \| hello, bob", count=2)
        process.line(r"^2 \| hello, bob", count=2)
        # It was back within its session, so the other worker has not noticed.
        words = process.output.splitlines()
        heard = [line for line in words if "rebalance: this worker" in line]
        assert len(heard) == rounds + 1
        assert heard[-1].startswith("2 | ")
        greet_all("nobody")
        assert process.wait() == 7
        assert "stopping the others" in process.output
        assert "error: worker" in process.output.splitlines()[-1]
        assert "whom?" in process.output
        assert process.output.count("app       hello") == 1


def test_ctrl_c_stops_all_workers_and_none_outlives_the_supervisor(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    with running(*STREAMLOG, "-A", "hello", "worker", "-w", "1", cwd=tmp_path) as process:
        process.line(r"^1 \| .*rebalance: this worker has 4 partitions")
        assert process.stop() == 0
        assert process.output.splitlines()[-1] == "stopped: everything is committed"
    with running(*STREAMLOG, "-A", "hello", "worker", "-w", "1", cwd=tmp_path) as process:
        process.line(r"^1 \| .*rebalance: this worker has 4 partitions")
        pid = int(process.line(r"worker 1 runs as process (\d+)")[1])
        process.kill()
        deadline = monotonic() + DEADLINE_S
        while is_alive(pid):
            assert monotonic() < deadline
            sleep(0.1)
