"""Log metrics: sizes and offsets of logs, disks, and what cleaner and retention have done.

Partitions have series of their own up to `PARTITIONS_MAX`, topics with the fewest partitions
first. The partitions of a further topic are counted together under the partition `all`, without
offsets; beyond `TOPICS_MAX` such topics, those are counted together under the topic `other`. So
sums over all series are right for any number of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamlog.errors import StreamlogError
from streamlog.metrics.registry import ITEMS_PER_STEP, OTHER, Kind, Metric, number, timer

if TYPE_CHECKING:
    from streamlog.broker.log_maintenance import LogMaintenance
    from streamlog.broker.storage.log.partition_log import PartitionLog
    from streamlog.broker.storage.log_directory import LogDirectory, TopicState
    from streamlog.broker.storage.volumes import Volumes

PARTITIONS_MAX = 1_000
TOPICS_MAX = 1_000
ALL = "all"
"""The partition of a series that stands for all partitions of a topic."""
_CLEANER = "kafka_log_logcleaner_"
_CLEANERS = "kafka_log_logcleanermanager_"
_Labels = tuple[str, str]


@dataclass(slots=True)
class _Figures:
    """What is shown of one log, or of several."""

    size: int = 0
    numlogsegments: int = 0
    logstartoffset: int = 0
    logendoffset: int = 0


_SUMS = {"size": "Bytes of the batches in a log.", "numlogsegments": "Segments of a log."}
_OFFSETS = {
    "logstartoffset": "First offset of a log.",
    "logendoffset": "Offset after the last record of a log.",
}


def log_metrics(directory: LogDirectory) -> Iterator[Metric | None]:
    """Yield sizes and offsets of all logs."""
    labels_of = _labels([*directory.topics.values()])
    found: dict[_Labels, _Figures] = {}
    count = 0
    for topic in [*directory.topics.values()]:
        for index, log in [*topic.partitions.items()]:
            count += 1
            if count % ITEMS_PER_STEP == 0:
                yield None
            figures = found.setdefault(labels_of(topic.name, index), _Figures())
            figures.size += _size_bytes(directory, topic.name, index, log)
            figures.numlogsegments += log.segment_count
            figures.logstartoffset = log.log_start_offset
            figures.logendoffset = log.log_end_offset
    own = {labels: each for labels, each in found.items() if labels[1] != ALL}
    for name, text, shown in (
        *((name, text, found) for name, text in _SUMS.items()),
        *((name, text, own) for name, text in _OFFSETS.items()),
    ):
        points = ((labels, getattr(each, name)) for labels, each in shown.items())
        yield Metric(f"kafka_log_log_{name}", text, Kind.GAUGE, ("topic", "partition"), points)


def _labels(topics: list[TopicState]) -> Callable[[str, int], _Labels]:
    """Decide which logs have series of their own; return the labels of any log."""
    together: dict[str, str] = {}
    partitions = 0
    for topic in sorted(topics, key=lambda each: (len(each.partitions), each.name)):
        partitions += len(topic.partitions)
        if partitions > PARTITIONS_MAX:
            together[topic.name] = topic.name if len(together) < TOPICS_MAX else OTHER

    def labels(topic: str, index: int) -> _Labels:
        shown = together.get(topic)
        return (topic, str(index)) if shown is None else (shown, ALL)

    return labels


def _size_bytes(directory: LogDirectory, topic: str, index: int, log: PartitionLog) -> int:
    """Return the bytes of a log; from the disk until its segments have been examined."""
    if not log.knows_its_size:
        try:
            return directory.partition_bytes(topic, index)
        except StreamlogError:
            pass  # It was deleted meanwhile, or its disk has failed.
    return log.size_bytes


def disk_metrics(volumes: Volumes) -> Iterator[Metric]:
    """Yield the space of each directory's disk, and how many directories can't be used."""
    total: dict[str, int] = {}
    usable: dict[str, int] = {}
    offline = 0
    for volume in volumes:
        try:
            space = volume.space()
        except StreamlogError:
            offline += 1
            continue
        # Files in memory, in tests, have no bound.
        if space.total_bytes >= 0:
            total[volume.path], usable[volume.path] = space.total_bytes, space.usable_bytes
    for name, text, sizes in (
        ("total", "Size of the disk of a directory in log.dirs.", total),
        ("usable", "What the broker may still write on the disk of a directory.", usable),
    ):
        points = [((path,), size_bytes) for path, size_bytes in sizes.items()]
        yield Metric(
            f"streamlog_log_directory_{name}_bytes", text, Kind.GAUGE, ("logdirectory",), points
        )
    yield number(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Directories in log.dirs that can't be used.",
        offline,
    )


def maintenance_metrics(maintenance: LogMaintenance, now_ms: int) -> Iterator[Metric]:
    """Yield what the cleaner and retention have done; `now_ms` is monotonic."""
    cleaner, retention = maintenance.cleaner, maintenance.retention
    recopied = cleaner.written_bytes / cleaner.read_bytes if cleaner.read_bytes else 0.0
    for name, text, value in (
        (
            _CLEANERS + "max_dirty_percent",
            "Dirty share of the log that needs cleaning most, in percent, at the last search.",
            cleaner.dirtiest_ratio * 100,
        ),
        (
            _CLEANERS + "time_since_last_run_ms",
            "Time since the cleaner last looked at all logs, in ms; a cleaning may be running.",
            max(now_ms - cleaner.last_run_ms, 0),
        ),
        (
            _CLEANERS + "uncleanable_partitions_count",
            "Logs that are not cleaned until the next start, because they are damaged.",
            cleaner.uncleanable,
        ),
        (
            _CLEANER + "cleaner_recopy_percent",
            "Share of the cleaned bytes that was kept, in percent, since the start.",
            recopied * 100,
        ),
    ):
        yield number(name, text, value)
    yield from timer(
        _CLEANER + "cleantimems",
        "streamlog_cleaner_clean_seconds",
        "Time of the cleaning of one log.",
        cleaner.times,
    )
    for name, text, count in (
        ("cleaner_read_bytes", "Bytes of segments that were cleaned.", cleaner.read_bytes),
        ("cleaner_written_bytes", "Bytes of segments after cleaning.", cleaner.written_bytes),
        (
            "cleaner_unreadable_batches",
            "Unreadable batches that the log cleaner left unchanged.",
            cleaner.unreadable_batches,
        ),
        (
            "retention_deleted_segments",
            "Segments deleted by retention or DeleteRecords.",
            retention.deleted_segments,
        ),
        (
            "retention_deleted_bytes",
            "Bytes of segments deleted by retention or DeleteRecords.",
            retention.deleted_bytes,
        ),
    ):
        yield number(f"streamlog_{name}_total", text, count, kind=Kind.COUNTER)
