"""Retention: rounds over all logs of a directory that remove expired segments.

A round also forgets producers that have been silent for a long time. `expiry` decides which
segments have expired. They are removed in steps: the new log starts become durable, the files are
renamed, and later, when no reader can have them open, the files are deleted. So a missing head
without a log start is damage, and a crash between two steps leaves files that the next opening
removes. An error of one log is logged and does not affect the others. A round runs in small
portions, so that requests do not wait for a thousand logs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from streamlog import repeated
from streamlog.broker.storage.expiry import SteadyTime
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.storage.log.partition_log import PartitionLog
    from streamlog.broker.storage.log_directory import LogDirectory

FIRST_CHECK_MS = 30_000
"""The latest start of the first round: a broker that starts has more urgent work."""
LOGS_AT_ONCE = 4
"""Logs per tick, between requests, that take time: each may be rolled and its files renamed, or its
segments have to be loaded first."""
LOOKS_AT_ONCE = 64
"""Logs examined per tick at most. Nearly all of them have nothing to remove, and cost less than a
tenth of a tick."""
FILES_AT_ONCE = 32
"""Files removed per tick."""

OnCheckpoint = Callable[[StreamlogError | None], None]
"""Called when log starts are durable, or with the reason why they may not be."""

_logger = repeated.logger(__name__)


class _RetiredFile(NamedTuple):
    due_ms: int
    path: str


class _ExpiredHead(NamedTuple):
    log: PartitionLog
    log_start_offset: int
    """The durable log start below which files go. The log may have moved on meanwhile."""
    due_ms: int


class Retention:
    """The retention rounds of one directory; times are monotonic unless named `wall`, in ms.

    Only records below `high_watermark` of the partition are deleted. `remove` removes files, and
    `keep` makes log starts durable and calls back; both may work in the background. Without
    them, the work is done at once.
    """

    def __init__(
        self,
        directory: LogDirectory,
        *,
        now_ms: int,
        high_watermark: Callable[[str, int], int],
        remove: Callable[[list[str]], None] | None = None,
        keep: Callable[[OnCheckpoint], None] | None = None,
    ) -> None:
        self._keep = self._write_checkpoints if keep is None else keep
        self._remove = directory.remove_retired if remove is None else remove
        self._directory = directory
        self._high_watermark = high_watermark
        self._time = SteadyTime()
        interval_ms = directory.config.retention_check_interval_ms
        self._checked_ms = now_ms - max(interval_ms - FIRST_CHECK_MS, 0)
        self._round: deque[tuple[str, int]] = deque()
        """The partitions that this round still has to examine."""
        self._retired: list[_RetiredFile] = []
        """A heap by due time."""
        self._writes_in_progress = 0
        """How many writes of log starts are in progress."""
        self._shortened_logs = 0
        """The logs from which this round has removed files so far."""
        self._removed_files = 0
        self.deleted_segments = self.deleted_bytes = 0
        """The segments that were taken out of logs since the start, and their bytes."""

    def next_deadline_ms(self) -> int:
        """Return when `tick` has something to do."""
        if self._round:
            return self._checked_ms
        check_ms = self._checked_ms + self._directory.config.retention_check_interval_ms
        return min(check_ms, self._retired[0].due_ms) if self._retired else check_ms

    def tick(self, *, now_ms: int, wall_ms: int) -> None:
        """Do a portion of what is due. Disk errors are logged; the next round tries again."""
        steady_ms = self._time.wall_ms(now_ms=now_ms, wall_ms=wall_ms)
        interval_ms = self._directory.config.retention_check_interval_ms
        if not self._round and now_ms >= self._checked_ms + interval_ms:
            self._checked_ms = now_ms
            self._round.extend(
                (topic.name, number)
                for topic in self._directory.topics.values()
                for number in topic.partitions
            )
        self._check(now_ms, steady_ms)
        due: list[str] = []
        while self._retired and self._retired[0].due_ms <= now_ms and len(due) < FILES_AT_ONCE:
            due.append(heappop(self._retired).path)
        if due:
            self._remove(due)

    def take_over(self, paths: Iterable[str], due_ms: int) -> None:
        """Remove these files too, at `due_ms`."""
        for path in paths:
            heappush(self._retired, _RetiredFile(due_ms, path))

    def _check(self, now_ms: int, wall_ms: int) -> None:
        expired = []
        left = LOGS_AT_ONCE
        for _ in range(min(LOOKS_AT_ONCE, len(self._round))):
            if not left:
                break
            name, number = self._round.popleft()
            topic = self._directory.topics.get(name)
            log = None if topic is None else topic.partitions.get(number)
            if topic is None or log is None:
                continue  # It was deleted since the round began.
            is_loaded = log.knows_its_size
            # The steps, as a crash may come between any two:
            # 1. `_expire` moves the log start in memory: readers can't go below it any more.
            # 2. `keep` makes the start durable. A crash before it deletes nothing.
            # 3. `_retire` renames the files. A crash before it leaves files below the log start,
            #    which the next opening removes.
            # 4. `_remove` deletes the files after `file.delete.delay.ms`: a Fetch response that
            #    sends from the file may still be on its way.
            has_expired = self._expire(name, number, now_ms=now_ms, wall_ms=wall_ms)
            if has_expired:
                due_ms = now_ms + topic.config.file_delete_delay_ms
                expired.append(_ExpiredHead(log, log.log_start_offset, due_ms))
            left -= has_expired or not is_loaded
        if expired:
            self._writes_in_progress += 1
            self._keep(partial(self._on_checkpoint, expired))
        self._log_round()

    def _log_round(self) -> None:
        """Log what a round has removed, once it is complete."""
        if self._shortened_logs and not self._writes_in_progress and not self._round:
            _logger.info(
                "retention: removed expired files (files: %d, partitions: %d)",
                self._removed_files,
                self._shortened_logs,
            )
            self._shortened_logs = self._removed_files = 0

    def _write_checkpoints(self, then: OnCheckpoint) -> None:
        try:
            self._directory.write_checkpoints()
        except StreamlogError as error:
            then(error)
        else:
            then(None)

    def _on_checkpoint(self, expired: list[_ExpiredHead], failure: StreamlogError | None) -> None:
        self._writes_in_progress -= 1
        if failure is not None:
            _logger.warning(
                "expired files are not removed, because log starts can't be written: %s", failure
            )
        else:
            for each in expired:
                self._retire(each)
        self._log_round()

    def _expire(self, name: str, number: int, *, now_ms: int, wall_ms: int) -> bool:
        """Whether files of the log can be removed."""
        log = self._directory.log(name, number)
        log.producers.forget_silent(
            end_offset=log.log_end_offset,
            now_ms=now_ms,
            silent_ms=self._directory.config.transaction.producer_id_expiration_ms,
        )
        high_watermark = self._high_watermark(name, number)
        try:
            log.expire(high_watermark=high_watermark, wall_ms=wall_ms, now_ms=now_ms)
        except StreamlogError as error:
            _logger.warning("%s: expired segments can't be determined: %s", log.name, error)
            return False
        return log.has_expired_files

    def _retire(self, expired: _ExpiredHead) -> None:
        log = expired.log
        segments, size_bytes = log.segment_count, log.size_bytes
        try:
            paths = log.retire(durable_start=expired.log_start_offset)
        except StreamlogError as error:
            _logger.warning("%s: expired files can't be renamed: %s", log.name, error)
            return
        _logger.debug("%s: begins at offset %d", log.name, log.log_start_offset)
        self._shortened_logs += 1
        self._removed_files += len(paths)
        self.deleted_segments += segments - log.segment_count
        self.deleted_bytes += size_bytes - log.size_bytes
        self.take_over(paths, expired.due_ms)
