"""The records a program sees: typed key and value with the coordinates they came from.

These are values of the public API; the bytes on the log are `records.batch.Record`. Rule of
the file: everything is frozen, times are aware datetimes (the engine inside counts integer
milliseconds and converts at its edge), and nothing here knows how a value becomes bytes.
Not done here: parsing times (`durations`) and serialization (`serdes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Names may repeat and keep their order, as on the wire."""

_KEEP = object()


@dataclass(frozen=True, slots=True)
class Record(Generic[K, V]):
    """One record of a topic, decoded.

    `timestamp` is the event time (aware). A record that was made inside the program and is
    not on the log yet has an empty `topic` and -1 for `partition` and `offset`.
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
        """The same record with another key, value or event time; coordinates stay.

        `None` is a key or a value like any other here; what is left out is kept.
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
    """The key of a windowed result: the key and the window [start, end) it belongs to."""

    key: K
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Late(Generic[V]):
    """A value that came after its window had closed.

    `late_by` is how far its source's stream time had passed the end of the window plus
    grace; it is zero for a record that came at the very moment of closing.
    """

    value: V
    late_by: timedelta
    window_end: datetime


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int
