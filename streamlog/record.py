"""The records that a program sees: typed key and value, with their coordinates.

These are values of the public API; the bytes on the log are `records.batch.LogRecord`. Rule of
the file: everything is frozen, times are aware datetimes (the engine inside counts integer
milliseconds and converts at its edge), and nothing here knows how a value becomes bytes.
Not done here: parsing times (`durations`) and serialization (`serdes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Header names and values. Names may repeat, and keep their order, as on the wire (KIP-82)."""

GivenHeaders: TypeAlias = (
    Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
)
"""Headers as a program gives them: values by name, or pairs whose names may repeat. Text is written
as UTF-8; None is a header without a value."""

_KEEP = object()


@dataclass(frozen=True, slots=True)
class Record(Generic[K, V]):
    """One decoded record of a topic.

    Attributes:
        key: the key, or None.
        value: the value; None deletes the key from tables.
        timestamp: the event time, an aware datetime.
        headers: names and bytes, in the order of the wire.
        topic: the topic's name; "" for a record that the program created and the log does not hold
            yet.
        partition: the partition number; -1 if `topic` is "".
        offset: the offset in the partition; -1 if `topic` is "".
    """

    key: K
    value: V
    timestamp: datetime
    headers: Headers = ()
    topic: str = ""
    partition: int = -1
    offset: int = -1

    def replace(
        self, *, key: object = _KEEP, value: object = _KEEP, timestamp: datetime | None = None
    ) -> Record[Any, Any]:
        """Return a copy with another key, value or event time, and equal coordinates.

        Args:
            key: the new key; None is a valid key. The key stays if this is left out.
            value: the new value; None is a valid value. The value stays if this is left out.
            timestamp: the new event time, aware; None keeps it.
        """
        return Record(
            key=self.key if key is _KEEP else key,
            value=self.value if value is _KEEP else value,
            timestamp=self.timestamp if timestamp is None else timestamp,
            headers=self.headers,
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
        )


@dataclass(frozen=True, slots=True)
class Windowed(Generic[K]):
    """The key of a windowed result: the record key with the window's start and end.

    A window of time is half open, [start, end). Both ends belong to a session, to a sliding window
    and to a count window.
    """

    key: K
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Late(Generic[V]):
    """A value that arrived after its window had closed.

    Attributes:
        value: the value of the late record.
        late_by: how far the stream time of the record's source had passed the window's end plus
            grace; zero for a record that arrived at the moment of closing.
        window_end: the end of the window.
    """

    value: V
    late_by: timedelta
    window_end: datetime


class TopicPartition(NamedTuple):
    """A topic's name and a partition number, 0 or more."""

    topic: str
    partition: int
