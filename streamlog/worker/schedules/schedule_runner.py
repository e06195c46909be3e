"""Schedule runner: runs timers and crontabs by the clock, on the group's leader or on every worker.

A schedule never runs concurrently with itself: due times during a run are missed, and `misfire`
says what happens then. Runs on the leader are recorded in the log (`RunLog`). A new leader, even
after a time without any worker, knows which runs are done, which were missed, and which were
interrupted.

Rule: a due time is claimed in the log before its run, so a worker that wrongly believes that it is
the leader runs nothing twice:

1. A leads and is blocked. B becomes leader, claims 12:00 and runs it.
2. A continues, still believes that it leads, and claims 12:00 as well.
3. A reads its claim back: B's is earlier in the log, so A runs nothing.

Timers with short intervals are not claimed; they record their progress at intervals. Runs on every
worker are not recorded. Not done here: due times (`dsl/schedules`, `crontab`), and the
records of runs (`schedule_runs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import uuid4

from streamlog import repeated
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.client.range_reader import RangeReader
from streamlog.clock import Clock, SteadyWall
from streamlog.crontab import CronTimes, cron_times
from streamlog.dsl.schedules import (
    Crontab,
    Interval,
    Misfire,
    On,
    Schedule,
    Timer,
    missed_runs,
)
from streamlog.errors import TopicExists
from streamlog.log import Log
from streamlog.processing.column_batch import exit_failure
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.worker.schedules.schedule_runs import Runs

logger = repeated.logger(__name__)

CONFIGS = {"cleanup.policy": "compact"}
BROKER_DEFAULT = -1
POLL_MS = 200


class RunLog:
    """Reads and writes the runs of an app's schedules in the log; an async context manager."""

    def __init__(self, log: Log, app_id: str, *, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._partition = TopicPartition(f"{app_id}-schedules", 0)
        self._stack = AsyncExitStack()
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._runs: dict[str, Runs] = {}
        self._written_ms: dict[str, int] = {}
        self._reading = asyncio.Lock()

    async def __aenter__(self) -> Self:
        topic = NewTopic(
            self._partition.topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS
        )
        try:
            await self._log.admin().create_topics([topic])
        except TopicExists:
            logger.debug("topic %s exists", topic.name)
        self._producer = await self._stack.enter_async_context(self._log.producer(linger_ms=0))
        consumer = self._log.consumer(auto_offset_reset="earliest")
        self._consumer = await self._stack.enter_async_context(consumer)
        self._consumer.assign([self._partition])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def runs(self, schedule: str) -> Runs | None:
        """Return the runs of a schedule as of the last read; None if there is no record."""
        return self._runs.get(schedule)

    def silent_ms(self, schedule: str) -> int:
        """Return the time since the last record of a schedule, by the wall clock, in ms."""
        return max(self._clock.wall_ms() - self._written_ms.get(schedule, 0), 0)

    async def read(self) -> None:
        """Read all records up to the present end."""
        ends = await self._open_consumer.end_offsets([self._partition])
        await self._read_until(ends[self._partition])

    async def write(self, schedule: str, record: Runs) -> Runs:
        """Write a record and read up to it; returns the schedule's runs as of then."""
        if self._producer is None:
            raise RuntimeError("the log of runs is closed")
        key, now_ms = schedule.encode(), self._clock.wall_ms()
        sent = await self._producer.send(
            self._partition.topic, record.encode(), key=key, partition=0, timestamp_ms=now_ms
        )
        # Up to the own record: another one may come before it in the log, and counts first.
        await self._read_until((await sent).offset + 1)
        return self._runs[schedule]

    @property
    def _open_consumer(self) -> Consumer:
        if self._consumer is None:
            raise RuntimeError("the log of runs is closed")
        return self._consumer

    async def _read_until(self, end: int) -> None:
        # All schedules of a worker share the consumer.
        async with self._reading:
            reader = RangeReader(self._open_consumer, {self._partition: end}, self._clock)
            while not await reader.is_at_end():
                await self._read_some()

    async def _read_some(self) -> None:
        polled = await self._open_consumer.poll(timeout_ms=POLL_MS)
        for record in polled.get(self._partition, ()):
            schedule, runs = (record.key or b"").decode(), Runs.decode(record.value or b"")
            before = self._runs.get(schedule)
            self._runs[schedule] = runs if before is None else before.merge(runs)
            self._written_ms[schedule] = record.timestamp_ms


LOOK_INTERVAL_MS = 1_000
"""The longest sleep of a waiting job. A longer one would not notice that the clock was set, or that
the machine was suspended."""
LEAD_LOOK_MS = 200
"""The interval at which a worker checks whether it leads the group."""
RENEW_MS = 10_000
"""The interval at which a claim is written again during its run."""
SILENT_MS = 30_000
"""After this time without renewal, the owner of a claim counts as dead and its run as
interrupted."""
STOP_WAIT_MS = 30_000
"""How long runs are waited for after the request to stop."""
FREQUENT_MS = 10_000
"""Timers with shorter intervals are not claimed; they record their progress at this interval."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A timer or a crontab."""

    name: str
    key: str
    """The key of its records; it contains the times, so a changed schedule is a new one."""
    schedule: Callable[[int], Schedule]
    """Returns the due times, given the time up to which runs are done."""
    read_ms: Callable[[], int]
    """The clock of the schedule."""
    run: Callable[[int], Awaitable[object]]
    """Runs the function; takes the due time."""
    on: On
    misfire: Misfire
    is_frequent: bool


class ScheduleRunner:
    """Runs timers and crontabs until it is stopped, then waits for running ones for a limited time.

    A function that raises is logged with its traceback and runs again at its next time: a failed
    report must not stop the processing of records.
    """

    def __init__(
        self,
        timers: Sequence[Timer],
        crontabs: Sequence[Crontab],
        *,
        clock: Clock,
        is_leader: Callable[[], bool],
        run_log: Callable[[], RunLog] | None = None,
    ) -> None:
        """Create the scheduler; `run` starts it.

        Args:
            timers: the timers.
            crontabs: the crontabs.
            clock: the clock.
            is_leader: returns whether this worker leads the group; checked at each due time.
            run_log: opens the log of runs; without it, runs on the leader are kept in memory.
        """
        self._clock = clock
        self._wall = SteadyWall(clock)
        self._is_leader = is_leader
        self._open_log = run_log
        self._log: RunLog | None = None
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._recorded_ms: dict[str, int] = {}
        self._me = uuid4().hex
        self._stop = asyncio.Event()
        jobs = [*map(self._timer_job, timers), *map(self._crontab_job, crontabs)]
        self._jobs = _number_duplicates(jobs)

    async def run(self) -> None:
        """Run all schedules until `stop` is called.

        Raises:
            StreamlogError: the log of runs can't be read or written.
        """
        async with self._stack, asyncio.TaskGroup() as tasks:
            kept: dict[asyncio.Task[None], str] = {}
            for job in self._jobs:
                keep = self._keep(job) if job.on == "every_worker" else self._keep_leading(job)
                kept[tasks.create_task(keep, name=f"schedule {job.name}")] = job.name
            if kept:
                tasks.create_task(self._end_late(kept), name="late schedules")

    def stop(self) -> None:
        """Start no further runs; `run` returns when running ones have ended or timed out."""
        self._stop.set()

    async def _end_late(self, kept: Mapping[asyncio.Task[None], str]) -> None:
        """Cancel runs that do not end in time after `stop`.

        A cancelled run leaves its claim open, so the next leader finds that it was interrupted.
        """
        await self._stop.wait()
        _, late = await asyncio.wait(kept, timeout=STOP_WAIT_MS / 1000)
        for task in late:
            text = "%s still runs %d s after the request to stop: cancelled"
            logger.warning(text, kept[task], STOP_WAIT_MS // 1000)
            task.cancel()

    async def _keep(self, job: _Job) -> None:
        """Run a schedule of every worker."""
        schedule = job.schedule(job.read_ms())
        due_ms = schedule.next_after(job.read_ms())
        while not await self._stopped_within(due_ms - job.read_ms()):
            now_ms = job.read_ms()
            # A wait ends after `LOOK_INTERVAL_MS` at the latest, so it may take several.
            if now_ms < due_ms:
                continue
            for time_ms in missed_runs(schedule, due_ms, now_ms, job.misfire):
                # `now_ms` is from before the run: due times during the run are found as missed
                # ones.
                await self._run(job, time_ms)
            due_ms = schedule.next_after(now_ms)

    async def _keep_leading(self, job: _Job) -> None:
        """Run a schedule of the leader while this worker leads."""
        runs: Runs | None = None
        wait_ms = 0
        while not await self._stopped_within(wait_ms):
            wait_ms = LEAD_LOOK_MS
            # Another worker may run it meanwhile: the log is read again before the next run here.
            if not self._is_leader():
                runs = None
                continue
            runs = runs or await self._take_over(job)
            if runs is not None:
                runs = await self._run_due(job, runs)
            if runs is not None:
                now_ms = job.read_ms()
                due_ms = job.schedule(runs.done_ms).next_after(now_ms)
                wait_ms = min(due_ms - now_ms, LOOK_INTERVAL_MS)

    async def _run_due(self, job: _Job, runs: Runs) -> Runs | None:
        """Run all due times; returns None if another worker has claimed one."""
        known: Runs | None = runs
        schedule = job.schedule(runs.done_ms)
        for due_ms in runs.to_run(schedule, job.read_ms(), job.misfire):
            if known is None or self._stop.is_set() or not self._is_leader():
                break
            known = await self._run_once(job, known, due_ms)
        return known

    async def _take_over(self, job: _Job) -> Runs | None:
        """Return the recorded runs of a schedule; None while another worker runs it."""
        log = await self._open_run_log()
        if log is None:
            return Runs(job.read_ms())
        await log.read()
        runs = log.runs(job.key) or await log.write(job.key, Runs(job.read_ms()))
        # The owner of the claim is alive: wait for its end, or for its silence.
        if runs.is_open and runs.by != self._me and log.silent_ms(job.key) < SILENT_MS:
            return None
        return runs

    async def _run_once(self, job: _Job, runs: Runs, due_ms: int) -> Runs | None:
        log = self._log
        if log is None or job.is_frequent:
            await self._run(job, due_ms)
            return await self._record(job, runs.done(due_ms))
        claim = runs.claim(due_ms, self._me)
        known = await log.write(job.key, claim)
        # `write` has read the log up to the claim: if another claim was earlier, it counts.
        if (known.claimed_ms, known.attempt, known.by) != (due_ms, claim.attempt, self._me):
            logger.info("%s is run by another worker", job.name)
            return None
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self._run(job, due_ms), name=f"run {job.name}")
            while not (await asyncio.wait([running], timeout=RENEW_MS / 1000))[0]:
                # The claim again, unchanged: the timestamp of its record shows that its owner
                # lives.
                await log.write(job.key, claim)
        return await log.write(job.key, claim.done(due_ms))

    async def _record(self, job: _Job, runs: Runs) -> Runs:
        """Write the progress of a frequent timer, at most once in `FREQUENT_MS`."""
        now_ms = self._clock.now_ms()
        if self._log is None or now_ms - self._recorded_ms.get(job.key, 0) < FREQUENT_MS:
            return runs
        self._recorded_ms[job.key] = now_ms
        return await self._log.write(job.key, runs)

    async def _open_run_log(self) -> RunLog | None:
        async with self._opening:
            if self._log is None and self._open_log is not None:
                self._log = await self._stack.enter_async_context(self._open_log())
        return self._log

    async def _run(self, job: _Job, due_ms: int) -> None:
        failure: Exception | None = None
        try:
            await job.run(due_ms)
        except Exception as error:  # noqa: BLE001 - the user's function: logged below
            failure = error
        except (SystemExit, KeyboardInterrupt) as stop:
            failure = exit_failure(stop)
        if failure is not None:
            logger.error("%s failed; it runs again next time", job.name, exc_info=failure)

    async def _stopped_within(self, delay_ms: int) -> bool:
        delay_ms = min(max(delay_ms, 0), LOOK_INTERVAL_MS)
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True

    def _timer_job(self, timer: Timer) -> _Job:
        async def run(_due_ms: int) -> None:
            await timer.run()

        def schedule(done_ms: int) -> Schedule:
            return Interval(done_ms, timer.every_ms)

        # A monotonic clock, so that setting the system's clock does not move a timer. Leaders on
        # different machines share only the wall clock, which `SteadyWall` keeps from jumping.
        read_ms = self._clock.now_ms if timer.on == "every_worker" else self._wall.now_ms
        key = f"timer {timer.name} every {timer.every_ms} ms"
        is_frequent = timer.every_ms < FREQUENT_MS
        return _Job(timer.name, key, schedule, read_ms, run, timer.on, "once", is_frequent)

    def _crontab_job(self, crontab: Crontab) -> _Job:
        times = cron_times(crontab.spec, crontab.timezone)

        async def run(due_ms: int) -> None:
            await crontab.run(times.local(due_ms))

        def schedule(_done_ms: int) -> CronTimes:
            return times

        key = f"crontab {crontab.name} at {crontab.spec} {crontab.timezone}"
        on, misfire, read_ms = crontab.on, crontab.misfire, self._clock.wall_ms
        return _Job(crontab.name, key, schedule, read_ms, run, on, misfire, is_frequent=False)


def _number_duplicates(jobs: Sequence[_Job]) -> list[_Job]:
    """Append numbers to the keys of functions with equal names and times."""
    seen: dict[str, int] = {}
    found = []
    for job in jobs:
        seen[job.key] = seen.get(job.key, 0) + 1
        key = job.key if seen[job.key] == 1 else f"{job.key} #{seen[job.key]}"
        found.append(replace(job, key=key))
    return found
