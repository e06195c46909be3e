"""Outbox: what a task wants to be done after it has taken in some records.

Plain data between the engine and its runner, in the order in which it was produced. Rule of
the file: nothing here says how it is done. A runner sends `writes` (or `sinks`, the same record
by record), remembers `offsets`, counts `drops` and awaits `calls`; the state's changes are not
here but in `Task.checkpoint`, since one checkpoint may cover many outboxes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal, NamedTuple, cast

from streamlog.processing.calls import Call
from streamlog.processing.provenance import Stamps
from streamlog.record import Headers
from streamlog.records.columns import has_none
from streamlog.records.partitioners import DEFAULT, Partitioner, partitions_by

_TIME = struct.Struct(">q")


def _route(
    key: bytes | None, timestamp_ms: int, value: bytes | None, window_bytes: int = 0
) -> bytes:
    if key is None:
        return _TIME.pack(timestamp_ms) + (value or b"")
    return key[:-window_bytes] if window_bytes else key


class SinkRecord(NamedTuple):
    """A record to be written."""

    topic: str
    partition: int | None
    """None: by `route`, as producers do it by the key."""
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    window_bytes: int = 0
    """See `SinkBatch`."""

    @property
    def route(self) -> bytes:
        """What decides the partition: see `SinkBatch.partitions`."""
        return _route(self.key, self.timestamp_ms, self.value, self.window_bytes)


class SinkBatch(NamedTuple):
    """Records to be written to one topic, as columns."""

    topic: str
    partition: int | None
    """None: by `partitions`, as producers do it by the keys."""
    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None = None
    """None: no record has any."""
    window_bytes: int = 0
    """Of windowed keys: so many bytes at their ends are the window's."""
    stamps: Stamps | None = None
    """In place of headers, if the runner has asked for that (`Task`): where records came from."""
    partitioner: Partitioner = DEFAULT
    """Of the topic."""

    def partitions(self, count: int) -> list[int]:
        """Which of so many partitions each record goes to: by its key, without its window.

        Without a key, by its timestamp and value, so that it is the same whoever runs the task.
        """
        if has_none(self.keys):
            size = repeat(self.window_bytes)
            routes = map(_route, self.keys, self.timestamps, self.values, size)
            return partitions_by(self.partitioner, routes, count)
        keys = cast("Sequence[bytes]", self.keys)
        return partitions_by(self.partitioner, keys, count, self.window_bytes)

    def records(self) -> Iterator[SinkRecord]:
        """One by one."""
        headers = repeat(()) if self.headers is None else self.headers
        columns = zip(self.timestamps, self.keys, self.values, headers, strict=False)
        size = self.window_bytes
        return (SinkRecord(self.topic, self.partition, *fields, size) for fields in columns)


Reason = Literal[
    "late", "null key", "null value", "duplicate", "out of order", "error", "dead letter"
]
"""Records that come "out of order" are not left out: see `processing/merged`."""


@dataclass(slots=True)
class Drop:
    """Records that a node left out, since the last outbox."""

    node: str
    reason: Reason
    count: int = 0
    late_by_ms_max: int = 0
    """Of late records: how long after its closing the latest of them came."""
    told: str = ""
    """Of errors: the last one."""


@dataclass(slots=True)
class Outbox:
    """Everything that one call of `Task.process` gave."""

    writes: list[SinkBatch] = field(default_factory=list)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    """The next offset to read, for each input partition of which records were taken in."""
    drops: list[Drop] = field(default_factory=list)
    """Late records that went to a topic or a function are not among them."""
    calls: list[Call] = field(default_factory=list)
    """To be awaited, all at a time; `Task.process` takes their results some other time."""

    @property
    def sinks(self) -> list[SinkRecord]:
        """What is to be written, record by record."""
        return [record for batch in self.writes for record in batch.records()]
