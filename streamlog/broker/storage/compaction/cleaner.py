"""Cleaner: compacts the logs of a directory in the background, one at a time.

The broker's timer calls `run`, which works for a few milliseconds and says when to call it again.
Decisions stay in the event loop, where state needs no locks, and a request waits for one slice at
most. Opening, reading, writing, syncing and compressing are jobs of a thread, and the cleaner
continues when they have ended. After a slice it pauses for as long as the slice took, or longer to
respect `log.cleaner.io.max.bytes.per.second`, so it uses at most half of the loop's time.

The log with the highest dirty ratio is next. A log that is found damaged is not cleaned again until
its next opening.

Rules of this module: an error in a cleaning never reaches the broker. It is logged, and the log
itself reports that its disk has failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from streamlog import repeated
from streamlog.broker.storage.compaction.cleaning import Cleaning, facts
from streamlog.broker.storage.compaction.survivors import Dirtiness, SegmentFacts, dirtiness
from streamlog.broker.storage.disk.offload import Offload, OffloadedJob, Steps, offload
from streamlog.errors import CorruptData, StreamlogError, UnknownTopicOrPartition
from streamlog.metrics.instruments import Histogram

if TYPE_CHECKING:
    from streamlog.broker.storage.log.partition_log import PartitionLog
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.clock import Clock

SLICE_MS = 3
"""The length of a slice; a step that is running then ends first."""
PAUSE_MS_MIN = 1

_logger = repeated.logger(__name__)


class _Candidate(NamedTuple):
    log: PartitionLog
    dirty: Dirtiness


class Cleaner:
    """Compacts the logs in `directory`.

    Args:
        directory: the logs.
        clock: monotonic and wall time.
        stable_offset: returns a partition's last stable offset, by topic and number.
        on_over: takes the paths of replaced files, to be removed after the given milliseconds.
        thread: runs the jobs; without it they run in place.
        on_job_done: called when a job has ended and `next_due_ms` is known again.
    """

    def __init__(
        self,
        directory: LogDirectory,
        *,
        clock: Clock,
        stable_offset: Callable[[str, int], int],
        on_replaced: Callable[[list[str], int], None],
        thread: Offload | None = None,
        on_job_done: Callable[[], None] | None = None,
    ) -> None:
        self.unreadable_batches = 0
        """Batches that cleanings could not read and left unchanged; counted by each cleaning."""
        self.read_bytes = self.written_bytes = 0
        """The bytes of segments before and after cleaning, of all cleanings since the start."""
        self.times = Histogram()
        """How long each cleaning took, with the pauses in it, in seconds."""
        self.dirtiest_ratio = 0.0
        """The highest dirty ratio of all logs when they were last looked at."""
        self.last_run_ms = clock.now_ms()
        """When the last look at all logs began, by the monotonic clock; at first: the start."""
        self._directory = directory
        self._clock = clock
        self._stable_offset = stable_offset
        self._on_replaced = on_replaced
        self._thread = thread
        self._on_job_done = on_job_done
        self._work: Steps[None] | None = None
        self._job: OffloadedJob[object] | None = None
        self._due_ms = clock.now_ms()
        self._idle_since_ms: int | None = None
        self._paused_until_ms: WeakKeyDictionary[PartitionLog, float] = WeakKeyDictionary()

    @property
    def uncleanable(self) -> int:
        """How many logs are not cleaned again until the next start, because they are damaged."""
        return sum(until_ms == math.inf for until_ms in self._paused_until_ms.values())

    @property
    def next_due_ms(self) -> int | None:
        """When to call `run` again; None while a job is running."""
        if self._job is not None:
            return None
        if self._idle_since_ms is None:
            return self._due_ms
        return self._idle_since_ms + self._directory.config.log_cleaner_backoff_ms

    def run(self) -> None:
        """Do a slice of work, or search for work. Don't call it while a job is running."""
        begun_ms = now_ms = self._clock.now_ms()
        self._idle_since_ms = None
        if not self._directory.config.log_cleaner_enable:
            self.close()
            self._idle_since_ms = now_ms
            return
        if self._work is None:
            self.last_run_ms = now_ms
            self._work = self._look_and_clean()
        done_bytes = 0
        # A step can be short, so a slice runs as many as fit; a job ends it, because the next step
        # needs the job's result.
        while now_ms - begun_ms < SLICE_MS and self._job is None:
            step = next(self._work, None)
            now_ms = self._clock.now_ms()
            if step is None:
                self._work = None
                break
            if isinstance(step, int):
                done_bytes += step
            elif self._thread is not None:
                self._job = step
                self._thread.start(step, self._on_job_end)
        bytes_per_second = self._directory.config.log_cleaner_io_max_bytes_per_second
        throttle_ms = done_bytes * 1000 // bytes_per_second
        self._due_ms = now_ms + max(throttle_ms, now_ms - begun_ms, PAUSE_MS_MIN)

    def close(self) -> None:
        """Abandon the current cleaning and remove its files. The thread must have ended."""
        self._job = None
        work, self._work = self._work, None
        if work is None:
            return
        try:
            work.close()
        except StreamlogError as error:
            _logger.warning("files of an unfinished compaction can't be removed: %s", error)

    def _on_job_end(self) -> None:
        self._job = None
        if self._on_job_done is not None:
            self._on_job_done()

    def _look_and_clean(self) -> Steps[None]:
        dirtiest: _Candidate | None = None
        highest_ratio = 0.0
        for topic in list(self._directory.topics.values()):
            for number, log in list(topic.partitions.items()):
                if not log.config.compacts or self._is_paused(log):
                    continue
                if number in topic.futures:
                    continue  # It moves to another directory, see `replication.log_dir_moves`.
                found = yield from self._candidate(topic.name, number, log)
                if found is None:
                    continue
                # Also of logs below their `min.cleanable.dirty.ratio`: an operator sees it coming.
                highest_ratio = max(highest_ratio, found.dirty.ratio)
                # As in Kafka, the log with the highest dirty ratio is cleaned next.
                is_next = dirtiest is None or found.dirty.ratio > dirtiest.dirty.ratio
                if is_next and found.dirty.due(log.config):
                    dirtiest = found
        self.dirtiest_ratio = highest_ratio
        if dirtiest is None:
            self._idle_since_ms = self._clock.now_ms()
        else:
            yield from self._clean(dirtiest)

    def _is_paused(self, log: PartitionLog) -> bool:
        until_ms = self._paused_until_ms.get(log)
        if until_ms is None:
            return False
        if self._clock.now_ms() < until_ms:
            return True
        del self._paused_until_ms[log]
        return False

    def _candidate(self, topic: str, number: int, log: PartitionLog) -> Steps[_Candidate | None]:
        try:
            limit_offset = self._stable_offset(topic, number)
            cleaned_offset = yield from offload(log.cleaned.read)
            found: list[SegmentFacts] = []
            for segment in log.sealed_segments(before_offset=limit_offset):
                found.append(facts(segment))
                yield 0
            dirty = dirtiness(
                found,
                cleaned_offset=cleaned_offset,
                limit_offset=limit_offset,
                config=log.config,
                wall_ms=self._clock.wall_ms(),
            )
        except StreamlogError as error:
            self._pause(log, error)
            return None
        return _Candidate(log, dirty)

    def _clean(self, candidate: _Candidate) -> Steps[None]:
        log, dirty = candidate
        begun_ms = self._clock.now_ms()
        cleaning = Cleaning(
            log,
            dirty,
            memory_bytes=self._directory.config.log_cleaner_dedupe_buffer_size,
            wall_ms=self._clock.wall_ms(),
        )
        try:
            yield from cleaning.steps()
        except StreamlogError as error:
            self._pause(log, error)
            return
        finally:
            # Also after a failure: segments that were swapped before it must be removed later.
            self.unreadable_batches += len(cleaning.unreadable)
            self._on_replaced(cleaning.retired_paths, log.config.file_delete_delay_ms)
        result = cleaning.result
        if result is None or result.end_offset <= dirty.first_dirty_offset:
            # An open transaction, or an unfilled segment, stops it: give other logs a turn.
            self._paused_until_ms[log] = (
                self._clock.now_ms() + self._directory.config.log_cleaner_backoff_ms
            )
            return
        self.read_bytes += result.before_bytes
        self.written_bytes += result.after_bytes
        took_ms = self._clock.now_ms() - begun_ms
        self.times.record(took_ms / 1000)
        _logger.info(
            "%s: compacted up to offset %d, %d bytes to %d, in %d ms",
            log.name,
            result.end_offset,
            result.before_bytes,
            result.after_bytes,
            took_ms,
        )

    def _pause(self, log: PartitionLog, error: StreamlogError) -> None:
        backoff_ms = self._directory.config.log_cleaner_backoff_ms
        if isinstance(error, CorruptData):
            _logger.error("%s is not compacted until the broker restarts: %s", log.name, error)
            self._paused_until_ms[log] = math.inf
            return
        if not isinstance(error, UnknownTopicOrPartition):  # It was deleted meanwhile.
            _logger.warning("compacting %s failed: %s", log.name, error)
        self._paused_until_ms[log] = self._clock.now_ms() + backoff_ms
