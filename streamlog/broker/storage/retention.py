"""Retention: the rounds that remove what is over, over all logs of a directory.

Producers that have been silent for long are forgotten on the way.

What is over is `expiry`'s to say. It goes in steps: first the new log starts are durable, then
files are renamed, then, when nobody can be reading them any more, removed. So a head that is
missing without that is damage, and a crash between any two steps leaves files that the next
opening removes. Trouble with one log is logged and stops no other, and a round is made in small
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
"""After the start at the latest: others have more to do just then."""
LOGS_AT_ONCE = 4
"""Looked at in one go, before requests have their turn: each may be rolled and renamed."""
FILES_AT_ONCE = 32
"""Removed in one go."""

Kept = Callable[[StreamlogError | None], None]
"""What is called when log starts are durable, or with the reason why they may not be."""

_logger = repeated.logger(__name__)


class _Retired(NamedTuple):
    due_ms: int
    path: str


class _Over(NamedTuple):
    log: PartitionLog
    log_start_offset: int
    """What is before it goes, once that is kept. It may move on meanwhile."""
    due_ms: int


class Retention:
    """The rounds over all logs of a directory; times are monotonic but where they say `wall`.

    Nothing goes that is not below the `high_watermark` of its topic and partition. Files are
    removed by `remove`, and log starts made durable by `keep`, which calls back; both may take
    their time. If they are not given it is done in place.
    """

    def __init__(
        self,
        directory: LogDirectory,
        *,
        now_ms: int,
        high_watermark: Callable[[str, int], int],
        remove: Callable[[list[str]], None] | None = None,
        keep: Callable[[Kept], None] | None = None,
    ) -> None:
        self._keep = self._keep_in_place if keep is None else keep
        self._remove = directory.remove_retired if remove is None else remove
        self._directory = directory
        self._high_watermark = high_watermark
        self._time = SteadyTime()
        interval_ms = directory.config.retention_check_interval_ms
        self._checked_ms = now_ms - max(interval_ms - FIRST_CHECK_MS, 0)
        self._round: deque[tuple[str, int]] = deque()
        """Topic and partition of what this round has still to look at."""
        self._retired: list[_Retired] = []
        """A heap."""
        self._keeping = 0
        """How often log starts are being kept just now."""
        self._shortened = 0
        """Logs that this round has taken files out of, so far."""
        self._files_out = 0

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do."""
        if self._round:
            return self._checked_ms
        check_ms = self._checked_ms + self._directory.config.retention_check_interval_ms
        return min(check_ms, self._retired[0].due_ms) if self._retired else check_ms

    def tick(self, *, now_ms: int, wall_ms: int) -> None:
        """Do some of what is due. Trouble with the disk is logged; the next round tries again."""
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
        """Remove these files, too, when it is time."""
        for path in paths:
            heappush(self._retired, _Retired(due_ms, path))

    def _check(self, now_ms: int, wall_ms: int) -> None:
        over = []
        for _ in range(min(LOGS_AT_ONCE, len(self._round))):
            name, number = self._round.popleft()
            topic = self._directory.topics.get(name)
            log = None if topic is None else topic.partitions.get(number)
            if topic is None or log is None:
                continue  # It was deleted since the round began.
            if self._expire(name, number, now_ms=now_ms, wall_ms=wall_ms):
                due_ms = now_ms + topic.config.file_delete_delay_ms
                over.append(_Over(log, log.log_start_offset, due_ms))
        if over:
            self._keeping += 1
            self._keep(partial(self._on_kept, over))
        self._tell()

    def _tell(self) -> None:
        """Say what a round has come to, once it is over."""
        if self._shortened and not self._keeping and not self._round:
            _logger.info(
                "retention: %d files of %d partitions are over", self._files_out, self._shortened
            )
            self._shortened = self._files_out = 0

    def _keep_in_place(self, then: Kept) -> None:
        try:
            self._directory.write_checkpoints()
        except StreamlogError as error:
            then(error)
        else:
            then(None)

    def _on_kept(self, over: list[_Over], failure: StreamlogError | None) -> None:
        self._keeping -= 1
        if failure is not None:
            _logger.warning("nothing is removed, as log starts can't be kept: %s", failure)
        else:
            for each in over:
                self._retire(each)
        self._tell()

    def _expire(self, name: str, number: int, *, now_ms: int, wall_ms: int) -> bool:
        """Whether there are files to be taken out of the log."""
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
            _logger.warning("%s: what is over can't be found out: %s", log.name, error)
            return False
        return log.has_expired_files

    def _retire(self, over: _Over) -> None:
        log = over.log
        try:
            paths = log.retire(kept_start=over.log_start_offset)
        except StreamlogError as error:
            _logger.warning("%s: files that are over can't be taken out: %s", log.name, error)
            return
        _logger.debug("%s: begins at offset %d now", log.name, log.log_start_offset)
        self._shortened += 1
        self._files_out += len(paths)
        self.take_over(paths, over.due_ms)
