"""Comparison: what a history has staged for a topic, against what its live app has published.

Rows are compared as multisets per partition: key, value, timestamp and headers. Rows of the log
that stand behind the last one that both have are told apart: mostly they belong to what came after
the history's end. Rule of the file: nothing is said to be equal that was not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from streamlog.assignors import TopicPartition
from streamlog.dsl.topic import Topic
from streamlog.errors import StreamlogError, UsageError
from streamlog.history.readers import LogReader
from streamlog.history.staging import read_segment
from streamlog.record import Headers
from streamlog.records.batch import Record
from streamlog.snapshots import Snapshot

SHOWN_MAX = 5
"""Rows that differ that are shown of each partition, each way."""

Fields: TypeAlias = tuple[bytes | None, bytes | None, int, Headers]


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """One partition."""

    partition: int
    equal: int
    """Rows that both have."""
    only_staged: int
    """Rows that the live app has not published."""
    only_live: int
    """Rows that the history has not, though later ones are equal."""
    later: int
    """Rows of the log behind the last one that both have."""
    shown: tuple[str, ...]
    """The first ones that differ, decoded."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A topic; as text for people."""

    topic: str
    partitions: tuple[PartitionComparison, ...]

    @property
    def is_equal(self) -> bool:
        """Whether the live app has published every row, and none but these up to the last."""
        return not any(each.only_staged or each.only_live for each in self.partitions)

    def __bool__(self) -> bool:
        return self.is_equal

    def __str__(self) -> str:
        equal = sum(each.equal for each in self.partitions)
        verdict = "equal" if self.is_equal else "DIFFERENT"
        lines = [f"{self.topic}: {verdict}, {equal} rows in both"]
        for each in self.partitions:
            lines.append(
                f"  partition {each.partition}: {each.equal} equal, {each.only_staged} only in "
                f"the history, {each.only_live} only live, {each.later} live ones later"
            )
            lines += [f"    {line}" for line in each.shown]
        return "\n".join(lines)


def compared(topic: Topic[Any, Any], snapshot: Snapshot, reader: LogReader) -> Comparison:
    """Compare a topic with the rows that are staged in a snapshot.

    Raises:
        UsageError: the log has no such topic, or nothing was staged for it.
        CorruptData: what was staged is damaged.
        StreamlogError: the log can't be read.
    """
    count = reader.partitions().get(topic.name)
    if count is None:
        raise UsageError(
            f"the log has no topic {topic.name!r}: no live app has published there, so there is "
            "nothing to compare with"
        )
    return Comparison(
        topic.name, tuple(_partition(topic, snapshot, reader, number) for number in range(count))
    )


def staged_rows(snapshot: Snapshot, topic: str, partition: int) -> Iterator[Record]:
    """The rows that are staged for a partition, task by task; offsets mean nothing.

    Raises:
        CorruptData: a file is missing, or damaged.
    """
    place = (topic, partition)
    for part in (p for p in snapshot.manifest.staged if (p.topic, p.partition) == place):
        with snapshot.place.checked(part) as path:
            for batch in read_segment(path):
                yield from batch.records()


def _partition(
    topic: Topic[Any, Any], snapshot: Snapshot, reader: LogReader, partition: int
) -> PartitionComparison:
    wanted = Counter(map(_fields, staged_rows(snapshot, topic.name, partition)))
    total = wanted.total()
    live_only: list[Record] = []
    later: list[Record] = []
    for record in _live(reader, TopicPartition(topic.name, partition)):
        fields = _fields(record)
        if wanted[fields] > 0:
            wanted[fields] -= 1
            live_only += later
            later = []
        else:
            later.append(record)
    missing = Counter({fields: count for fields, count in wanted.items() if count > 0})
    shown = [
        f"only in the history: {_told(topic, Record(-1, f[2], f[0], f[1], f[3]), partition)}"
        for f in islice(missing.elements(), SHOWN_MAX)
    ]
    shown += [f"only live: {_told(topic, each, partition)}" for each in live_only[:SHOWN_MAX]]
    equal = total - missing.total()
    return PartitionComparison(
        partition, equal, missing.total(), len(live_only), len(later), tuple(shown)
    )


def _live(reader: LogReader, place: TopicPartition) -> Iterator[Record]:
    for at, (start, end) in reader.bounds([place]).items():
        for records, *_ in reader.read(at, start, end):
            yield from records


def _fields(record: Record) -> Fields:
    return record.key, record.value, record.timestamp_ms, tuple(record.headers)


def _told(topic: Topic[Any, Any], record: Record, partition: int) -> str:
    try:
        shown = topic.decoded(record, partition)
    except StreamlogError:
        return repr(record)
    at = f" at offset {record.offset}" if record.offset >= 0 else ""
    return f"{shown.key!r} = {shown.value!r}, {shown.timestamp.isoformat()}{at}"
