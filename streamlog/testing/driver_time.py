"""DriverMarks: time marks in the topics of a test driver, where a log would append them.

A task states how long an input has to be quiet to matter; after that time, a mark is appended to
the input. Once the whole topic has been quiet for `QUIET_MS`, the mark also carries the time that
the topic's other partitions have reached. So windows close in a driver when and where they close on
a log (decision 008).

Rule: this module decides when and where a mark is appended. Not done here: the effect of a mark
(`processing`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from streamlog.crontab import cron_times
from streamlog.dsl.schedules import Crontab, Interval, Timer
from streamlog.dsl.schedules import Schedule as Times
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.processing.task import Task
from streamlog.records.control_batches import ClockTime
from streamlog.testing.driver_topics import MemoryTopic
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS

QUIET_MS = 5_000
"""The default of a topic's setting `mark.quiet.ms`."""


class DriverMarks:
    """Decides when each partition gets a time mark, by the driver's time in milliseconds."""

    def __init__(
        self,
        topics: Mapping[str, MemoryTopic],
        marked: Collection[str],
        partners: Mapping[str, Collection[str]],
    ) -> None:
        """`marked` are the names of topics with marks; `partners` is the result of `partners`."""
        self._partners = partners
        self._topics = {name: topics[name] for name in marked}
        self._appended: dict[PartitionKey, tuple[int, int]] = {}
        """The end of each partition, and when `look` first saw it."""

    def look(self, now_ms: int) -> None:
        """Note the ends of all partitions; call it before time moves."""
        for name, topic in self._topics.items():
            for partition in range(len(topic.partitions)):
                end = topic.end(partition)
                known = self._appended.get((name, partition))
                if known is None or known[0] != end:
                    self._appended[name, partition] = (end, now_ms)

    def next_ms(self, tasks: Iterable[Task]) -> int:
        """Return when the next mark is due; `FAR_MS` if none is."""
        return min(self._due(tasks).values(), default=FAR_MS)

    def mark(self, tasks: Iterable[Task], now_ms: int) -> None:
        """Append the marks that are due."""
        tasks = [*tasks]
        reached = self._reached(tasks)
        for partition, due_ms in self._due(tasks).items():
            if due_ms <= now_ms:
                _, appended_ms = self._appended[partition]
                # Only a quiet topic's time is passed on: until then, its partitions may still move.
                is_calm = partition in reached and self._calm_ms(partition[0]) <= now_ms
                times = (reached[partition],) if is_calm else ()
                self._topics[partition[0]].mark(partition[1], now_ms - appended_ms, times)

    def _reached(self, tasks: Iterable[Task]) -> dict[PartitionKey, ClockTime]:
        """Return the topic's time for each input that is behind its topic's other partitions."""
        own: dict[str, int] = {}
        for task in tasks:
            for (topic, _), time_ms in task.stream_times.items():
                own[topic] = max(time_ms, own.get(topic, UNKNOWN_MS))
        topic_times = {
            # A topic without records has no time, so the newest time of its partners counts.
            topic: time_ms if time_ms > UNKNOWN_MS else max(own[name] for name in self._met(topic))
            for topic, time_ms in own.items()
        }
        return {
            partition: ClockTime(task.clock(partition[0]), topic_times[partition[0]])
            for task in tasks
            for partition, due_ms in task.behind.items()
            if partition in self._appended and topic_times[partition[0]] >= due_ms
        }

    def _met(self, topic: str) -> Collection[str]:
        """Return the topics whose times a node waits for together with this one."""
        return self._partners.get(topic, (topic,))

    def _calm_ms(self, topic: str) -> int:
        """Return when a topic and its partners will have been quiet for `QUIET_MS`."""
        since = [ms for (name, _), (_, ms) in self._appended.items() if name in self._met(topic)]
        return max(since) + QUIET_MS

    def _due(self, tasks: Iterable[Task]) -> dict[PartitionKey, int]:
        tasks = [*tasks]
        due = {partition: self._calm_ms(partition[0]) for partition in self._reached(tasks)}
        for task in tasks:
            for partition, after_ms in task.waits_quiet.items():
                if partition in self._appended:
                    # Like a log, which appends no mark before `mark.quiet.ms` has passed.
                    due_ms = self._appended[partition][1] + max(after_ms, QUIET_MS)
                    due[partition] = min(due_ms, due.get(partition, due_ms))
        return due


class DriverSchedule:
    """A timer or crontab of a running test, which misses no run."""

    def __init__(
        self, times: Times, run: Callable[[int], Awaitable[object]], *, start_ms: int
    ) -> None:
        self._times = times
        self._run = run
        self.due_ms = times.next_after(start_ms)

    async def fire(self) -> None:
        """Run the function, and move to its next due time."""
        due_ms = self.due_ms
        self.due_ms = self._times.next_after(due_ms)
        await self._run(due_ms)


def schedules(
    timers: Sequence[Timer],
    crontabs: Sequence[Crontab],
    *,
    start_ms: int,
    workers: Callable[[], int],
) -> list[DriverSchedule]:
    """Return the timers and crontabs of an app as schedules that begin at `start_ms`.

    Those with `on="every_worker"` run once for each of `workers()` at that time.
    """

    def times_of(each: Timer | Crontab) -> Callable[[], int]:
        return workers if each.on == "every_worker" else _once

    under_way = [_timer(timer, start_ms, times_of(timer)) for timer in timers]
    return [
        *under_way,
        *(_crontab(crontab, start_ms, times_of(crontab)) for crontab in crontabs),
    ]


def _once() -> int:
    return 1


def _timer(timer: Timer, start_ms: int, workers: Callable[[], int]) -> DriverSchedule:
    async def run(_due_ms: int) -> None:
        for _ in range(workers()):
            await timer.run()

    return DriverSchedule(Interval(start_ms, timer.every_ms), run, start_ms=start_ms)


def _crontab(crontab: Crontab, start_ms: int, workers: Callable[[], int]) -> DriverSchedule:
    times = cron_times(crontab.spec, crontab.timezone)

    async def run(due_ms: int) -> None:
        for _ in range(workers()):
            await crontab.run(times.local(due_ms))

    return DriverSchedule(times, run, start_ms=start_ms)
