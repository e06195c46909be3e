"""Functions under `app.task`, and schedules, on the test driver."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from streamlog import App, ProcessingError
from streamlog.errors import TopologyError


def test_a_task_runs_once_and_its_records_are_processed() -> None:
    app = App("started")
    names = app.topic("names", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    app.stream(names).map_values(str.upper).to(out)
    ended: list[str] = []

    @app.task
    async def fill() -> None:
        await names.send("ada", key="a")
        await names.send("bob", key="b")

    @app.task
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("wait")

    with app.test() as t:
        assert t.output(out).values == ["ADA", "BOB"]
        t.advance("1h")
        assert len(t.output(out).values) == 2
        assert ended == []
    assert ended == ["wait"]
    assert [service.name for service in app.tasks] == ["fill", "wait"]


def test_a_failing_task_fails_the_test() -> None:
    app = App("failing")

    @app.task
    async def fail() -> None:
        raise ValueError("no paper")

    with pytest.raises(ProcessingError, match="task 'fail' failed: ValueError: no paper"):
        app.test().__enter__()


def test_a_task_must_be_async_with_a_unique_name() -> None:
    app = App("named")

    @app.task
    async def work() -> None:
        """Do nothing."""

    with pytest.raises(TopologyError, match="there is already a task 'work'"):
        app.task(work)
    with pytest.raises(TopologyError, match="must be `async def`"):
        app.task(lambda: None)  # type: ignore[type-var, arg-type, return-value]


def test_a_crontab_keeps_local_time_when_the_clocks_change() -> None:
    """As in a worker: a skipped 2:30 runs once at 3:00, and a repeated one runs once."""
    app = App("nightly", timezone="Europe/Berlin")
    due: list[str] = []

    @app.crontab("30 2 * * *")
    async def nightly(at: datetime) -> None:
        due.append(f"{at:%m-%d %H:%M %z}")

    with app.test(start=datetime(2024, 3, 30, 12, tzinfo=UTC)) as t:
        t.advance("2d")
    with app.test(start=datetime(2024, 10, 26, 12, tzinfo=UTC)) as t:
        t.advance("2d")
    assert due == [
        "03-31 03:00 +0200",
        "04-01 02:30 +0200",
        "10-27 02:30 +0200",
        "10-28 02:30 +0100",
    ]
