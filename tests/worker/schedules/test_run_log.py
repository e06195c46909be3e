"""Schedules on a real log: restarts, changes of leader, and two leaders at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from streamlog.clock import ManualClock
from streamlog.dsl.schedules import Crontab, Misfire, Timer
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.schedules import schedule_runner
from streamlog.worker.schedules.schedule_runner import RunLog, ScheduleRunner
from streamlog.worker.schedules.schedule_runs import Runs

MINUTE_MS = 60_000
NOON_MS = round(datetime(2025, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)
WAIT_S = 60
NOTE = "crontab note at * * * * * UTC"


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_runner, "LOOK_INTERVAL_MS", 10)
    monkeypatch.setattr(schedule_runner, "LEAD_LOOK_MS", 10)


class Story:
    """A log, a clock that the test advances, and workers that record their runs."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.clock = ManualClock(NOON_MS + 1)
        self.ran: list[int] = []
        self.hangs = False
        self.is_hanging = asyncio.Event()
        self._changed = asyncio.Condition()

    def run_log(self) -> RunLog:
        return RunLog(self.log, "app", clock=self.clock)

    async def note(self, due: datetime) -> None:
        if self.hangs:
            self.hangs = False
            self.is_hanging.set()
            await asyncio.Event().wait()
        async with self._changed:
            self.ran.append((round(due.timestamp() * 1000) - NOON_MS) // MINUTE_MS)
            self._changed.notify_all()

    async def tick(self) -> None:
        await self.note(datetime.fromtimestamp(self.clock.wall_ms() / 1000, UTC))

    def crontab(self, misfire: Misfire, spec: str = "* * * * *") -> Crontab:
        return Crontab("note", self.note, spec, "UTC", misfire=misfire)

    async def until(self, ran: list[int]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.ran == ran)

    async def until_count(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.ran) >= count)

    @asynccontextmanager
    async def worker(
        self, *crontabs: Crontab, timers: tuple[Timer, ...] = (), leads: bool = True
    ) -> AsyncIterator[ScheduleRunner]:
        """Run a worker until the block ends; it stops in an orderly way."""
        scheduler = ScheduleRunner(
            timers, crontabs, clock=self.clock, is_leader=lambda: leads, run_log=self.run_log
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scheduler.run())
            yield scheduler
            scheduler.stop()

    async def known(self, key: str = NOTE) -> Runs | None:
        async with self.run_log() as log:
            await log.read()
            return log.runs(key)

    async def once_known(self, key: str = NOTE) -> None:
        """Wait until a worker has recorded the schedule."""
        while True:
            if await self.known(key) is not None:
                return

    async def once_done(self, due_ms: int) -> None:
        """Wait until a worker has recorded the end of a run."""
        while True:
            known = await self.known()
            if known is not None and known.done_ms >= due_ms:
                return


def play(path: Path, story: Callable[[Story], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S), Log.open(f"embedded:{path}/log") as log:
            await story(Story(log))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("misfire", "ran"), [("skip", [5, 25]), ("once", [5, 20, 25]), ("all", [5, 10, 15, 20, 25])]
)
def test_runs_missed_without_a_worker_follow_the_misfire_policy(
    tmp_path: Path, misfire: Misfire, ran: list[int]
) -> None:
    async def story(t: Story) -> None:
        job = t.crontab(misfire, "*/5 * * * *")
        async with t.worker(job):
            await t.once_known("crontab note at */5 * * * * UTC")
            t.clock.advance(5 * MINUTE_MS)
            await t.until([5])
        t.clock.advance(17 * MINUTE_MS)
        async with t.worker(job):
            await t.until(ran[:-1])
            t.clock.advance(3 * MINUTE_MS)
            await t.until(ran)

    play(tmp_path, story)


def test_each_due_time_runs_once_despite_two_leaders(tmp_path: Path) -> None:
    async def story(t: Story) -> None:
        async with t.worker(t.crontab("all")), t.worker(t.crontab("all")):
            await t.once_known()
            for minute in range(1, 8):
                t.clock.advance(MINUTE_MS)
                await t.until([*range(1, minute + 1)])
                # Otherwise the next minute may pass before that is recorded, and the owner seems
                # silent.
                await t.once_done(NOON_MS + minute * MINUTE_MS)
        known = await t.known()
        assert known is not None
        assert (known.done_ms, known.is_open) == (NOON_MS + 7 * MINUTE_MS, False)
        assert t.ran == [*range(1, 8)]

    play(tmp_path, story)


def test_a_worker_that_does_not_lead_runs_nothing(tmp_path: Path) -> None:
    async def story(t: Story) -> None:
        async with t.worker(t.crontab("all"), leads=False), t.worker(t.crontab("once")):
            await t.once_known()
            t.clock.advance(MINUTE_MS)
            await t.until([1])

    play(tmp_path, story)


async def killed_at_a_run(t: Story, misfire: Misfire) -> None:
    """Stop a leader in the middle of the run of minute 1."""
    t.hangs = True
    scheduler = ScheduleRunner(
        [], [t.crontab(misfire)], clock=t.clock, is_leader=lambda: True, run_log=t.run_log
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scheduler.run())
        await t.once_known()
        t.clock.advance(MINUTE_MS)
        await t.is_hanging.wait()
        running.cancel()


@pytest.mark.parametrize(("misfire", "ran"), [("skip", [2]), ("once", [1, 2]), ("all", [1, 2])])
def test_an_interrupted_run_is_repeated_when_its_owner_is_silent(
    tmp_path: Path, misfire: Misfire, ran: list[int]
) -> None:
    async def story(t: Story) -> None:
        await killed_at_a_run(t, misfire)
        known = await t.known()
        assert known is not None
        assert known.is_open
        async with t.worker(t.crontab(misfire)):
            t.clock.advance(schedule_runner.SILENT_MS)
            if misfire != "skip":
                await t.until([1])
            t.clock.advance(MINUTE_MS - schedule_runner.SILENT_MS)
            await t.until(ran)

    play(tmp_path, story)


def test_a_long_run_does_not_count_as_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedule_runner, "RENEW_MS", 10)

    async def story(t: Story) -> None:
        finish = asyncio.Event()
        started = asyncio.Event()

        async def slow(due: datetime) -> None:
            started.set()
            await finish.wait()
            await t.note(due)

        job = Crontab("note", slow, "* * * * *", "UTC", misfire="all")
        async with t.worker(job):
            await t.once_known()
            t.clock.advance(MINUTE_MS)
            await started.wait()
            async with t.worker(job), t.run_log() as log:
                for _ in range(3):
                    t.clock.advance(schedule_runner.SILENT_MS - 1)
                    # The owner renews its claim, at the clock's current time.
                    while log.silent_ms(NOTE):
                        await log.read()
                assert t.ran == []
                finish.set()
                await t.until([1, 2])

    with caplog.at_level(logging.INFO):
        play(tmp_path, story)


def test_a_timer_continues_from_its_last_run_after_a_leader_change(tmp_path: Path) -> None:
    async def story(t: Story) -> None:
        hourly = Timer("tick", t.tick, 60 * MINUTE_MS)
        async with t.worker(timers=(hourly,)):
            await t.once_known("timer tick every 3600000 ms")
            t.clock.advance(40 * MINUTE_MS)
        async with t.worker(timers=(hourly,)):
            t.clock.advance(20 * MINUTE_MS)
            await t.until([60])
        t.clock.advance(150 * MINUTE_MS)
        async with t.worker(timers=(hourly,)):
            await t.until([60, 210])
            t.clock.advance(30 * MINUTE_MS)
            await t.until([60, 210, 240])

    play(tmp_path, story)


def test_frequent_timers_do_not_fill_the_log(tmp_path: Path) -> None:
    async def story(t: Story) -> None:
        ticks = Timer("tick", t.tick, 100)
        async with t.worker(timers=(ticks,)):
            await t.once_known("timer tick every 100 ms")
            for count in range(1, 300):
                t.clock.advance(100)
                await t.until_count(count)
        partition = TopicPartition("app-schedules", 0)
        async with t.log.consumer() as consumer:
            records = (await consumer.end_offsets([partition]))[partition]
        assert 2 <= records <= 2 + 300 * 100 // schedule_runner.FREQUENT_MS

    play(tmp_path, story)


def test_schedules_of_functions_with_one_name_are_distinguished(tmp_path: Path) -> None:
    async def story(t: Story) -> None:
        async with t.worker(t.crontab("all"), t.crontab("all"), t.crontab("all", "0 * * * *")):
            await t.once_known()
            await t.once_known(f"{NOTE} #2")
            t.clock.advance(MINUTE_MS)
            await t.until([1, 1])

    play(tmp_path, story)
