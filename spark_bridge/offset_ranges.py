"""Offset ranges: resolves a query's options to ranges of offsets, and splits them into parts.

Ranges are fixed before any row is read; their start is inclusive, their end exclusive. A topic that
was deleted and created again, or whose log was truncated below a range, is another log: with
`failOnDataLoss` the read fails, without it the read logs a warning. Pure: the state of the log
comes as arguments.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from spark_bridge.source_options import (
    EARLIEST,
    LATEST,
    ByPartition,
    ReadOptions,
    SourceKind,
    parse_options,
)
from streamlog.errors import ConfigError, SourceLost
from streamlog.record import TopicPartition
from streamlog.records.control_batches import AbortedRange
from streamlog.records.epoch_chains import UNKNOWN_OFFSET, EpochChain
from streamlog.replace import replace

__all__ = [
    "Bounds",
    "OffsetRange",
    "ReadOptions",
    "limit_end",
    "parse_options",
    "resolve",
    "split",
    "start_offsets",
    "wanted_partitions",
]

Bounds: TypeAlias = Callable[[str, int], tuple[int, int]]
"""Returns the first offset and the end of a topic's partition."""
OffsetOfTime: TypeAlias = Callable[[str, int, int], "int | None"]
"""Takes topic, partition and ms since 1970; returns the first offset at or after it, or None."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogMark:
    """Identity of a log: a new or truncated one may hold other records at the same offsets."""

    topic_id: str = ""
    """The topic ID as Kafka's tools print it; empty if unknown."""
    offset: int = 0
    epochs: EpochChain = ()
    """Leader epochs of the records before the offset."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records `start` up to but not including `end` of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    aborted: tuple[AbortedRange, ...] = ()
    """Aborted transactions, whose records are skipped."""
    log: LogMark = LogMark()
    """The log that the range was planned in."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


def wanted_partitions(
    options: ReadOptions, partitions: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the topics and partitions that the options ask for.

    Raises:
        ConfigError: one of them does not exist.
    """
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        topics = tuple(sorted(name for name in partitions if pattern.fullmatch(name)))
    else:
        topics = options.topics
    for topic in topics:
        if topic not in partitions:
            there = ", ".join(sorted(partitions)) or "none"
            raise ConfigError(f"the log has no topic '{topic}'; its topics: {there}")
    if options.assigned is None:
        return {topic: tuple(range(partitions[topic])) for topic in topics}
    for topic, numbers in options.assigned.items():
        for number in numbers:
            if not 0 <= number < partitions[topic]:
                raise ConfigError(
                    f"option 'assign' names {topic}-{number}, and the topic has partitions 0 to"
                    f" {partitions[topic] - 1}"
                )
    return dict(options.assigned)


def resolve(
    options: ReadOptions,
    partitions: Mapping[str, int],
    bounds: Bounds,
    offset_of_time: OffsetOfTime | None = None,
) -> list[OffsetRange]:
    """Return the ranges that the options ask for, without empty ones.

    Raises:
        ConfigError: a topic or partition does not exist, an offset is outside the log, or a start
            is after its end.
    """
    wanted = wanted_partitions(options, partitions)
    for position in (options.starting, options.ending):
        _check_partitions_exist(position, wanted)
    ranges = []
    for topic, numbers in wanted.items():
        for number in numbers:
            there = PlannedPartition(topic, number, bounds(topic, number), offset_of_time)
            start = there.offset(options.starting, options, is_start=True)
            end = there.offset(options.ending, options, is_start=False)
            # A starting time after all records is the end of the log, which may lie after the
            # ending position: nothing is to be read, and that is no mistake in the options.
            if start > end and not there.is_without_later(options.starting, start):
                raise ConfigError(
                    f"{topic}-{number}: the start ({options.starting.option}) is offset {start}, "
                    f"after the end ({options.ending.option}), which is offset {end}"
                )
            if start < end:
                ranges.append(OffsetRange(topic, number, start, end))
    return ranges


def start_offsets(
    options: ReadOptions,
    partitions: Mapping[str, int],
    bounds: Bounds,
    offset_of_time: OffsetOfTime | None = None,
) -> ByPartition:
    """Return the start offset of each partition that the options ask for.

    Raises:
        ConfigError: as `resolve`.
    """
    wanted = wanted_partitions(options, partitions)
    _check_partitions_exist(options.starting, wanted)
    return {
        topic: {
            str(number): PlannedPartition(
                topic, number, bounds(topic, number), offset_of_time
            ).offset(options.starting, options, is_start=True)
            for number in numbers
        }
        for topic, numbers in wanted.items()
    }


def limit_end(start: ByPartition, end: ByPartition, most: int | None) -> ByPartition:
    """Return ends of a batch of about `most` offsets, shared by partitions in proportion.

    Each partition with records gets at least one offset. If `most` is None, the batch ends at
    `end`.
    """
    sizes = {
        (topic, number): max(offset - start[topic][number], 0)
        for topic, numbers in end.items()
        for number, offset in numbers.items()
    }
    total = sum(sizes.values())
    share = 1.0 if most is None or total <= most else most / total

    def stop(topic: str, number: str) -> int:
        size = sizes[topic, number]
        # At least one, or a small partition would starve next to a large one.
        taken = size if share >= 1 else min(max(int(size * share), 1 if size else 0), size)
        return start[topic][number] + taken

    return {topic: {number: stop(topic, number) for number in ns} for topic, ns in end.items()}


def _check_partitions_exist(source: SourceKind, wanted: Mapping[str, Sequence[int]]) -> None:
    by_partition: ByPartition | None = source.offsets or source.times_ms
    if by_partition is None:
        return
    named = {(topic, number) for topic, numbers in by_partition.items() for number in numbers}
    read = {(topic, str(number)) for topic, numbers in wanted.items() for number in numbers}
    if wrong := sorted(named - read):
        topic, number = wrong[0]
        raise ConfigError(
            f"option '{source.option}' names {topic}-{number}, which is not being read"
        )
    if missing := sorted(read - named):
        topic, number = missing[0]
        raise ConfigError(
            f"option '{source.option}' leaves out {topic}-{number}; "
            "use -2 for earliest, -1 for latest"
        )


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition with its readable offsets, which resolves positions."""

    topic: str
    number: int
    bounds: tuple[int, int]
    offset_of_time: OffsetOfTime | None = None

    def offset(self, source: SourceKind, options: ReadOptions, *, is_start: bool) -> int:
        """Return the offset of a position.

        Raises:
            ConfigError: the offset is outside the log, or no record is at or after the time.
        """
        first, end = self.bounds
        if source.word is not None:
            return first if source.word == "earliest" else end
        if source.offsets is not None:
            offset = source.offsets[self.topic][str(self.number)]
            if offset in (EARLIEST, LATEST):
                return first if offset == EARLIEST else end
            return self.within(offset, fail=options.fail_on_data_loss)
        times = source.times_ms
        time_ms = source.time_ms if times is None else times[self.topic][str(self.number)]
        return self._offset_at(
            source, time_ms or 0, strict=is_start and options.is_strict_about_times
        )

    def is_without_later(self, source: SourceKind, offset: int) -> bool:
        """Return whether the position is a time after all records."""
        by_time = source.word is None and source.offsets is None
        return by_time and offset == self.bounds[1]

    def _offset_at(self, source: SourceKind, time_ms: int, *, strict: bool) -> int:
        if self.offset_of_time is None:
            raise ConfigError(f"option '{source.option}' needs a log that looks up times")
        first, end = self.bounds
        found = self.offset_of_time(self.topic, self.number, time_ms)
        # The look-up may see records beyond the readable end, such as those of open transactions.
        if found is not None:
            return min(max(found, first), end)
        if strict:
            raise ConfigError(
                f"option '{source.option}': {self.topic}-{self.number} has no record at or after "
                f"{time_ms} ms; set startingOffsetsByTimestampStrategy to 'latest' to read nothing "
                "from it"
            )
        return end

    def within(self, offset: int, *, fail: bool) -> int:
        """Return the offset, or the nearest one in the log if it is outside.

        Raises:
            ConfigError: the offset is outside the log, and `fail` is set.
        """
        first, end = self.bounds
        if first <= offset <= end:
            return offset
        if fail:
            raise ConfigError(
                f"offset {offset} of {self.topic}-{self.number} is outside the log, which begins "
                f"at {first} and ends at {end}; records may have been deleted. With "
                "failOnDataLoss=false the read returns the records that are there"
            )
        nearest = min(max(offset, first), end)
        _log.warning(
            "%s-%d: offset %d is outside the log, which begins at %d and ends at %d: reading from "
            "%d",
            self.topic, self.number, offset, first, end, nearest,
        )  # fmt: skip
        return nearest


def split(
    ranges: Iterable[OffsetRange], *, min_partitions: int | None, records_max: int | None
) -> list[OffsetRange]:
    """Split ranges into one part per task, in proportion to their sizes, as Spark's source does.

    Args:
        ranges: the ranges.
        min_partitions: split larger ranges further, until there are about this many parts.
        records_max: offsets per part, at most.
    """
    parts = [each for each in ranges if each.start < each.end]
    if records_max is not None:
        parts = [
            part
            for each in parts
            # Rounded up: parts of at most `records_max` offsets.
            for part in divide(each, -(-(each.end - each.start) // records_max))
        ]
    total = sum(each.end - each.start for each in parts)
    if min_partitions is None or min_partitions <= len(parts):
        return parts
    return [
        part
        for each in parts
        for part in divide(each, max(round((each.end - each.start) / total * min_partitions), 1))
    ]


def divide(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Split a range into `count` parts of the same size, or one part per offset."""
    # Each part takes its share of what is left, so sizes differ by at most one.
    parts, start = [], whole.start
    for left in range(count, 0, -1):
        end = start + (whole.end - start) // left
        if start < end:
            parts.append(replace(whole, start=start, end=end))
        start = end
    return parts


class LostLog(NamedTuple):
    """How a log has changed since it was read or planned."""

    topic_partition: TopicPartition
    what: str
    same_until: int
    """The first offset with a changed record; 0 if all records have changed."""

    @property
    def text(self) -> str:
        """The change, with the partition."""
        return f"{self.topic_partition.topic}-{self.topic_partition.partition}: {self.what}"

    def error(self, position: int, remedy: str) -> SourceLost:
        """Return the error of a read whose next offset was `position`."""
        return SourceLost(
            f"{self.text}. {remedy}",
            topic=self.topic_partition.topic,
            partition=self.topic_partition.partition,
            position=position,
        )


def recreated_log(partition: TopicPartition, before: str, now: str, then: str) -> LostLog:
    """Describe a topic that was deleted and created again; `then` says what was to be read."""
    what = f"the topic was deleted and created again (id {before}, now {now}), and {then}"
    return LostLog(partition, what, 0)


def is_recreated(before: str, now: str) -> bool:
    """Return whether both topic IDs are known and differ."""
    return bool(before) and bool(now) and before != now


def truncated_log(partition: TopicPartition, divergence: int, end: int, then: str) -> LostLog:
    """Describe a log that was truncated and may have grown since; offset -1 is unknown."""
    where = "" if end == UNKNOWN_OFFSET else f"it ends at {end}, "
    if divergence != UNKNOWN_OFFSET and not 0 <= end <= divergence:
        where = f"from offset {divergence} on it holds other records, {where}"
    return LostLog(partition, f"the log was truncated: {where}and {then}", max(divergence, 0))


def find_lost(planned: OffsetRange, topic_id: str | None, divergence: int | None) -> LostLog | None:
    """Return how the log of a range has changed; None if the range is unchanged.

    Args:
        planned: the range, or a part of it.
        topic_id: the current topic ID; None if the topic does not exist.
        divergence: the offset from which the log differs from the planned one; None if it does not.
    """
    mark: LogMark = planned.log
    then = f"offsets {planned.start} to {planned.end - 1} were planned to be read"
    if topic_id is None:
        return LostLog(planned.topic_partition, f"the topic was deleted, and {then}", 0)
    if is_recreated(mark.topic_id, topic_id):
        return recreated_log(planned.topic_partition, mark.topic_id, topic_id, then)
    # A log that differs only from the end of the range on still has all records of the range.
    if divergence is not None and divergence < planned.end:
        return truncated_log(planned.topic_partition, divergence, UNKNOWN_OFFSET, then)
    return None
