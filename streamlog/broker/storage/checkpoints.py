"""LogCheckpoints: up to where each log of a broker is on disk, and where it begins.

The event loop takes checkpoints, and any thread writes them, because that needs three syncs.

A thousand idle logs have no news, and a look at each of them every few seconds would be most of
what an idle broker does. So logs note when they are touched (`PartitionLog.is_touched`), and
checkpoints that are still right (`are_current`) are not taken again.

Rules of this module: a checkpoint may be older than the truth, never newer, and never older than
the checkpoint before it. Only a scan finds damage in the middle of a log again, so the recovery
point stays before the damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.storage.data_directory import partition_folder

if TYPE_CHECKING:
    from streamlog.broker.storage.catalog import Catalog, TopicEntry
    from streamlog.broker.storage.log.partition_log import PartitionLog


def future_key(topic_id: bytes, partition: int) -> str:
    """Return the key of the checkpoint of a log that is being copied to another directory."""
    return f"{partition_folder(topic_id, partition)}-future"


class LogCheckpoint(NamedTuple):
    """What is kept about one log."""

    recovery_point: int
    """Everything before it is on disk."""
    log_start_offset: int
    """Everything before it was deleted."""
    high_watermark: int
    """Everything before it was committed; 0 if the partition is not replicated."""


class CheckpointsTaken(NamedTuple):
    """The checkpoints of all logs at one time, by folder."""

    number: int
    recovery_points: dict[str, int]
    log_start_offsets: dict[str, int]
    high_watermarks: dict[str, int]


class _Taken(NamedTuple):
    """Of what the newest checkpoints were taken."""

    number: int
    logs: Sequence[PartitionLog]
    copied: Mapping[str, int]


class LogCheckpoints:
    """The checkpoints of all logs of a directory, by folder.

    Reading and writing raise OSError if the system refuses.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._numbers = count(1)
        self._keeping = Lock()
        self._kept = CheckpointsTaken(0, {}, {}, {})
        self._taken = _Taken(0, [], {})

    def read(self, topics: Iterable[TopicEntry]) -> dict[str, LogCheckpoint]:
        """Read the checkpoints of the logs of these topics; zeros for logs without one.

        Raises:
            CorruptData: the file is damaged.
        """
        points, starts = self._catalog.recovery_points(), self._catalog.log_start_offsets()
        marks = self._catalog.high_watermarks()
        folders = (
            partition_folder(topic.topic_id, number)
            for topic in topics
            for number in topic.partitions
        )
        return {
            each: LogCheckpoint(points.get(each, 0), starts.get(each, 0), marks.get(each, 0))
            for each in folders
        }

    def take(
        self, logs: Mapping[str, PartitionLog], copied: Mapping[str, int] | None = None
    ) -> CheckpointsTaken:
        """Take the checkpoints of these logs as of now; logs that are not listed lose theirs.

        `copied` has the recovery points of logs that are being copied, by `future_key`.
        """
        # Before anything is read: a thread that finds damage after this touches its log again.
        for log in logs.values():
            log.is_touched = False
        self._taken = _Taken(next(self._numbers), [*logs.values()], dict(copied or {}))
        points = {folder: _scan_from(log) for folder, log in logs.items()} | dict(copied or {})
        starts = {f: start for f, log in logs.items() if (start := log.log_start_offset)}
        marks = {f: mark for f, log in logs.items() if (mark := log.high_watermark)}
        return CheckpointsTaken(self._taken.number, points, starts, marks)

    def are_current(self, logs: Sequence[PartitionLog], copied: Mapping[str, int]) -> bool:
        """Whether the checkpoints written last are those of these logs as of now.

        False also if only a look at each log could tell.
        """
        taken = self._taken
        return (
            self._kept.number == taken.number
            and taken.logs == logs
            and taken.copied == copied
            and not any(log.is_touched for log in logs)
        )

    def recovery_points(self) -> dict[str, int]:
        """Read all recovery points.

        Raises:
            CorruptData: the file is damaged.
        """
        return self._catalog.recovery_points()

    def is_kept(self, taken: CheckpointsTaken) -> bool:
        """Whether these checkpoints are the ones written last."""
        kept = self._kept
        if taken[1:] != kept[1:]:
            return False
        # The logs were touched, and nothing came of it: what was written stands for them from here.
        if taken.number == self._taken.number:
            self._taken = self._taken._replace(number=kept.number)
        return True

    def keep(self, taken: CheckpointsTaken) -> None:
        """Write the checkpoints durably; callable from any thread.

        Does nothing if checkpoints that were taken later are already written.
        """
        # 1. Thread A takes checkpoint 7, thread B takes 8. 2. B writes first. 3. If A wrote 7 now,
        # a log start could go back: files below it are removed already, which would be damage.
        with self._keeping:
            if taken.number > self._kept.number:
                self._catalog.write_checkpoints(
                    recovery_points=taken.recovery_points,
                    log_start_offsets=taken.log_start_offsets,
                    high_watermarks=taken.high_watermarks,
                )
                self._kept = taken


def _scan_from(log: PartitionLog) -> int:
    """Return the recovery point, held back before damage: only a scan finds it again.

    Damage that reaches up to the log's end does not hold it back: with an earlier recovery point
    the next opening would take it for a torn write, and cut it off.
    """
    damage = log.damage
    if not damage:
        return log.recovery_point  # Nearly every log, every few seconds.
    # How far it is held back depends on the log's end, which no touch reports.
    log.is_touched = True
    end_offset = log.log_end_offset
    holes: list[int] = []
    for finding in damage:
        if finding.next_offset is None or finding.next_offset >= end_offset:
            return log.recovery_point
        holes.append(finding.first_offset)
    return min([log.recovery_point, *holes])
