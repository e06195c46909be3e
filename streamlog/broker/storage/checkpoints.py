"""Checkpoints: up to where each log is on disk, and where each begins, kept for the next opening.

What holds is taken by the loop and kept by any thread, for that takes three syncs. Rule of the
file: a checkpoint may be older than the truth, never newer, and never older than the one before
it. Only a scan finds again what is damaged in the middle of a log, so the point from which it
begins waits before a hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.storage.catalog import Catalog, TopicEntry
from streamlog.broker.storage.folders import partition_folder

if TYPE_CHECKING:
    from streamlog.broker.storage.partition_log import PartitionLog


class Checkpoint(NamedTuple):
    """What is kept of one log."""

    recovery_point: int
    """Before it, everything is on disk."""
    log_start_offset: int
    """Before it, everything was deleted."""
    high_watermark: int
    """Before it, a replicated partition was committed; 0 of others."""


class Taken(NamedTuple):
    """What held for all logs, by folder."""

    number: int
    recovery_points: dict[str, int]
    log_start_offsets: dict[str, int]
    high_watermarks: dict[str, int]


class Checkpoints:
    """The checkpoints of all logs of a directory, by folder.

    Reading and keeping raise OSError if the system refuses.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._numbers = count(1)
        self._keeping = Lock()
        self._kept = Taken(0, {}, {}, {})

    def read(self, topics: Iterable[TopicEntry]) -> dict[str, Checkpoint]:
        """What was kept of the logs of these topics; zeros if nothing was.

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
            each: Checkpoint(points.get(each, 0), starts.get(each, 0), marks.get(each, 0))
            for each in folders
        }

    def take(self, logs: Mapping[str, PartitionLog]) -> Taken:
        """What holds for these logs now; of others nothing is kept."""
        points = {folder: _scan_from(log) for folder, log in logs.items()}
        starts = {f: log.log_start_offset for f, log in logs.items() if log.log_start_offset}
        marks = {f: log.high_watermark for f, log in logs.items() if log.high_watermark}
        return Taken(next(self._numbers), points, starts, marks)

    def is_kept(self, taken: Taken) -> bool:
        """Whether the same was kept last."""
        return taken[1:] == self._kept[1:]

    def keep(self, taken: Taken) -> None:
        """Keep it, durably; callable from any thread.

        Nothing is left to do if what was taken later has come first.
        """
        with self._keeping:
            if taken.number > self._kept.number:
                self._catalog.write_checkpoints(
                    recovery_points=taken.recovery_points,
                    log_start_offsets=taken.log_start_offsets,
                    high_watermarks=taken.high_watermarks,
                )
                self._kept = taken


def _scan_from(log: PartitionLog) -> int:
    """The recovery point, held back before a hole: only a scan finds it again.

    Not so where a hole reaches up to the end of the log: by any earlier point it would be judged
    a write that was never finished, and cut off.
    """
    end_offset = log.log_end_offset
    holes: list[int] = []
    for place in log.damage:
        if place.next_offset is None or place.next_offset >= end_offset:
            return log.recovery_point
        holes.append(place.first_offset)
    return min([log.recovery_point, *holes])
