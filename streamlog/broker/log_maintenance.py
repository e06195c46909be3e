"""Log maintenance between requests: retention, compaction, moves between disks, and checkpoints.

Each task works in slices that the broker's deadline timer drives. One offload thread opens, syncs
and removes files. Checkpoints record up to where logs are on disk and where they begin; the latter
also makes DeleteRecords permanent. Not done here: time marks (`time_marks`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.replication.log_dir_moves import LogDirMoves
from streamlog.broker.storage.compaction.cleaner import Cleaner
from streamlog.broker.storage.disk.offload import Offload, OffloadedJob, Threads
from streamlog.broker.storage.retention import OnCheckpoint, Retention
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.clock import Clock


_log = repeated.logger(__name__)


CHECKPOINT_INTERVAL_MS = 5_000
"""The interval of checkpoints."""

ROLL_PAUSE_MS = 5
"""The pause between portions of postponed rolls, in which requests run."""


class LogMaintenance:
    """Maintains the logs of a directory; `on_job_done` is called when there may be more to do."""

    def __init__(
        self,
        directory: LogDirectory,
        partitions: Partitions,
        *,
        clock: Clock,
        threads: Threads,
        on_job_done: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._on_job_done = on_job_done
        self._offload = Offload(threads)
        self._closed = False
        self._retention = retention = Retention(
            directory,
            now_ms=clock.now_ms(),
            high_watermark=partitions.high_watermark,
            remove=self._remove_later,
            keep=self.keep_checkpoints,
        )
        self._cleaner = Cleaner(
            directory,
            clock=clock,
            stable_offset=partitions.last_stable_offset,
            on_replaced=lambda paths, in_ms: retention.take_over(paths, clock.now_ms() + in_ms),
            thread=self._offload,
            on_job_done=on_job_done,
        )
        self.moves = LogDirMoves(
            directory, partitions, clock=clock, thread=self._offload, on_job_done=on_job_done
        )
        """Moves partitions between the directories of the broker."""
        self._checkpoint_ms = clock.now_ms() + CHECKPOINT_INTERVAL_MS

    @property
    def cleaner(self) -> Cleaner:
        """Compacts logs; its counts are for metrics."""
        return self._cleaner

    @property
    def retention(self) -> Retention:
        """Removes expired segments; its counts are for metrics."""
        return self._retention

    def tick(self) -> None:
        """Run retention, postponed rolls, and the checkpoint, as far as they are due."""
        now_ms = self._clock.now_ms()
        self._retention.tick(now_ms=now_ms, wall_ms=self._clock.wall_ms())
        for log in self._directory.rolls.due():
            try:
                log.roll_late(now_ms)
            except StreamlogError as error:
                _log.warning("%s: could not begin a segment: %s", log.name, error)
        if now_ms >= self._checkpoint_ms:
            # So that recovery after a crash scans only the last seconds.
            self._checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
            self.keep_checkpoints(_tell_of_checkpoint, if_changed=True)

    def clean(self) -> None:
        """Copy and compact for one slice, if there is work: after all that requests wait for."""
        moving_ms = self.moves.next_due_ms
        if moving_ms is not None and moving_ms <= self._clock.now_ms():
            self.moves.run()
        due_ms = self._cleaner.next_due_ms
        if due_ms is not None and due_ms <= self._clock.now_ms():
            self._cleaner.run()

    def next_deadline_ms(self) -> int:
        """When `tick` or `clean` has something to do."""
        due_ms = min(self._retention.next_deadline_ms(), self._checkpoint_ms)
        if self._directory.rolls.is_due:
            due_ms = min(due_ms, self._clock.now_ms() + ROLL_PAUSE_MS)
        work = (self._cleaner.next_due_ms, self.moves.next_due_ms)
        return min([due_ms, *(each for each in work if each is not None)])

    def keep_checkpoints(self, then: OnCheckpoint, *, if_changed: bool = False) -> None:
        """Write the checkpoints in the thread; the event loop then calls `then`."""
        job = self._directory.begin_checkpoints(if_changed=if_changed)
        if job is not None:
            self._offload.start(job, partial(self._on_checkpoint, job, then))

    def wait(self) -> None:
        """Wait until no offloaded job runs."""
        self._offload.wait()

    def close(self) -> None:
        """Wait for jobs that were started; start no others."""
        self._closed = True
        self._offload.close()
        self._cleaner.close()
        self.moves.close()

    def _remove_later(self, paths: list[str]) -> None:
        job = OffloadedJob(partial(self._directory.remove_retired, paths))
        self._offload.start(job, self._on_job_done)

    def _on_checkpoint(self, job: OffloadedJob[None], then: OnCheckpoint) -> None:
        if self._closed:
            return
        failure: StreamlogError | None = None
        try:
            job.result()
        except StreamlogError as error:
            failure = error
        then(failure)
        self._on_job_done()


def _tell_of_checkpoint(failure: StreamlogError | None) -> None:
    if failure is not None:
        _log.error("could not write a checkpoint, so the next start may take longer: %s", failure)
