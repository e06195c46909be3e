"""Retention: the rounds that remove what is over, over all logs of a directory.

What is over is `expiry`'s to say. It goes in steps: first the new log starts are durable, then
files are renamed, then, when nobody can be reading them any more, removed. So a head that is
missing without that is damage, and a crash between any two steps leaves files that the next
opening removes. Trouble with one log is logged and stops no other.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.storage.expiry import SteadyTime
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.partition_log import PartitionLog

FIRST_CHECK_MS = 30_000
"""After the start at the latest: others have more to do just then."""
_logger = logging.getLogger(__name__)


class _Retired(NamedTuple):
    due_ms: int
    path: str


class Retention:
    """The rounds over all logs of a directory; times are monotonic but where they say `wall`."""

    def __init__(self, directory: LogDirectory, *, now_ms: int) -> None:
        self._directory = directory
        self._time = SteadyTime()
        interval_ms = directory.config.retention_check_interval_ms
        self._checked_ms = now_ms - max(interval_ms - FIRST_CHECK_MS, 0)
        self._retired: list[_Retired] = []

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do."""
        check_ms = self._checked_ms + self._directory.config.retention_check_interval_ms
        return min([check_ms, *(each.due_ms for each in self._retired)])

    def tick(self, *, now_ms: int, wall_ms: int) -> None:
        """Do what is due. Trouble with the disk is logged and tried again in the next round."""
        steady_ms = self._time.wall_ms(now_ms=now_ms, wall_ms=wall_ms)
        if now_ms >= self._checked_ms + self._directory.config.retention_check_interval_ms:
            self._checked_ms = now_ms
            self._check(now_ms, steady_ms)
        due = [each.path for each in self._retired if each.due_ms <= now_ms]
        if due:
            self._retired = [each for each in self._retired if each.due_ms > now_ms]
            self._directory.remove_retired(due)

    def _check(self, now_ms: int, wall_ms: int) -> None:
        over = [
            (log, now_ms + topic.config.file_delete_delay_ms)
            for topic in self._directory.topics.values()
            for log in topic.partitions
            if _expire(log, now_ms=now_ms, wall_ms=wall_ms)
        ]
        if not over:
            return
        try:
            self._directory.write_checkpoints()
        except StreamlogError as error:
            _logger.warning("nothing is removed, as log starts can't be kept: %s", error)
            return
        for log, due_ms in over:
            self._retire(log, due_ms)

    def _retire(self, log: PartitionLog, due_ms: int) -> None:
        try:
            paths = log.retire()
        except StreamlogError as error:
            _logger.warning("%s: files that are over can't be taken out: %s", log.name, error)
            return
        _logger.info("%s: begins at offset %d now", log.name, log.log_start_offset)
        self._retired += [_Retired(due_ms, path) for path in paths]


def _expire(log: PartitionLog, *, now_ms: int, wall_ms: int) -> bool:
    """Whether there are files to be taken out of the log."""
    try:
        log.expire(wall_ms=wall_ms, now_ms=now_ms)
    except StreamlogError as error:
        _logger.warning("%s: what is over can't be found out: %s", log.name, error)
        return False
    return log.has_expired_files
