"""Schedules and tasks of an app, in worker processes."""

from __future__ import annotations

from pathlib import Path

from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.worker.schedules.schedule_runner import RunLog
from streamlog.worker.schedules.schedule_runs import Runs
from tests.worker.processes import STREAMLOG, attached, running

PROGRAM = """
import os
from datetime import datetime
from streamlog import App

app = App("clockwork", log="embedded:./log")

@app.timer("300ms")
async def tick() -> None:
    print("tick")

@app.timer("1h")
async def hourly() -> None:
    print("hourly")

@app.task
async def once() -> None:
    print("begun")
    if "FAIL" in os.environ:
        raise ValueError("no paper")
"""
WORKER = (*STREAMLOG, "-A", "clockwork", "worker")


def test_an_app_without_topics_runs_its_schedules(tmp_path: Path) -> None:
    (tmp_path / "clockwork.py").write_text(PROGRAM)

    async def known(log: Log) -> Runs | None:
        async with RunLog(log, "clockwork", clock=SystemClock()) as runs:
            await runs.read()
            return runs.runs("timer hourly every 3600000 ms")

    found = []
    for _ in range(2):
        with running(*WORKER, cwd=tmp_path) as worker:
            worker.line("^tick$", count=2)
            found.append(attached(f"embedded:{tmp_path}/log", known))
            assert worker.stop() == 0
            lines = worker.output.splitlines()
            assert lines.count("begun") == 1
            assert "hourly" not in lines
    # The second worker continues the interval of the first.
    assert found[0] is not None
    assert found[0] == found[1]


def test_a_failing_task_stops_the_worker(tmp_path: Path) -> None:
    (tmp_path / "clockwork.py").write_text(PROGRAM)
    with running(*WORKER, cwd=tmp_path, FAIL="1") as worker:
        assert worker.wait() == 7
        assert "task 'once' failed: ValueError: no paper" in worker.output
