"""LiveComparison: the rows of a version that runs beside an app, compared with the app's rows.

Both keep running, and one may have read further than the other. The comparison takes three steps:

1. Read both topics to their ends, then ask for the committed offsets of both groups.
2. Wait until each side has read what the other side had read at step 1. Now every row of the first
   reading must be in the other topic as well.
3. Read what was published meanwhile. A row of the first reading that has no counterpart is a
   difference. A row that came later is not: its counterpart may still be on the way.

Rows are compared as multisets per partition, as in `comparison`. Rule of the file: a row counts as
missing only if the side that should have written it has read beyond the row's inputs. Not done
here: a pause at a common cut (`worker.operations.promotion`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Final

import msgspec

from streamlog.clock import Clock
from streamlog.dsl.topic import Topic
from streamlog.durations import moment
from streamlog.errors import StreamlogError, UsageError, quantity
from streamlog.history.comparison import SHOWN_MAX, Fields, describe_row, fields_of
from streamlog.history.readers import LogReader
from streamlog.processing.provenance import MARK
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.snapshots import Snapshot
from streamlog.windows.emit import UNKNOWN_MS
from streamlog.worker.program import Program
from streamlog.worker.savepoint.task_savepoints import is_internal
from streamlog.worker.topics.version_log import HandOver, read_hand_overs

LOOK_MS: Final = 200
HELD_MS: Final = 3_000
"""Records of a repartition topic that stay unread this long wait for records of another source."""
SIGNS: Final = (1, -1)
"""How a row of the app and a row of the version change a count."""
SETTLED_INTERVALS: Final = 2
"""Commit intervals that a difference must outlast: rows that a time mark releases are published
with the next commit."""


class LivePartition(msgspec.Struct, frozen=True):
    """The comparison of one partition, in numbers of rows."""

    partition: int
    equal: int
    """Rows that both have published."""
    only_app: int
    """Rows that only the app has published, though the version has read their inputs."""
    only_version: int
    """Rows that only the version has published, though the app has read their inputs."""
    later: int
    """Rows without a counterpart that were published while the other side caught up."""
    earlier: int
    """Rows without a counterpart whose time is before the start of the version."""
    shown: tuple[str, ...]
    """The first rows that differ, decoded."""


class LiveComparison(msgspec.Struct, frozen=True):
    """The rows of an app's topic compared with a version's rows; `str` is a report."""

    topic: str
    version: str
    partitions: tuple[LivePartition, ...]
    since_ms: int
    """Rows from this time on are compared, ms since 1970; UNKNOWN_MS: all rows of the log."""
    held: tuple[TopicPartition, ...] = ()
    """Partitions of repartition topics with unread records, which wait until another source has
    reached their time. If only the version has such records, the app has their rows alone."""

    @property
    def is_equal(self) -> bool:
        """Whether each side has published every row of the other, as far as both have read."""
        return not any(each.only_app or each.only_version for each in self.partitions)

    def __bool__(self) -> bool:
        return self.is_equal

    def __str__(self) -> str:
        equal = sum(each.equal for each in self.partitions)
        verdict = "equal" if self.is_equal else "DIFFERENT"
        rows = quantity(equal, "equal row")
        lines = [f"{self.topic}, app and version {self.version!r}: {verdict}, {rows}"]
        if self.since_ms > UNKNOWN_MS:
            lines.append(f"  rows from {moment(self.since_ms).isoformat()} on")
        for each in self.partitions:
            lines.append(
                f"  partition {each.partition}: {each.equal} equal, {each.only_app} only in the "
                f"app, {each.only_version} only in the version, {each.later} too recent to "
                f"compare, {each.earlier} from before the version started"
            )
            lines += [f"    {line}" for line in each.shown]
        for topic, number in self.held:
            lines.append(
                f"  {topic}-{number} has unread records, which wait for another source to reach "
                "their time"
            )
        return "\n".join(lines)


def compared_live(
    topic: Topic[Any, Any],
    version: str,
    program: Program,
    reader: LogReader,
    *,
    clock: Clock,
    patience_ms: int,
    since_ms: int | None = None,
) -> LiveComparison:
    """Compare a topic of an app with the topic of a version that runs beside it.

    Args:
        topic: the output topic, by the app's name for it.
        version: the name of the version.
        program: the app's program, or the version's under the app's name.
        reader: reads the log.
        clock: measures the wait.
        patience_ms: how long to wait for the side that lags, in milliseconds.
        since_ms: compare rows from this time on, ms since 1970; None: from the version's start.

    Raises:
        UsageError: there is no such version, it does not write this topic, or one side does not
            catch up within `patience_ms`.
        StreamlogError: the log can't be read.
    """
    version_program = program.as_version(version)
    name = version_program.renamed.get(topic.name)
    counts = reader.partitions()
    if name is None or name not in counts:
        raise UsageError(
            f"version {version!r} of {program.app_id!r} has no topic for {topic.name!r}: it does "
            "not write there, or has never run"
        )
    if counts.get(topic.name) != counts[name]:
        raise UsageError(
            f"{topic.name!r} has {quantity(counts.get(topic.name, 0), 'partition')}, but {name!r} "
            f"has {counts[name]}: their rows are in different partitions, so they can't be compared"
        )
    if since_ms is None:
        handed = reader.run(read_hand_overs(reader.log, version_program.app_id))
        since_ms = _begin_ms(topic.name, handed[-1]) if handed else UNKNOWN_MS
    partitions = [
        _LiveRows(TopicPartition(topic.name, n), TopicPartition(name, n))
        for n in range(counts[name])
    ]
    for each in partitions:
        each.read_first(reader)
    # Only now the offsets: they then cover the inputs of every row that was read.
    catching = _CatchingUp(reader, (program.app_id, version_program.app_id), clock)
    catching.wait(clock.now_ms() + patience_ms)
    for each in partitions:
        each.read_on(reader)
    if any(each.differ(since_ms) for each in partitions):
        reader.run(asyncio.sleep(SETTLED_INTERVALS * program.commit_interval_ms / 1000))
        for each in partitions:
            each.read_on(reader)
    found = tuple(each.found(topic, since_ms) for each in partitions)
    return LiveComparison(topic.name, version, found, since_ms, tuple(catching.held))


class _LiveRows:
    """The rows of one partition of both topics, as far as they are read."""

    def __init__(self, app: TopicPartition, version: TopicPartition) -> None:
        self._partitions = (app, version)
        self._read_to: dict[TopicPartition, int] = {}
        self._alone: dict[Fields, int] = {}
        """Unmatched rows of the first reading: how many more the app has; below 0, the version."""
        self._first: dict[Fields, LogRecord] = {}
        """One record of each unmatched row."""
        self._later: dict[Fields, int] = {}
        """Unmatched rows that came after the first reading, counted in the same way."""
        self._equal = 0

    def read_first(self, reader: LogReader) -> None:
        """Read both partitions to their ends, alternately, so that matched rows leave memory."""
        bounds = reader.bounds(self._partitions)
        sides = [reader.read(at, *bounds[at]) for at in self._partitions]
        for arrivals in zip_longest(*sides):
            for sign, arrival in zip(SIGNS, arrivals, strict=True):
                for record in () if arrival is None else arrival.records:
                    self._count(self._alone, sign, record)
        self._read_to = {at: end for at, (_, end) in bounds.items()}

    def read_on(self, reader: LogReader) -> None:
        """Read the rows that were published since the last reading."""
        bounds = reader.bounds(self._partitions)
        for (at, (_, end)), sign in zip(bounds.items(), SIGNS, strict=True):
            for arrival in reader.read(at, self._read_to[at], end):
                for record in arrival.records:
                    # A later row may only complete a row of the other side's first reading.
                    is_awaited = self._alone.get(fields_of(record), 0) * sign < 0
                    self._count(self._alone if is_awaited else self._later, sign, record)
            self._read_to[at] = end

    def _count(self, counts: dict[Fields, int], sign: int, record: LogRecord) -> None:
        fields = fields_of(record)
        before = counts.get(fields, 0)
        # Opposite signs: the other side has a row that this one matches.
        self._equal += before * sign < 0
        counts[fields] = before + sign
        if not counts[fields]:
            del counts[fields]
        if counts is self._alone:
            self._first.setdefault(fields, record)
            if fields not in counts:
                del self._first[fields]

    def differ(self, since_ms: int) -> bool:
        """Return whether a row of the first reading has no counterpart."""
        return any(fields[2] >= since_ms for fields in self._alone)

    def found(self, topic: Topic[Any, Any], since_ms: int) -> LivePartition:
        """Return the numbers of rows, and the first rows that differ."""
        partition = self._partitions[0].partition
        alone = {f: count for f, count in self._alone.items() if f[2] >= since_ms}
        shown: list[str] = []
        for sign, whose in zip(SIGNS, ("app", "version"), strict=True):
            rows = [self._first[fields] for fields, count in alone.items() if count * sign > 0]
            rows.sort(key=lambda record: record.offset)
            shown += [
                f"only in the {whose}: {describe_row(topic, r, partition)}"
                for r in rows[:SHOWN_MAX]
            ]
        return LivePartition(
            partition=partition,
            equal=self._equal,
            only_app=sum(count for count in alone.values() if count > 0),
            only_version=-sum(count for count in alone.values() if count < 0),
            later=sum(map(abs, self._later.values())),
            earlier=sum(map(abs, self._alone.values())) - sum(map(abs, alone.values())),
            shown=tuple(shown),
        )


class _CatchingUp:
    """Waits until each of two apps has read what the other one had read."""

    def __init__(self, reader: LogReader, app_ids: tuple[str, str], clock: Clock) -> None:
        self._reader = reader
        self._ids = app_ids
        self._clock = clock
        self.held: list[TopicPartition] = []
        """Partitions of repartition topics with records that wait for another source."""

    def wait(self, deadline_ms: int) -> None:
        """Wait until both have read all inputs of the rows that were published before this call.

        Raises:
            UsageError: one of the two does not catch up by `deadline_ms` (monotonic time).
        """
        own, theirs = [self._offsets(app_id) for app_id in self._ids]
        both = {at for at in own.keys() & theirs.keys() if not self._is_internal(at)}
        self._reach({at: max(own[at], theirs[at]) for at in both}, deadline_ms)
        # Committed offsets of inputs imply that their repartition records are in the log.
        topics = {at.topic for at in own.keys() | theirs.keys() if self._is_internal(at)}
        counts = self._reader.partitions()
        parts = [TopicPartition(t, n) for t in sorted(topics) for n in range(counts.get(t, 0))]
        self._drain({at: end for at, (_, end) in self._reader.bounds(parts).items()}, deadline_ms)

    def _reach(self, ends: Mapping[TopicPartition, int], deadline_ms: int) -> None:
        while behind := [
            (app_id, at)
            for app_id in self._ids
            for at in self._short_of(self._offsets(app_id), ends)
        ]:
            app_id, (topic, partition) = behind[0]
            if self._clock.now_ms() >= deadline_ms:
                raise UsageError(
                    f"{app_id!r} has not read {topic}-{partition} up to offset "
                    f"{ends[behind[0][1]]}, as the other side has: check that its workers run. If "
                    "it is far behind, give it more time (--patience), or compare later"
                )
            self._pause()

    def _drain(self, ends: Mapping[TopicPartition, int], deadline_ms: int) -> None:
        """Wait until repartition topics are read, except records that wait for another source."""
        before: list[TopicPartition] = []
        since_ms = self._clock.now_ms()
        # Held records are no error: at the deadline, the report names their partitions.
        while self._clock.now_ms() < deadline_ms:
            offsets = {at: n for app_id in self._ids for at, n in self._offsets(app_id).items()}
            self.held = self._short_of(offsets, ends)
            if self.held != before:
                before, since_ms = self.held, self._clock.now_ms()
            if not self.held or self._clock.now_ms() - since_ms >= HELD_MS:
                return
            self._pause()

    def _short_of(
        self, offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """Return the partitions with records, not only markers, between an offset and the end."""
        return [
            at
            for at, end in sorted(ends.items())
            if at in offsets and offsets[at] < end and self._has_records(at, offsets[at], end)
        ]

    def _has_records(self, at: TopicPartition, start: int, end: int) -> bool:
        for arrival in self._reader.read(at, start, end):
            headers = arrival.records.headers or [()] * len(arrival.records)
            if any(not each or each[-1][0] != MARK for each in headers):
                return True
        return False

    def _offsets(self, app_id: str) -> dict[TopicPartition, int]:
        return dict(self._reader.run(self._reader.log.admin().group_offsets(app_id)))

    def _is_internal(self, at: TopicPartition) -> bool:
        return any(is_internal(at.topic, app_id) for app_id in self._ids)

    def _pause(self) -> None:
        self._reader.run(asyncio.sleep(LOOK_MS / 1000))


def _begin_ms(topic: str, handed: HandOver) -> int:
    """Return the time from which on a version has rows of a topic, ms since 1970."""
    cut_ms = UNKNOWN_MS if handed.cut_ms is None else handed.cut_ms
    try:
        manifest = Snapshot.open(handed.url).manifest
    except StreamlogError:
        return cut_ms  # The snapshot is gone; whether it handed rows over as well is unknown.
    return manifest.since_ms if any(s.topic == topic for s in manifest.staged) else cut_ms
