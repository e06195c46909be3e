"""Slice: records of one partition, deserialized in advance for an agent's loop.

Values are deserialized at once, because most loops need nothing else; keys and records are made on
demand.

Rule: a slice ends before a record that can't be deserialized. Its error is raised when it would be
the next record, so that all records before it are handled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from streamlog.agents.asks import Answer, asks_of, no_answer
from streamlog.agents.offsets import AgentProgress
from streamlog.dsl.topic import Topic
from streamlog.durations import moment, when_ms
from streamlog.errors import ProcessingError
from streamlog.processing.column_batch import deserialize_column, map_until_error, processing_error
from streamlog.processing.inputs.record_queue import EventTimes, seconds_hint
from streamlog.processing.inputs.schema_headers import absorb_record
from streamlog.record import Record
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.serdes.erased_types import AnyRecord, AnySerde, UserKey, UserValue
from streamlog.windows.emit import FAR_MS

logger = logging.getLogger(__name__)


class SlicePart:
    """A partition that an agent reads, and the agent's progress in it."""

    def __init__(
        self, topic: Topic[UserKey, UserValue], partition: int, progress: AgentProgress
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.progress = progress
        self.is_revoked = False
        """Whether its current records will be read again, here or by another worker."""
        self._has_warned = False

    def look_for_seconds(self, offset: int, timestamp_ms: int) -> None:
        """Log a warning, once, if an event time looks like seconds instead of milliseconds."""
        where = f"{self.topic.name}-{self.partition}, offset {offset}"
        if not self._has_warned and (hint := seconds_hint(where, timestamp_ms)) is not None:
            self._has_warned = True
            logger.warning("%s", hint)

    def failed(self, node: str, record: RawRecord, error: Exception) -> ProcessingError:
        """Return an error of a node with the coordinates of the record."""
        return processing_error(node, self.topic.name, self.partition, record.offset, error)


RowAt = tuple[str, int, bytes]
"""A row of a table: the node that keeps it, the partition, and the key as bytes."""


class Written(NamedTuple):
    """A row that an agent has set while it handled a record."""

    data: bytes | None
    """The serialized value; None deletes the row."""
    stored: bytes | None
    """The value as the table's store keeps it."""
    timestamp_ms: int
    """The record's event time."""


Keep = Callable[[Mapping[RowAt, Written]], None]
"""Takes the rows that were set for records that are handled now."""


class Slice:
    """Consecutive records of one partition, for one call.

    Two indexes divide them: rows before `_settled` are handled, rows from `_settled` to `given` are
    current, and the call has not got the rows from `given` on.
    """

    def __init__(
        self,
        part: SlicePart,
        raws: Sequence[RawRecord],
        node: str,
        *,
        lane: Hashable | None = None,
        answer: Answer = no_answer,
        now_ms: int = FAR_MS,
    ) -> None:
        """Deserialize the values and determine the event times.

        Args:
            part: the partition of the records.
            raws: the records.
            node: the agent's name, for messages.
            lane: the lane that these records occupy until they are handled.
            answer: sends answers to asks.
            now_ms: the wall clock, for `timestamp_ahead_max`.
        """
        self.part = part
        self.lane = lane
        """The lane that these records occupy until they are handled."""
        self.given = 0
        """The number of records that the call has got; the last of them is current."""
        self.raws = [absorb_record(part.topic.spec, raw) for raw in raws]
        self.values: list[UserValue] = []
        self.results: list[tuple[int, bool, UserValue]] = []
        """Yielded values: the index of the record, whether the value is for that record alone (not
        for a list that ends with it), and the value."""
        self.failure: ProcessingError | None = None
        """The error of the record that can't be deserialized, which would follow the last one."""
        self.bad: RawRecord | None = None
        """The record that can't be deserialized."""
        self.rest: list[RawRecord] = []
        """The records after it."""
        self.written: dict[RowAt, Written] = {}
        """The rows that were set for the current record, or for the current list."""
        self._written_by = -1
        self._keep: Keep = _keep_nothing
        self._asks = asks_of(raws)
        self._answer = answer
        self._node = node
        self._settled = 0
        self._keys: list[UserKey] | None = None
        self.values = self._read(part.topic.spec.value, [raw.value for raw in self.raws])
        self._times = self._read_times(EventTimes.of(part.topic.spec, now_ms))

    @property
    def is_used_up(self) -> bool:
        """Whether all records were given."""
        return self.given >= len(self.values)

    @property
    def is_asked(self) -> bool:
        """Whether one of the records awaits an answer."""
        return bool(self._asks)

    @property
    def current(self) -> RawRecord | None:
        """The record that was given last; None before the first."""
        return self.raws[self.given - 1] if self.given else None

    @property
    def all_current(self) -> list[RawRecord]:
        """The records that were given and are not handled."""
        return self.raws[self._settled : self.given]

    def write(self, at: RowAt, row: Written, *, keep: Keep) -> None:
        """Set a row for the current record; `keep` gets it once the record is handled."""
        self.written[at] = row
        self._written_by = self.given - 1
        self._keep = keep

    def keys(self) -> Sequence[UserKey]:
        """Return the keys of the records that were not given yet, with None for those before.

        A key that can't be deserialized ends the slice before its record.
        """
        if self._keys is None:
            column = [raw.key for raw in self.raws[self.given :]]
            self._keys = [None] * self.given
            self._keys += self._read(self.part.topic.spec.key, column)
        return self._keys

    def timestamp_ms(self, row: int) -> int:
        """Return the event time of a record, by its index."""
        return self._times[row]

    def record(self, row: int) -> AnyRecord:
        """Return a record with its key and coordinates, by its index."""
        part, raw, key = self.part, self.raws[row], self.keys()[row]
        timestamp = moment(self.timestamp_ms(row))
        at = (part.topic.name, part.partition, raw.offset)
        return Record(key, self.values[row], timestamp, raw.headers, *at)

    def answer(self, data: bytes | None, *, of_list: bool) -> None:
        """Answer the ask of the current record; for a list, the asks of all its records."""
        if self._asks:
            first = self._settled if of_list else self.given - 1
            self._answer_rows(range(first, self.given), data)

    def settle(self, until: int) -> None:
        """Declare the records before this index handled."""
        if until > self._settled:
            # An ask whose record was handled without a yield is answered with None.
            if self._asks:
                self._answer_rows(range(self._settled, until), None)
            self.part.progress.done(self.raws[self._settled : until])
            self._settled = until
            # Rows of the current record stay until it is handled too.
            if self.written and self._written_by < until:
                written, self.written = self.written, {}
                if not self.part.is_revoked:
                    # The new owner reads the record of a revoked partition again, and sets the row.
                    self._keep(written)

    def current_records(self) -> list[tuple[SlicePart, RawRecord]]:
        """Return the current records, with their partition."""
        return [(self.part, raw) for raw in self.raws[self._settled : self.given]]

    def take_back(self) -> None:
        """Make the current records the next to give; drop the values and rows made for them."""
        self.given = self._settled
        self.written = {}
        self.results = [each for each in self.results if each[0] < self.given]

    def cut(self) -> None:
        """Drop the records that were not given."""
        del self.values[self.given :]
        del self.raws[self.given :]
        self.failure = self.bad = None
        self.rest = []

    def _answer_rows(self, rows: Iterable[int], data: bytes | None) -> None:
        for row in rows:
            ask = self._asks.pop(row, None)
            if ask is not None:
                self._answer(ask, data)

    def _read(self, serde: AnySerde, column: list[bytes | None]) -> list[UserValue]:
        """Deserialize a column whose first item belongs to the next record to give."""
        try:
            return deserialize_column(serde, column)
        except Exception:  # noqa: BLE001 - user code: the error is kept below
            # The whole column failed: read item by item to find the one that fails.
            loads = serde.loads
            read, error = map_until_error(
                lambda data: None if data is None else loads(data), column
            )
        if error is not None:
            self._end_before(self.given + len(read), error)
        return read

    def _read_times(self, accepted: EventTimes) -> list[int]:
        """Return the event times; a record without a valid one ends the slice before it."""
        extract = self.part.topic.spec.timestamp

        def time_of(raw: RawRecord, value: UserValue) -> int:
            timestamp_ms = raw.timestamp_ms
            if extract is not None and value is not None:
                timestamp_ms = when_ms(extract(value))
            accepted.check(timestamp_ms)
            return timestamp_ms

        times, error = map_until_error(time_of, self.raws[: len(self.values)], self.values)
        if error is not None:
            self._end_before(len(times), error)
        if times:
            self.part.look_for_seconds(self.raws[0].offset, times[0])
        return times

    def _end_before(self, end: int, error: Exception) -> None:
        """End the slice before a record that can't be deserialized; keep the rest for another."""
        rest = self.raws[end + 1 :]
        # 1. The value of record 7 can't be deserialized: `bad` is 7, `rest` is 8 and 9.
        # 2. Later, the key of record 5 can't be deserialized: `bad` is 5, `rest` is 6 to 9.
        if self.bad is not None:
            rest += [self.bad, *self.rest]
        self.failure = self.part.failed(self._node, self.raws[end], error)
        self.failure.__cause__ = error
        self.bad, self.rest = self.raws[end], rest
        del self.values[end:]
        del self.raws[end:]


def _keep_nothing(_: Mapping[RowAt, Written]) -> None:
    """Do nothing: no row was set."""
