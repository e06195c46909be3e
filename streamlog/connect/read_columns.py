"""Read columns: the records of a Read that were given as columns, not as objects.

Rule: columns stay as they were given until something needs records. A worker writes bytes without
an object for each record; the test driver and transforms ask for records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamlog.durations import moment
from streamlog.errors import ConfigError
from streamlog.record import Headers, Record
from streamlog.serdes.erased_types import UserObject, UserValue


@dataclass(frozen=True, slots=True)
class RawRecords:
    """Keys and values as bytes.

    Attributes:
        values: the values; None is a tombstone.
        keys: a key for each value, or None for no keys.
        timestamps_ms: a time for each value in milliseconds since 1970, or None for now.
        headers: the headers of each value, or None for none.
        topic: the connector's own name of the topic; "" if it has one topic.
    """

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    timestamps_ms: Sequence[int] | None
    headers: Sequence[Headers] | None
    topic: str

    def records(self, now: datetime) -> list[Record[Any, Any]]:
        """Return the records, with bytes for keys and values."""
        # Missing columns become rows of nothing, so one comprehension serves all forms.
        count = len(self.values)
        keys = self.keys or (None,) * count
        headers = self.headers or ((),) * count
        times = [now] * count if self.timestamps_ms is None else map(moment, self.timestamps_ms)
        return [
            Record(key, value, time, header, self.topic)
            for key, value, time, header in zip(keys, self.values, times, headers, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The rows of a `pyarrow.RecordBatch`, each one a record.

    Attributes:
        rows: the batch.
        key: the columns of the key.
        timestamp: the column of the event time; None for now.
        topic: the connector's own name of the topic; "" if it has one topic.
    """

    rows: UserObject
    key: tuple[str, ...]
    timestamp: str | None
    topic: str

    def __len__(self) -> int:
        """Return the number of rows."""
        count: int = self.rows.num_rows
        return count

    def records(self, now: datetime) -> list[Record[Any, Any]]:
        """Return a record for each row, whose value is the row as a dict.

        Raises:
            ConfigError: a column of key or time is not in the rows, or the time has no zone.
        """
        known = self.rows.schema.names
        for name in (*self.key, self.timestamp):
            if name is not None and name not in known:
                raise ConfigError(f"the rows have no column {name}; they have {', '.join(known)}")
        return [
            Record(self._key(row), row, self._time(row, now), (), self.topic)
            for row in self.rows.to_pylist()
        ]

    def _key(self, row: Mapping[str, UserValue]) -> UserValue:
        if len(self.key) == 1:
            return row[self.key[0]]
        return {name: row[name] for name in self.key} or None

    def _time(self, row: Mapping[str, UserValue], now: datetime) -> datetime:
        if self.timestamp is None:
            return now
        time = row[self.timestamp]
        if not isinstance(time, datetime) or time.tzinfo is None:
            raise ConfigError(
                f"the column {self.timestamp} has {time!r}, which is no point in time: give it the "
                "type timestamp with a time zone"
            )
        return time
