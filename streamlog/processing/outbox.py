"""Outbox: what a task asks its runner to do after it has processed some records.

Plain data in the order in which the task produced it: records to write, async calls to await,
offsets to remember, drops to count. `Collector` fills it while the steps run, and
`assign_partitions` divides the records by partition as a producer does. Rule of the module: nothing
here says how a runner does it. Not done here: changes of state, which are in `Task.checkpoint`, as
one checkpoint may cover many outboxes.
"""

from __future__ import annotations

import struct
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal, NamedTuple, TypeVar, cast

import msgspec

from streamlog.processing.provenance import Stamps
from streamlog.record import Headers
from streamlog.records.partitioners import DEFAULT, Partitioner, partitions_by
from streamlog.records.record_columns import FieldColumns, has_none
from streamlog.serdes.erased_types import UserValue

T = TypeVar("T")
"""An entry of a column."""


class TaskCall(msgspec.Struct, frozen=True):
    """A call for the runner to await."""

    node: str
    number: int
    run: Callable[[], Awaitable[UserValue]]
    timeout_ms: int | None = None
    """The runner cancels the call after this; None: never."""
    delay_ms: int = 0
    """The runner waits this long before the call: an attempt has failed before."""


class CallResult(msgspec.Struct, frozen=True):
    """The result of a call."""

    node: str
    number: int
    value: UserValue = None
    error: Exception | None = None
    """What the call raised, or the time-out."""


LOG_TIMES_MAX = 4
"""The entries of `SinkBatch.log_times`: enough for the latency of a sink."""


def sample(column: Sequence[T]) -> Sequence[T]:
    """Return up to `LOG_TIMES_MAX` entries of a column, evenly spaced; all of a short one."""
    step = -(-len(column) // LOG_TIMES_MAX)
    return column[::step] if step > 1 else column


_TIME = struct.Struct(">q")


def _route(
    key: bytes | None, timestamp_ms: int, value: bytes | None, window_bytes: int = 0
) -> bytes:
    if key is None:
        return _TIME.pack(timestamp_ms) + (value or b"")
    return key[:-window_bytes] if window_bytes else key


class SinkRecord(NamedTuple):
    """A record to write."""

    topic: str
    partition: int | None
    """None: by `route`, as producers choose it by the key."""
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    window_bytes: int = 0
    """See `SinkBatch`."""

    @property
    def route(self) -> bytes:
        """The bytes that decide the partition: see `SinkBatch.partitions`."""
        return _route(self.key, self.timestamp_ms, self.value, self.window_bytes)


class SinkBatch(NamedTuple):
    """Records to write to one topic, as columns."""

    topic: str
    partition: int | None
    """None: by `partitions`, as producers choose it by the keys."""
    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None = None
    """None: no record has any."""
    window_bytes: int = 0
    """The number of bytes at the end of each windowed key that encode the window."""
    stamps: Stamps | None = None
    """The records' provenance in place of headers, if the runner asked for it (`Task`)."""
    partitioner: Partitioner = DEFAULT
    """The topic's partitioner."""
    log_times: Sequence[int] = ()
    """The timestamps in the log of some records from which these were made, evenly spaced."""

    def partitions(self, count: int) -> list[int]:
        """Return the partition of each record, out of `count`: by its key without the window.

        Without a key, by timestamp and value, so that every run of the task chooses equally.
        """
        # A producer would spread records without a key over the partitions. Here, a record that is
        # sent again after a crash has to go to the partition that it went to before.
        if has_none(self.keys):
            size = repeat(self.window_bytes)
            routes = map(_route, self.keys, self.timestamps, self.values, size)
            return partitions_by(self.partitioner, routes, count)
        keys = cast("Sequence[bytes]", self.keys)
        return partitions_by(self.partitioner, keys, count, self.window_bytes)

    def records(self) -> Iterator[SinkRecord]:
        """Iterate over the records."""
        headers = repeat(()) if self.headers is None else self.headers
        columns = zip(self.timestamps, self.keys, self.values, headers, strict=False)
        size = self.window_bytes
        return (SinkRecord(self.topic, self.partition, *fields, size) for fields in columns)


Reason = Literal[
    "late", "null key", "null value", "duplicate", "out of order", "error", "dead letter"
]
"""Why a record was dropped. Records that arrive "out of order" are counted but not dropped: see
`processing/inputs/repartition_input`."""


@dataclass(slots=True)
class Drop:
    """Records that a node has dropped since the last outbox."""

    node: str
    reason: Reason
    count: int = 0
    late_by_ms_max: int = 0
    """Of late records: the longest time between the window's closing and the record."""
    message: str = ""
    """Of errors: the last one."""


@dataclass(slots=True)
class Outbox:
    """Everything that one call of `Task.process` has produced."""

    writes: list[SinkBatch] = field(default_factory=list)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    """The next offset to read, for each input partition from which records were taken."""
    drops: list[Drop] = field(default_factory=list)
    """Dropped records, without late ones that a topic or a function received."""
    calls: list[TaskCall] = field(default_factory=list)
    """Calls to await concurrently; a later `Task.process` takes their results."""

    @property
    def sinks(self) -> list[SinkRecord]:
        """The records to write, one by one."""
        return [record for batch in self.writes for record in batch.records()]


def assign_partitions(
    batches: Iterable[SinkBatch], counts: Mapping[str, int]
) -> dict[tuple[str, int], FieldColumns]:
    """Return the records by topic and partition, in order; `counts` are the partition counts."""
    together: dict[tuple[str, int], FieldColumns] = {}
    for batch in batches:
        columns = FieldColumns()
        columns.extend(batch.timestamps, batch.keys, batch.values, batch.headers)
        count = counts[batch.topic]
        if count == 1 or batch.partition is not None:
            _append_columns(together, (batch.topic, batch.partition or 0), columns)
            continue
        parts = columns.parted(batch.partitions(count), count)
        for partition, part in enumerate(parts):
            if part is not None:
                _append_columns(together, (batch.topic, partition), part)
    return together


def _append_columns(
    together: dict[tuple[str, int], FieldColumns], key: tuple[str, int], more: FieldColumns
) -> None:
    known = together.setdefault(key, more)
    if known is not more:
        known.extend(more.timestamps, more.keys, more.values, more.headers)


class Collector:
    """The outbox that the steps of a task fill together."""

    def __init__(self, stamped: Collection[str] = ()) -> None:
        """Records for the topics in `stamped` carry their stamps as columns, and no headers."""
        self.stamped = stamped
        self.outbox = Outbox()
        self._drops: dict[tuple[str, Reason], Drop] = {}

    def send(self, batch: SinkBatch) -> None:
        """Add records for the runner to write, in this order; ignores an empty batch."""
        if batch.timestamps:
            self.outbox.writes.append(batch)

    def call(self, call: TaskCall) -> None:
        """Add a call for the runner to await."""
        self.outbox.calls.append(call)

    def drop(
        self, node: str, reason: Reason, count: int = 1, *, late_by_ms: int = 0, message: str = ""
    ) -> None:
        """Count records that a node drops; `count` may be 0."""
        if not count:
            return
        drop = self._drops.get((node, reason))
        if drop is None:
            drop = self._drops[node, reason] = Drop(node, reason)
            self.outbox.drops.append(drop)
        drop.count += count
        drop.late_by_ms_max = max(drop.late_by_ms_max, late_by_ms)
        drop.message = message or drop.message

    def take(self) -> Outbox:
        """Return the outbox and start a new one."""
        outbox, self.outbox = self.outbox, Outbox()
        self._drops.clear()
        return outbox
