"""Log metrics: sizes and offsets of logs, disks, and what cleaner and retention have done.

Partitions have series of their own up to `PARTITIONS_MAX`, topics with the fewest partitions
first. The partitions of a further topic are counted together under the partition `all`, without
offsets; beyond `TOPICS_MAX` such topics, those are counted together under the topic `other`. So
sums over all series are right for any number of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamlog.errors import StreamlogError
from streamlog.metrics.registry import ITEMS_PER_STEP, OTHER, Kind, Metric, Point, number, timer

if TYPE_CHECKING:
    from streamlog.broker.log_maintenance import LogMaintenance
    from streamlog.broker.storage.compaction.cleaner import Cleaner
    from streamlog.broker.storage.log.partition_log import PartitionLog
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.topic_state import TopicState
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
        labels = ("topic", "partition")
        yield Metric(f"kafka_log_log_{name}", text, Kind.GAUGE, labels, _points(shown, name))


def _points(shown: Mapping[_Labels, _Figures], name: str) -> Iterator[Point]:
    """Iterate over the points of one metric, which are made while they are read."""
    for labels, figures in shown.items():
        yield labels, getattr(figures, name)


def _labels(topics: list[TopicState]) -> Callable[[str, int], _Labels]:
    """Decide which logs have series of their own; return the labels of any log."""
    # 1. One topic has 5,000 partitions, forty others have one each. 2. By name, the large one might
    # take all the room. 3. By size, the forty keep their series, and only the large one is summed.
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
    # After a start, sealed segments are loaded when they are read, or by the first round of
    # retention half a minute later. Until then their sizes are unknown, not 0.
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
            # The failure is logged where a log meets it; here it only counts.
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
    yield from _cleaner_metrics(maintenance.cleaner, now_ms)
    retention = maintenance.retention
    for name, text, count in (
        ("segments", "Segments", retention.deleted_segments),
        ("bytes", "Bytes of segments", retention.deleted_bytes),
    ):
        yield number(
            f"streamlog_retention_deleted_{name}_total",
            f"{text} deleted by retention or DeleteRecords.",
            count,
            kind=Kind.COUNTER,
        )


def _cleaner_metrics(cleaner: Cleaner, now_ms: int) -> Iterator[Metric]:
    # Over all cleanings, where Kafka reports its last one: what a scrape finds does not depend on
    # which log happened to be cleaned before it.
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
        ("read_bytes", "Bytes of segments that were cleaned.", cleaner.read_bytes),
        ("written_bytes", "Bytes of segments after cleaning.", cleaner.written_bytes),
        (
            "unreadable_batches",
            "Unreadable batches that the log cleaner left unchanged.",
            cleaner.unreadable_batches,
        ),
    ):
        yield number(f"streamlog_cleaner_{name}_total", text, count, kind=Kind.COUNTER)
