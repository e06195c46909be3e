"""Comparison: a history's staged rows for a topic, compared with the live app's rows.

Rows are compared as multisets per partition: key, value, timestamp and headers. Live rows after the
last equal row are counted apart, because most of them follow from records after the history's end.
The first rows that differ are shown with their input records (`lineage`), for which the history
runs once more. Rule of the file: rows count as equal only if they were compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from streamlog.dsl.topic import Topic
from streamlog.errors import StreamlogError, UsageError, quantity
from streamlog.history.readers import LogReader
from streamlog.history.staging import read_segment
from streamlog.record import Headers, TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.replace import replace
from streamlog.snapshots import Snapshot
from streamlog.snapshots.job_notes import ComparisonNote

SHOWN_MAX = 5
"""Rows shown per partition and side, of those that differ."""

Fields: TypeAlias = tuple[bytes | None, bytes | None, int, Headers]
Inputs: TypeAlias = Callable[
    [Collection[Fields], Collection[Fields]], Mapping[Fields, Sequence[str]]
]
"""Takes rows that only the history has, and rows that it lacks; returns each row's inputs."""


class RowDifference(msgspec.Struct, frozen=True):
    """A row that only the history or only the live app has."""

    is_staged: bool
    """Whether the history has the row; else the live app has it."""
    row: LogRecord
    """The row; its offset is -1 if it is staged."""
    text: str
    """The row, decoded, as text."""
    inputs: tuple[str, ...] = ()
    """The last input records of the row in the history, as text; empty if they were not looked for,
    or if the history has none of its key."""

    @property
    def lines(self) -> Iterator[str]:
        """The difference as lines of a report."""
        yield f"only {'in the history' if self.is_staged else 'live'}: {self.text}"
        for each in self.inputs:
            yield f"  {each}"


class PartitionComparison(msgspec.Struct, frozen=True):
    """The comparison of one partition, in numbers of rows."""

    partition: int
    equal: int
    """Rows that both have."""
    only_staged: int
    """Rows that the live app has not published."""
    only_live: int
    """Rows that the history lacks, though a later live row is equal."""
    later: int
    """Live rows after the last equal row."""
    differences: tuple[RowDifference, ...]
    """The first rows that differ."""


class Comparison(msgspec.Struct, frozen=True):
    """A topic's staged rows compared with its live rows; `str` is a report."""

    topic: str
    partitions: tuple[PartitionComparison, ...]

    @property
    def is_equal(self) -> bool:
        """Whether the live app has published the staged rows, and no others up to the last one."""
        return not any(each.only_staged or each.only_live for each in self.partitions)

    def __bool__(self) -> bool:
        return self.is_equal

    def note(self, at_ms: int) -> ComparisonNote:
        """Return what others are shown of it."""
        return ComparisonNote(self.topic, at_ms, self.is_equal, str(self))

    def __str__(self) -> str:
        equal = sum(each.equal for each in self.partitions)
        verdict = "equal" if self.is_equal else "DIFFERENT"
        lines = [f"{self.topic}, history and live: {verdict}, {quantity(equal, 'equal row')}"]
        for each in self.partitions:
            lines.append(
                f"  partition {each.partition}: {each.equal} equal, {each.only_staged} only in the "
                f"history, {each.only_live} only live, {quantity(each.later, 'live row')} after "
                "the last equal one"
            )
            lines += [f"    {line}" for found in each.differences for line in found.lines]
        return "\n".join(lines)


def compare_topic(
    topic: Topic[Any, Any],
    snapshot: Snapshot,
    reader: LogReader,
    inputs: Inputs | None = None,
) -> Comparison:
    """Compare a topic with the rows that are staged in a snapshot.

    Args:
        topic: an output topic of the app.
        snapshot: the snapshot of the app's history.
        reader: reads the log.
        inputs: finds the input records of rows that differ; None shows none.

    Raises:
        UsageError: the log has no such topic.
        CorruptData: a staged file is damaged.
        StreamlogError: the log can't be read.
    """
    count = reader.partitions().get(topic.name)
    if count is None:
        raise UsageError(
            f"the log has no topic {topic.name!r}: no live app has published rows to compare with"
        )
    partitions = [_partition(topic, snapshot, reader, number) for number in range(count)]
    if inputs is not None:
        partitions = _explained(partitions, inputs)
    return Comparison(topic.name, tuple(partitions))


def _explained(found: Sequence[PartitionComparison], inputs: Inputs) -> list[PartitionComparison]:
    """Add the input records of the rows that differ."""
    rows = [each for partition in found for each in partition.differences]
    if not rows:
        return [*found]
    staged = {fields_of(each.row) for each in rows if each.is_staged}
    missing = {fields_of(each.row) for each in rows if not each.is_staged} - staged
    led = inputs(staged, missing)
    return [
        replace(
            partition,
            differences=tuple(
                replace(each, inputs=tuple(led.get(fields_of(each.row), ())))
                for each in partition.differences
            ),
        )
        for partition in found
    ]


def staged_rows(snapshot: Snapshot, topic: str, partition: int) -> Iterator[LogRecord]:
    """Yield the rows that are staged for a partition, task by task; their offsets mean nothing.

    Raises:
        CorruptData: a file is missing or damaged.
    """
    wanted = (topic, partition)
    for part in (p for p in snapshot.manifest.staged if (p.topic, p.partition) == wanted):
        with snapshot.store.checked(part) as path:
            for batch in read_segment(path):
                yield from batch.records()


def _partition(
    topic: Topic[Any, Any], snapshot: Snapshot, reader: LogReader, partition: int
) -> PartitionComparison:
    # A multiset, because equal rows may occur several times.
    wanted = Counter(map(fields_of, staged_rows(snapshot, topic.name, partition)))
    total = wanted.total()
    live_only: list[LogRecord] = []
    later: list[LogRecord] = []
    for record in live_rows(reader, TopicPartition(topic.name, partition)):
        fields = fields_of(record)
        if wanted[fields] > 0:
            wanted[fields] -= 1
            # These came before an equal row, so the history should have had them.
            live_only += later
            later = []
        else:
            later.append(record)
    missing = Counter({fields: count for fields, count in wanted.items() if count > 0})
    staged = (LogRecord(-1, f[2], f[0], f[1], f[3]) for f in missing.elements())
    differences = [
        RowDifference(is_staged, row, describe_row(topic, row, partition))
        for is_staged, rows in ((True, staged), (False, live_only))
        for row in islice(rows, SHOWN_MAX)
    ]
    equal = total - missing.total()
    return PartitionComparison(
        partition, equal, missing.total(), len(live_only), len(later), tuple(differences)
    )


def live_rows(reader: LogReader, partition: TopicPartition) -> Iterator[LogRecord]:
    """Yield the committed records of a partition, up to its end at the time of the call.

    Raises:
        StreamlogError: the log can't be read.
    """
    for at, (start, end) in reader.bounds([partition]).items():
        for records, *_ in reader.read(at, start, end):
            yield from records


def fields_of(record: LogRecord) -> Fields:
    """Return the fields of a row that are compared."""
    return record.key, record.value, record.timestamp_ms, tuple(record.headers)


def describe_row(topic: Topic[Any, Any], record: LogRecord, partition: int) -> str:
    """Return a row as text, decoded if possible."""
    try:
        shown = topic.decoded(record, partition)
    except StreamlogError:
        return repr(record)
    at = f" at offset {record.offset}" if record.offset >= 0 else ""
    return f"{shown.key!r} = {shown.value!r}, {shown.timestamp.isoformat()}{at}"
