"""LiveComparison: what a version beside an app has published, against what the app has.

Both run on, and neither has come as far as the other. (1) Both topics are read, then it is asked
what the tasks of both have taken. (2) Whoever is behind is waited for, until it has taken what the
other one had; now each row that was seen at first has to be in the topic of the other one, too. (3)
What was published meanwhile is read. A row of the first reading that is still alone is a
difference; one that came later is none, as its like may be on its way. Rows are compared as
multisets per partition, as in `comparison`. Rule of the file: a row is called missing only if who
should have written it has gone beyond where it belongs. Not done here: standing still at a cut
(`worker.promotion`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from streamlog.clock import Clock
from streamlog.dsl.topic import Topic
from streamlog.durations import moment
from streamlog.errors import StreamlogError, UsageError
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
"""Records of a repartition topic that are not taken for so long wait for something else."""
SIGNS: Final = (1, -1)
"""Of the app and of the version."""
SETTLED_INTERVALS: Final = 2
"""Commits that a difference has to outlive: what a time mark lets go comes with the next one."""


@dataclass(frozen=True, slots=True)
class LivePartition:
    """One partition."""

    partition: int
    equal: int
    """Rows that both have published."""
    only_app: int
    """Rows that the version has not published, though it has taken what they are made of."""
    only_version: int
    """Rows that the app has not published."""
    later: int
    """Rows of one of both that were published while the other one caught up."""
    earlier: int
    """Rows of one of both from before the version began."""
    shown: tuple[str, ...]
    """The first ones that differ, decoded."""


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """A topic of an app and that of a version of it; as text for people."""

    topic: str
    version: str
    partitions: tuple[LivePartition, ...]
    since_ms: int
    """Where the version began; UNKNOWN_MS: with the log."""
    held: tuple[TopicPartition, ...] = ()
    """Partitions of repartition topics, of both, of which records wait for their turn: for sources
    that have not come as far. If that is the version's alone, rows made of them are only the
    app's."""

    @property
    def is_equal(self) -> bool:
        """Whether each has published every row of the other, as far as both have come."""
        return not any(each.only_app or each.only_version for each in self.partitions)

    def __bool__(self) -> bool:
        return self.is_equal

    def __str__(self) -> str:
        equal = sum(each.equal for each in self.partitions)
        verdict = "equal" if self.is_equal else "DIFFERENT"
        lines = [f"{self.topic} and version {self.version!r}: {verdict}, {equal} rows in both"]
        if self.since_ms > UNKNOWN_MS:
            lines.append(f"  from {moment(self.since_ms).isoformat()} on")
        for each in self.partitions:
            lines.append(
                f"  partition {each.partition}: {each.equal} equal, {each.only_app} only of the "
                f"app, {each.only_version} only of the version, {each.later} later, "
                f"{each.earlier} earlier"
            )
            lines += [f"    {line}" for line in each.shown]
        for topic, number in self.held:
            lines.append(f"  not all taken: {topic}-{number}, whose records wait for their turn")
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
    """Compare a topic of an app with that of a version that runs beside it.

    Args:
        topic: that both write, as the app calls it.
        version: its name.
        program: of the app or of the version, as the app.
        reader: of the log.
        clock: tells how long is waited.
        patience_ms: so long whoever is behind is waited for.
        since_ms: rows with earlier times are not compared; None: those from before the version
            began are not.

    Raises:
        UsageError: there is no such version, it does not write this topic, or one of both does not
            come to where the other one is.
        StreamlogError: the log can't be read.
    """
    beside = program.beside(version)
    name = beside.renamed.get(topic.name)
    counts = reader.partitions()
    if name is None or name not in counts:
        raise UsageError(
            f"version {version!r} of {program.app_id!r} has no topic of its own for "
            f"{topic.name!r}: it does not write there, or has never run"
        )
    if counts.get(topic.name) != counts[name]:
        raise UsageError(
            f"{topic.name!r} has {counts.get(topic.name, 0)} partitions and {name!r} "
            f"{counts[name]}: their rows lie elsewhere, so they can't be compared"
        )
    if since_ms is None:
        handed = reader.run(read_hand_overs(reader.log, beside.app_id))
        since_ms = _begin_ms(topic.name, handed[-1]) if handed else UNKNOWN_MS
    partitions = [
        _LiveRows(TopicPartition(topic.name, n), TopicPartition(name, n))
        for n in range(counts[name])
    ]
    for each in partitions:
        each.read_first(reader)
    catching = _CatchingUp(reader, (program.app_id, beside.app_id), clock)
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
    """The rows of one partition of both, as far as they are read."""

    def __init__(self, app: TopicPartition, version: TopicPartition) -> None:
        self._places = (app, version)
        self._read_to: dict[TopicPartition, int] = {}
        self._alone: dict[Fields, int] = {}
        """Rows of the first reading: how many more of each the app has; below 0: the version."""
        self._first: dict[Fields, LogRecord] = {}
        """Of those, one."""
        self._later: dict[Fields, int] = {}
        """The same of what came behind the first reading."""
        self._equal = 0

    def read_first(self, reader: LogReader) -> None:
        """Read both up to their ends, in turn, so that only what differs is kept."""
        bounds = reader.bounds(self._places)
        ways = [reader.read(at, *bounds[at]) for at in self._places]
        for arrivals in zip_longest(*ways):
            for sign, arrival in zip(SIGNS, arrivals, strict=True):
                for record in () if arrival is None else arrival.records:
                    self._count(self._alone, sign, record)
        self._read_to = {at: end for at, (_, end) in bounds.items()}

    def read_on(self, reader: LogReader) -> None:
        """Read what was published since."""
        for (at, (_, end)), sign in zip(reader.bounds(self._places).items(), SIGNS, strict=True):
            for arrival in reader.read(at, self._read_to[at], end):
                for record in arrival.records:
                    is_awaited = self._alone.get(fields_of(record), 0) * sign < 0
                    self._count(self._alone if is_awaited else self._later, sign, record)
            self._read_to[at] = end

    def _count(self, counts: dict[Fields, int], sign: int, record: LogRecord) -> None:
        fields = fields_of(record)
        before = counts.get(fields, 0)
        self._equal += before * sign < 0
        counts[fields] = before + sign
        if not counts[fields]:
            del counts[fields]
        if counts is self._alone:
            self._first.setdefault(fields, record)
            if fields not in counts:
                del self._first[fields]

    def differ(self, since_ms: int) -> bool:
        """Whether rows of the first reading are alone."""
        return any(fields[2] >= since_ms for fields in self._alone)

    def found(self, topic: Topic[Any, Any], since_ms: int) -> LivePartition:
        """What came of it."""
        partition = self._places[0].partition
        alone = {f: count for f, count in self._alone.items() if f[2] >= since_ms}
        shown: list[str] = []
        for sign, whose in zip(SIGNS, ("app", "version"), strict=True):
            rows = [self._first[fields] for fields, count in alone.items() if count * sign > 0]
            rows.sort(key=lambda record: record.offset)
            shown += [
                f"only of the {whose}: {describe_row(topic, r, partition)}"
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
    """Waits until each of two apps has taken what the other one had taken."""

    def __init__(self, reader: LogReader, app_ids: tuple[str, str], clock: Clock) -> None:
        self._reader = reader
        self._ids = app_ids
        self._clock = clock
        self.held: list[TopicPartition] = []
        """Partitions of repartition topics of which records wait for their turn."""

    def wait(self, deadline_ms: int) -> None:
        """What was asked is what the rows that were read before are made of, or more.

        Raises:
            UsageError: one of both does not get there.
        """
        own, theirs = [self._offsets(app_id) for app_id in self._ids]
        both = {at for at in own.keys() & theirs.keys() if not self._is_internal(at)}
        self._reach({at: max(own[at], theirs[at]) for at in both}, deadline_ms)
        # Who has taken an input has written what comes of it to its repartition topics.
        topics = {at.topic for at in own.keys() | theirs.keys() if self._is_internal(at)}
        counts = self._reader.partitions()
        places = [TopicPartition(t, n) for t in sorted(topics) for n in range(counts.get(t, 0))]
        self._drain({at: end for at, (_, end) in self._reader.bounds(places).items()}, deadline_ms)

    def _reach(self, ends: Mapping[TopicPartition, int], deadline_ms: int) -> None:
        while behind := [
            (app_id, at)
            for app_id in self._ids
            for at in self._short_of(self._offsets(app_id), ends)
        ]:
            app_id, (topic, partition) = behind[0]
            if self._clock.now_ms() >= deadline_ms:
                raise UsageError(
                    f"{app_id!r} has not come to offset {ends[behind[0][1]]} of "
                    f"{topic}-{partition}, where the other one is: are its workers running? If it "
                    "is far behind, wait for longer, or compare later"
                )
            self._pause()

    def _drain(self, ends: Mapping[TopicPartition, int], deadline_ms: int) -> None:
        """What is in repartition topics is taken, but for what waits for something else."""
        before: list[TopicPartition] = []
        since_ms = self._clock.now_ms()
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
        """Where records lie between a place and the end, and not ends of transactions alone."""
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
    """From when on a version has rows of a topic."""
    cut_ms = UNKNOWN_MS if handed.cut_ms is None else handed.cut_ms
    try:
        manifest = Snapshot.open(handed.url).manifest
    except StreamlogError:
        return cut_ms  # It is gone; whether its rows were handed over, too, is not known.
    return manifest.since_ms if any(s.topic == topic for s in manifest.staged) else cut_ms
