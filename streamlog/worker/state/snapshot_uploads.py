"""Snapshot uploads: when a worker snapshots which of its tasks, and what happens if that fails.

After a commit, the worker offers its tasks. For the one whose snapshot is due longest, the rows
that wait in memory go to its database, and a checkpoint of it is made by hard links: some
milliseconds, in which nothing is processed. The upload then runs on a thread of its own, one at a
time, at a bounded rate.

Rules: only committed state is ever in a database, so whatever is uploaded is committed. Nothing
that happens to an upload reaches a task: a failure is logged and counted, and tried again later
and later, up to the interval. A task that closes stops its upload; files that were written are
found by the next one. Not done here: the upload itself (`snapshots/task_snapshots`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import Event

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.errors import StreamlogError
from streamlog.processing.task import TaskId
from streamlog.snapshots.object_store import ObjectFolder, SnapshotSettings
from streamlog.snapshots.task_manifest import StateIdentity, TaskManifest, digest_of_stores
from streamlog.snapshots.task_snapshots import (
    SnapshotMetrics,
    TaskSnapshots,
    Throttle,
    Upload,
    reserved_rows,
)
from streamlog.tables.state.changelog import PROGRESS_KEY, READ_KEY, changelog_offset
from streamlog.topology import Topology
from streamlog.worker.engine import EngineThread
from streamlog.worker.state.restore import TaskState
from streamlog.worker.topics.version_log import OwnTopics

logger = repeated.logger(__name__)

RETRY_MS = 10_000
"""The pause after the first failure; it doubles with each further one, up to the interval."""
MIB = 1024 * 1024


def retry_ms(failures: int, interval_ms: int) -> int:
    """Return the pause in milliseconds after a number of failures in a row, 1 or more."""
    return int(min(RETRY_MS * 2 ** min(failures - 1, 20), interval_ms))


def first_due_ms(newest: TaskManifest | None, *, wall_ms: int, interval_ms: int) -> int:
    """Return how long after its opening a task's first snapshot is due, in milliseconds.

    Tasks that move more often than the interval would otherwise have no snapshot ever.
    """
    if newest is None:
        return 0
    # The clocks of two workers may differ: the result is never more than one interval.
    return max(0, min(newest.created_ms + interval_ms - wall_ms, interval_ms))


class AppSnapshots:
    """The snapshots of all tasks of an app, as one worker sees them."""

    def __init__(
        self,
        settings: SnapshotSettings,
        topology: Topology,
        partitions: Mapping[str, int],
        *,
        cluster_id: str,
        own_topics: OwnTopics,
    ) -> None:
        """Open the object store; nothing is read or written yet.

        Raises:
            ConfigError: obstore is not installed, or does not take the URL.
        """
        self.settings = settings
        self._store = ObjectFolder(settings.url)
        self._topology = topology
        self._partitions = partitions
        self._cluster_id = cluster_id
        self._own_topics = own_topics

    def of(self, task_id: TaskId) -> TaskSnapshots:
        """Return the snapshots of a task with state."""
        sub = self._topology.subtopologies[task_id.subtopology]
        changelog = sub.changelog_topic or ""
        identity = StateIdentity(
            app_id=self._topology.app_id,
            task=str(task_id),
            cluster_id=self._cluster_id,
            changelog=changelog,
            changelog_id=self._own_topics.ids.get(changelog, b"").hex(),
            partitions=sub.tasks(self._partitions),
            stores=digest_of_stores(sub),
        )
        return TaskSnapshots(self._store, identity)


@dataclass(slots=True)
class _Schedule:
    """The snapshots of one open task."""

    snapshots: TaskSnapshots
    due_ms: int
    """When the next one is due, by the clock's `now_ms`."""
    fresh_ms: int | None
    """When the newest one held all of the task's state, by the clock's `now_ms`; None: unknown."""
    offset: int = -1
    """The changelog offset of the newest one."""
    failures: int = 0
    """How often it has failed in a row."""
    stop: Event = field(default_factory=Event)


class SnapshotUploads:
    """Uploads the state of the tasks that a worker runs. Only the worker's loop uses it."""

    def __init__(
        self,
        settings: SnapshotSettings,
        engine: EngineThread,
        background: asyncio.TaskGroup,
        clock: Clock,
        metrics: SnapshotMetrics,
    ) -> None:
        """Create uploads; `close` ends them.

        Args:
            settings: the place, the interval and the rate.
            engine: the thread on which tasks and their stores are used.
            background: runs the uploads.
            clock: the clock.
            metrics: counts them.
        """
        self._interval_ms = settings.interval_ms
        self._engine = engine
        self._background = background
        self._clock = clock
        self._metrics = metrics
        self._throttle = Throttle(settings.bytes_per_s, clock)
        self._thread = EngineThread(clock, name="streamlog-snapshots")
        self._tasks: dict[TaskId, _Schedule] = {}
        self._run: asyncio.Task[None] | None = None

    def add(self, task_id: TaskId, snapshots: TaskSnapshots) -> None:
        """Begin to snapshot a task that was opened."""
        wall_ms, now_ms = self._clock.wall_ms(), self._clock.now_ms()
        newest = snapshots.newest
        age_ms = None if newest is None else max(wall_ms - newest.created_ms, 0)
        self._tasks[task_id] = _Schedule(
            snapshots,
            now_ms + first_due_ms(newest, wall_ms=wall_ms, interval_ms=self._interval_ms),
            None if age_ms is None else now_ms - age_ms,
        )

    def drop(self, task_id: TaskId) -> None:
        """Stop the snapshots of a task that is closed; does not wait for an upload."""
        if (schedule := self._tasks.pop(task_id, None)) is not None:
            schedule.stop.set()

    def age_ms(self, task_id: TaskId) -> int | None:
        """Return the age of a task's newest snapshot; None if there is none, or unknown."""
        schedule = self._tasks.get(task_id)
        if schedule is None or schedule.fresh_ms is None:
            return None
        return max(self._clock.now_ms() - schedule.fresh_ms, 0)

    async def offer(self, states: Mapping[TaskId, TaskState]) -> None:
        """Begin the upload that is due longest, if none runs; call it right after a commit.

        Args:
            states: the open tasks with state.

        Raises:
            LogDirectoryError: a database can't be written.
        """
        if self._run is not None and not self._run.done():
            return
        now_ms = self._clock.now_ms()
        due = [
            (schedule.due_ms, task_id)
            for task_id, schedule in self._tasks.items()
            if schedule.due_ms <= now_ms and task_id in states
        ]
        if not due:
            return
        # One at a time: a checkpoint keeps replaced files on the disk until its upload ends.
        _, task_id = min(due)
        schedule, state = self._tasks[task_id], states[task_id]
        # Of the commits, not of the database: those that wait in memory are committed too.
        offset = changelog_offset(state.front)
        if offset in {schedule.offset, 0}:
            schedule.due_ms = now_ms + self._interval_ms
            # Nothing was committed since: the newest snapshot is the present state.
            schedule.fresh_ms = now_ms if offset else None
            return
        # On the engine thread: the commit's rows go from memory to the database, in slices.
        await self._engine.call(task_id, state.front.flush)
        reserved = reserved_rows({key: state.store.get(key) for key in (PROGRESS_KEY, READ_KEY)})
        # The loop waits here, so no commit comes between the rows above and the files.
        held = await asyncio.to_thread(state.directory.hold, state.store)
        upload = partial(
            schedule.snapshots.upload,
            held,
            offset=offset,
            reserved=reserved,
            wall_ms=self._clock.wall_ms(),
            throttle=self._throttle,
            stop=schedule.stop,
        )
        # From the beginning of this one: a slow upload does not stretch the interval.
        schedule.due_ms = now_ms + self._interval_ms
        self._run = self._background.create_task(
            self._upload(task_id, schedule, upload, partial(state.directory.let_go, held)),
            name=f"snapshot of task {task_id}",
        )

    async def _upload(
        self,
        task_id: TaskId,
        schedule: _Schedule,
        upload: Callable[[], Upload],
        let_go: Callable[[], None],
    ) -> None:
        began_ms = self._clock.now_ms()
        try:
            found = await self._thread.call(task_id, partial(_run_then, upload, let_go))
        except asyncio.CancelledError:
            # The thread may not have begun. If it has, it stops at the next piece, or because the
            # files are gone.
            let_go()
            raise
        except StreamlogError as error:
            if schedule.stop.is_set():
                return  # The task is closed; obstore may have given the reason another name.
            self._failed(task_id, schedule, error)
            return
        took_ms = self._clock.now_ms() - began_ms
        schedule.failures = 0
        schedule.offset, schedule.fresh_ms = found.manifest.offset, began_ms
        self._metrics.snapshots.series("written").add()
        self._metrics.uploaded_bytes.add(found.uploaded_bytes)
        self._metrics.reused_bytes.add(found.reused_bytes)
        logger.debug(
            "task %s: snapshot at offset %d: %.1f MiB written, %.1f MiB reused, in %.1f s",
            task_id,
            found.manifest.offset,
            found.uploaded_bytes / MIB,
            found.reused_bytes / MIB,
            took_ms / 1000,
        )

    def _failed(self, task_id: TaskId, schedule: _Schedule, error: StreamlogError) -> None:
        schedule.failures += 1
        pause_ms = retry_ms(schedule.failures, self._interval_ms)
        schedule.due_ms = self._clock.now_ms() + pause_ms
        self._metrics.snapshots.series("failed").add()
        # Without numbers that change, so that repeated lines are recognised as such.
        logger.warning(
            "task %s has no new snapshot; it continues, and a restore would read more of its "
            "changelog: %s",
            task_id,
            error,
        )

    def close(self) -> None:
        """Stop all uploads; a request that is under way ends by itself."""
        for task_id in [*self._tasks]:
            self.drop(task_id)
        if self._run is not None:
            self._run.cancel()
        self._thread.close()


def _run_then(upload: Callable[[], Upload], let_go: Callable[[], None]) -> Upload:
    try:
        return upload()
    finally:
        let_go()
