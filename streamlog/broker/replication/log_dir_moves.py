"""LogDirMoves: moves partitions between the directories of one broker, one at a time (KIP-113).

The broker's timer calls `run`, which begins the next step of a copy (`future_log`) and says when to
call it again. Work on files is done by jobs of a thread, and continues when they have ended. All
copies together respect `replica.alter.log.dirs.io.max.bytes.per.second`. The moves are in the list
of topics, so they continue after a restart.

An old log is deleted `file.delete.delay.ms` after its copy has taken over: a Fetch response that
sends from it may still be on its way.

Rules of this module: an error in a move never reaches the broker. It is logged, the partition stays
where it is, and the move is tried again later. A partition that moves is not compacted:
1. The log has key K at 10 and its tombstone at 50; offset 10 is copied, and the copy waits for its
   quota. 2. Compaction removes 10, and a day later the tombstone. 3. The copy would get no
   tombstone, and K would be back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from streamlog import repeated
from streamlog.broker.replication.future_log import FutureLog, LogMove, MoveEnded, delete_copy
from streamlog.broker.replication.replication_quota import ReplicationQuota
from streamlog.broker.storage.disk.offload import Offload, OffloadedJob, Steps, offload
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.volumes import Volume
    from streamlog.clock import Clock

RETRY_MS: Final = 30_000
"""The pause before a move that has failed is tried again."""
PAUSE_MS: Final = 1
"""The pause between two jobs, in which requests run."""

_logger = repeated.logger(__name__)


class LogDirMoves:
    """Moves the partitions of `directory`.

    Args:
        directory: the directories of the broker.
        partitions: the partitions that are served from them.
        clock: the time.
        thread: runs the jobs; without it they run in place.
        on_job_done: called when a job has ended and `next_due_ms` is known again.
    """

    def __init__(
        self,
        directory: LogDirectory,
        partitions: Partitions,
        *,
        clock: Clock,
        thread: Offload | None,
        on_job_done: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._partitions = partitions
        self._clock = clock
        self._thread = thread
        self._on_job_done = on_job_done
        self._quota = ReplicationQuota()
        self._work: Steps[None] | None = None
        self._job: OffloadedJob[object] | None = None
        self._due_ms: int | None = clock.now_ms()
        self._not_before_ms: dict[LogMove, int] = {}
        """When to try again what has failed, and when to delete an old log."""
        self._copies: dict[LogMove, FutureLog] = {}

    @property
    def next_due_ms(self) -> int | None:
        """When to call `run` again; None while a job is running, or if nothing moves."""
        return None if self._job is not None else self._due_ms

    def begin(self, targets: dict[tuple[str, int], Volume]) -> None:
        """Move partitions to other directories; the present directory of one cancels its move.

        Raises:
            UnknownTopicOrPartition: a partition is not on this broker; nothing was changed.
            LogDirectoryError: the disk refused; nothing was changed.
        """
        self._directory.plan_moves(targets)
        for topic, number in targets:
            target = self._directory.future_of(topic, number)
            if target is not None:
                self._not_before_ms.pop(self._move(topic, number, target), None)
        self._wake()

    def end_offset(self, topic: str, partition: int, volume: Volume) -> int:
        """Return the end of a copy; 0 before it has begun."""
        copy = self._copies.get(self._move(topic, partition, volume))
        return 0 if copy is None else copy.end_offset

    def run(self) -> None:
        """Do a step of work. Don't call it while a job is running."""
        now_ms = self._clock.now_ms()
        self._quota.limit(self._directory.config.replication.alter_log_dirs_rate, now_ms)
        if (wait_ms := self._quota.exceeded_for_ms(now_ms)) > 0:
            self._due_ms = now_ms + wait_ms
            return
        if self._work is None:
            self._work = self._next()
        self._due_ms = now_ms + PAUSE_MS
        step = next(self._work, None)
        if step is None:
            # One copy has ended or failed: look again, as others may have been asked for.
            self._work = None
            self._due_ms = self._next_work_ms()
        elif isinstance(step, int):
            self._quota.record(step, now_ms)
        elif self._thread is not None:
            self._job = step
            self._thread.start(step, self._on_job_end)

    def close(self) -> None:
        """Abandon the copy that is being made; the next start continues it.

        The thread must have ended.
        """
        self._job = None
        work, self._work = self._work, None
        if work is not None:
            work.close()

    def _wake(self) -> None:
        self._due_ms = self._clock.now_ms()
        self._on_job_done()

    def _on_job_end(self) -> None:
        self._job = None
        self._on_job_done()

    def _move(self, topic: str, number: int, volume: Volume) -> LogMove:
        return LogMove(topic, self._directory.topics[topic].topic_id, number, volume)

    def _waiting(self) -> tuple[list[LogMove], list[LogMove]]:
        """Return the old logs to delete, and the moves, on disks that work."""
        directory = self._directory
        moves = [self._move(*each) for each in directory.moves() if each[2].failure is None]
        # The copy that is begun again deletes what is left of an earlier one itself.
        gone = [self._move(*each) for each in directory.leftovers()]
        return [each for each in gone if each not in moves], moves

    def _next_work_ms(self) -> int | None:
        """Return when there is something to do; None if nothing moves."""
        gone, moves = self._waiting()
        now_ms = self._clock.now_ms()
        return min(
            (self._not_before_ms.get(each, now_ms) for each in [*gone, *moves]), default=None
        )

    def _is_due(self, move: LogMove) -> bool:
        return self._clock.now_ms() >= self._not_before_ms.get(move, 0)

    def _next(self) -> Steps[None]:
        """Delete the old logs that are due, and make one copy."""
        gone, moves = self._waiting()
        # A topic that was deleted leaves no trace in here.
        known = {*gone, *moves}
        self._not_before_ms = {n: each for n, each in self._not_before_ms.items() if n in known}
        for move in filter(self._is_due, gone):
            yield from self._delete(move)
        for move in filter(self._is_due, moves):
            yield from self._copy(move)
            return  # A copy takes long: old logs may be due by now.

    def _delete(self, move: LogMove) -> Steps[None]:
        try:
            yield from offload(partial(delete_copy, move))
            if move.topic in self._directory.topics:
                self._directory.forget_leftover(move.topic, move.partition, move.volume)
        except StreamlogError as error:
            self._not_before_ms[move] = self._clock.now_ms() + RETRY_MS
            _logger.warning("the old files of %s can't be deleted: %s", move.name, error)

    def _copy(self, move: LogMove) -> Steps[None]:
        begun_ms = self._clock.now_ms()
        copy = self._copies[move] = FutureLog(
            self._directory,
            move,
            high_watermark=partial(self._partitions.high_watermark, move.topic, move.partition),
            on_moved=partial(self._partitions.replace_log, move.topic, move.partition),
        )
        try:
            yield from copy.steps()
        except MoveEnded as ended:
            _logger.info("%s", ended)
        except StreamlogError as error:
            self._not_before_ms[move] = self._clock.now_ms() + RETRY_MS
            _logger.warning(
                "%s can't be moved to %s, and is tried again in %d s: %s",
                *(move.name, move.volume.path, RETRY_MS // 1000, error),
            )
        else:
            self._keep_old_for_a_while(move)
            _logger.info(
                "moved %s to %s, in %d ms",
                *(move.name, move.volume.path, self._clock.now_ms() - begun_ms),
            )
        finally:
            del self._copies[move]

    def _keep_old_for_a_while(self, moved: LogMove) -> None:
        topic = self._directory.topics[moved.topic]
        due_ms = self._clock.now_ms() + topic.config.file_delete_delay_ms
        for name, number, volume in self._directory.leftovers():
            if (name, number) == (moved.topic, moved.partition):
                self._not_before_ms.setdefault(self._move(name, number, volume), due_ms)
