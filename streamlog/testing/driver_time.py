"""DriverMarks: the passing of time, marked in the topics of a test driver as a log does it.

A task says for how long an input has to be quiet to matter to it, and when it has been, a mark is
appended. Once nothing has come in its whole topic for as long, the mark brings it to where the
topic's other partitions have come. So windows close in a driver when and where they do on a log.
Rule of the file: it only says when, and where; what a mark does is the task's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from streamlog.dsl.schedule_times import Crontab, Interval, Timer, cron_times
from streamlog.dsl.schedule_times import Schedule as Times
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.processing.task import Task
from streamlog.records.control_batches import MarkTold
from streamlog.testing.driver_topics import MemoryTopic
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS

QUIET_MS = 5_000
"""What a topic of a log has for `mark.quiet.ms`, unless it says otherwise."""


class DriverMarks:
    """When which partition is due for a mark. Times are those of the driver."""

    def __init__(
        self,
        topics: Mapping[str, MemoryTopic],
        marked: Collection[str],
        partners: Mapping[str, Collection[str]],
    ) -> None:
        """`marked` are the names of the topics that take marks; `partners` see `clocks`."""
        self._partners = partners
        self._topics = {name: topics[name] for name in marked}
        self._appended: dict[PartitionKey, tuple[int, int]] = {}
        """End, and since when it is there."""

    def look(self, now_ms: int) -> None:
        """Time is about to go on: take note of what has been appended by now."""
        for name, topic in self._topics.items():
            for partition in range(len(topic.partitions)):
                end = topic.end(partition)
                known = self._appended.get((name, partition))
                if known is None or known[0] != end:
                    self._appended[name, partition] = (end, now_ms)

    def next_ms(self, tasks: Iterable[Task]) -> int:
        """When the next one is due; FAR_MS for never."""
        return min(self._due(tasks).values(), default=FAR_MS)

    def mark(self, tasks: Iterable[Task], now_ms: int) -> None:
        """Append those that are due."""
        tasks = [*tasks]
        told = self._told(tasks)
        for place, due_ms in self._due(tasks).items():
            if due_ms <= now_ms:
                _, appended_ms = self._appended[place]
                is_told = place in told and self._calm_ms(place[0]) <= now_ms
                telling = (told[place],) if is_told else ()
                self._topics[place[0]].mark(place[1], now_ms - appended_ms, telling)

    def _told(self, tasks: Iterable[Task]) -> dict[PartitionKey, MarkTold]:
        """Inputs that are behind the other partitions of their topic, and where those have come."""
        own: dict[str, int] = {}
        for task in tasks:
            for (topic, _), time_ms in task.stream_times.items():
                own[topic] = max(time_ms, own.get(topic, UNKNOWN_MS))
        reached = {
            topic: time_ms if time_ms > UNKNOWN_MS else max(own[name] for name in self._met(topic))
            for topic, time_ms in own.items()
        }
        return {
            place: MarkTold(task.clock(place[0]), reached[place[0]])
            for task in tasks
            for place, due_ms in task.behind.items()
            if place in self._appended and reached[place[0]] >= due_ms
        }

    def _met(self, topic: str) -> Collection[str]:
        """The topics that are waited for together with this one."""
        return self._partners.get(topic, (topic,))

    def _calm_ms(self, topic: str) -> int:
        """When nothing will have come in a topic for so long that it is calm."""
        since = [ms for (name, _), (_, ms) in self._appended.items() if name in self._met(topic)]
        return max(since) + QUIET_MS

    def _due(self, tasks: Iterable[Task]) -> dict[PartitionKey, int]:
        tasks = [*tasks]
        due = {place: self._calm_ms(place[0]) for place in self._told(tasks)}
        for task in tasks:
            for place, after_ms in task.waits_quiet.items():
                if place in self._appended:
                    due_ms = self._appended[place][1] + max(after_ms, QUIET_MS)
                    due[place] = min(due_ms, due.get(place, due_ms))
        return due


class DriverSchedule:
    """A timer or crontab under way: a clock that only the test moves misses nothing."""

    def __init__(
        self, times: Times, run: Callable[[int], Awaitable[object]], *, start_ms: int
    ) -> None:
        self._times = times
        self._run = run
        self.due_ms = times.next_after(start_ms)

    async def fire(self) -> None:
        """Run it; it is then due the next time."""
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
    """All timers and crontabs of an app, as they stand when a test begins.

    Those on "every_worker" run once for each of the `workers` there are by then.
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
