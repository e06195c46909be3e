"""Chunk: records of one input partition that arrived together, read into columns.

Read as a whole, in loops that run in C; only if one of them can't be read, one by one, so that the
others go on and what becomes of that one is seen when it is its turn. Not done here: whose turn it
is (`record_queue`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat, starmap
from typing import Any

from streamlog.durations import when_ms
from streamlog.errors import ProcessingError, SerdeError
from streamlog.processing.columns import RawKeys, failed, until_error
from streamlog.processing.dead_letters import Letter
from streamlog.processing.event_times import ANY_TIME, EventTimes, RefusedTime
from streamlog.processing.failures import NodeFailures
from streamlog.processing.serialized import loads_all
from streamlog.record import Headers
from streamlog.records.batch import Record
from streamlog.records.columns import RecordColumns, all_ascii, first_outside, running_max
from streamlog.serdes import StrSerde
from streamlog.topology import TopicSpec
from streamlog.windows.emit import UNKNOWN_MS


class Chunk:
    """Decoded records of one arrival, in offset order, taken from the front."""

    __slots__ = (
        "_accepted",
        "_keys",
        "at",
        "bad",
        "headers",
        "offsets",
        "raw_keys",
        "raw_values",
        "times",
        "timestamps",
        "values",
    )

    def __init__(
        self,
        records: RecordColumns,
        topic: TopicSpec,
        partition: int,
        failures: NodeFailures | None = None,
        accepted: EventTimes = ANY_TIME,
    ) -> None:
        """Read records.

        Args:
            records: as they arrived.
            topic: that they are of.
            partition: of the topic.
            failures: what becomes of those that can't be read; None: the first one is raised.
            accepted: the timestamps that are event time.

        Raises:
            ProcessingError: one can't be read, or has no event time, and there is no policy.
        """
        self._accepted = accepted
        timestamps = records.timestamps
        self.at = 0
        self.offsets: Sequence[int] = records.offsets
        self.raw_keys: Sequence[bytes | None] = records.keys
        self.raw_values: Sequence[bytes | None] = records.values
        self.headers: Sequence[Headers] | None = records.headers
        self._keys: list[Any] | RawKeys = []
        self.values: Sequence[Any] = ()
        self.timestamps: Sequence[int] = ()
        self.bad: dict[int, Letter] = {}
        """By offset: what could not be read, and stands in the columns as None."""
        try:
            self._read(topic, partition, timestamps)
        except ProcessingError:
            if failures is None:
                raise
            self._read_each(topic, partition, timestamps, failures)
        self.times: list[int] = []

    def _read(self, topic: TopicSpec, partition: int, timestamps: Sequence[int]) -> None:
        offsets = self.offsets
        if type(topic.key) is StrSerde and all_ascii(self.raw_keys):
            # Sure to be text, which not everybody asks for.
            self._keys = RawKeys(topic.key, self.raw_keys)
        else:
            self._keys = _decoded(self.raw_keys, topic, "key", partition, offsets)
        self.values = _decoded(self.raw_values, topic, "value", partition, offsets)
        self.timestamps = _extracted(self.values, timestamps, topic, partition, offsets)
        accepted = self._accepted
        if (at := first_outside(self.timestamps, 0, accepted.newest_ms)) >= 0:
            try:
                accepted.check(self.timestamps[at])
            except RefusedTime as error:
                raise failed(topic.name, topic.name, partition, offsets[at], error) from error

    def _read_each(
        self, topic: TopicSpec, partition: int, timestamps: Sequence[int], failures: NodeFailures
    ) -> None:
        """Some can't be read. What becomes of those is seen when it is their turn."""
        rows: list[tuple[Any, Any, int]] = []
        headers = repeat(()) if self.headers is None else self.headers
        raws = (self.raw_keys, self.raw_values, headers)
        for record in starmap(Record, zip(self.offsets, timestamps, *raws, strict=False)):
            letter = partial(_letter_of, record, topic, partition)
            row = failures.tried(partial(_read_one, record, topic, self._accepted), letter)
            if isinstance(row, Letter):
                self.bad[record.offset] = row
                row = (None, None, UNKNOWN_MS)
            rows.append(row)
        self._keys, self.values, self.timestamps = map(list, zip(*rows, strict=True))

    def count_from(self, time_ms: int) -> int:
        """Set the running maximum of timestamps; returns the last one."""
        self.times = running_max(self.timestamps, time_ms)
        return self.times[-1]

    @property
    def keys(self) -> list[Any]:
        """The keys, read."""
        if isinstance(self._keys, RawKeys):
            self._keys = self._keys.objects()
        return self._keys

    @property
    def unmade_keys(self) -> list[Any] | RawKeys:
        """The keys, not read before somebody asks for them if that can wait."""
        return self._keys

    def part(self, low: int, high: int) -> Chunk:
        """The records from `low` up to but not including `high`, all of them to be taken."""
        run = slice(low, high)
        part = object.__new__(Chunk)
        part.at = 0
        part.offsets = self.offsets[run]
        part.raw_keys = self.raw_keys[run]
        part.raw_values = self.raw_values[run]
        part.headers = None if self.headers is None else self.headers[run]
        part._keys = self._keys.part(run) if isinstance(self._keys, RawKeys) else self._keys[run]
        part.values = self.values[run]
        part.timestamps = self.timestamps[run]
        part.times = self.times[run]
        part.bad = self.bad
        return part

    def __len__(self) -> int:
        return len(self.offsets) - self.at


def _decoded(
    raw: Sequence[bytes | None],
    topic: TopicSpec,
    what: str,
    partition: int,
    offsets: Sequence[int],
) -> list[Any]:
    serde = topic.key if what == "key" else topic.value
    try:
        return loads_all(serde, raw)
    except Exception:  # noqa: BLE001 - a serde of the user: found and raised again below
        # Which one was it, and why? Again one by one.
        loads = serde.loads
        decoded, error = until_error(lambda data: None if data is None else loads(data), raw)
    if error is not None:
        cause = SerdeError(f"{what}: {error}")
        raise failed(topic.name, topic.name, partition, offsets[len(decoded)], cause) from error
    return decoded


def _extracted(
    values: Sequence[Any],
    timestamps: Sequence[int],
    topic: TopicSpec,
    partition: int,
    offsets: Sequence[int],
) -> Sequence[int]:
    """Event times by the user's function; a deletion keeps its record's own timestamp."""
    extract = topic.timestamp
    if extract is None:
        return timestamps
    found, error = until_error(
        lambda value, ms: ms if value is None else when_ms(extract(value)), values, timestamps
    )
    if error is not None:
        node = f"timestamp of {topic.name}"
        raise failed(node, topic.name, partition, offsets[len(found)], error) from error
    return found


def _read_one(record: Record, topic: TopicSpec, accepted: EventTimes) -> tuple[Any, Any, int]:
    """Key, value and event time of one record."""
    key = None if record.key is None else topic.key.loads(record.key)
    value = None if record.value is None else topic.value.loads(record.value)
    timestamp_ms = record.timestamp_ms
    if topic.timestamp is not None and value is not None:
        timestamp_ms = when_ms(topic.timestamp(value))
    accepted.check(timestamp_ms)
    return key, value, timestamp_ms


def _letter_of(
    record: Record, topic: TopicSpec, partition: int, error: Exception, attempt: int
) -> Letter:
    return Letter(
        topic=topic.name,
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
        node=topic.name,
        error=error,
        attempt=attempt,
        is_internal=topic.internal,
    )
