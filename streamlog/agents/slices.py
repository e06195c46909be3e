"""Slice: records of one partition, decoded ahead for an agent's loop.

Values are read at once, as most loops want nothing else; keys and records when they are asked
for. Rule of the file: what can't be read ends the slice before it, and is raised when its turn
comes, so that everything before it is handled.
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
from streamlog.record import Record
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.serdes.erased_types import AnyRecord, AnySerde, UserKey, UserValue
from streamlog.windows.emit import FAR_MS

logger = logging.getLogger(__name__)


class SlicePart:
    """A partition that an agent reads."""

    def __init__(
        self, topic: Topic[UserKey, UserValue], partition: int, progress: AgentProgress
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.progress = progress
        self.is_over = False
        """It was given up, or is read anew: what is still in hand of it comes again elsewhere."""
        self._has_told_seconds = False

    def look_for_seconds(self, offset: int, timestamp_ms: int) -> None:
        """Log, once, that event time looks like seconds."""
        where = f"{self.topic.name}-{self.partition}, offset {offset}"
        if not self._has_told_seconds and (hint := seconds_hint(where, timestamp_ms)) is not None:
            self._has_told_seconds = True
            logger.warning("%s", hint)

    def failed(self, node: str, record: RawRecord, error: Exception) -> ProcessingError:
        """An error at one of its records, with coordinates."""
        return processing_error(node, self.topic.name, self.partition, record.offset, error)


RowAt = tuple[str, int, bytes]
"""A row of a table: the node that keeps it, the partition, and the key as bytes."""


class Written(NamedTuple):
    """A row that a record has set."""

    data: bytes | None
    """The value; None: it is deleted."""
    stored: bytes | None
    """As the table's task keeps it."""
    timestamp_ms: int
    """The record's event time."""


Keep = Callable[[Mapping[RowAt, Written]], None]
"""Takes what a record has set that is handled."""


class Slice:
    """Records of one partition."""

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
        """Reads the values and the event times.

        Args:
            part: where the records are from.
            raws: the records.
            node: the agent, for messages.
            lane: others wait in it until these records are handled.
            answer: sends answers.
            now_ms: the clock, for `timestamp_ahead_max`.
        """
        self.part = part
        self.lane = lane
        """Others wait in it until these records are handled."""
        self.given = 0
        """How many have been handed out; the last of them is in hand."""
        self.raws = list(raws)
        self.values: list[UserValue] = []
        self.results: list[tuple[int, bool, UserValue]] = []
        """What was yielded: for which row, whether for it alone, and what."""
        self.failure: ProcessingError | None = None
        """Of the record behind the last one."""
        self.bad: RawRecord | None = None
        """That record."""
        self.rest: list[RawRecord] = []
        """Those behind it."""
        self.written: dict[RowAt, Written] = {}
        """Rows that the record in hand has set, or all of a list."""
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
        """Whether all have been handed out."""
        return self.given >= len(self.values)

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for an answer to one of them."""
        return bool(self._asks)

    @property
    def in_hand(self) -> RawRecord | None:
        """The record that was handed out last."""
        return self.raws[self.given - 1] if self.given else None

    @property
    def in_hands(self) -> list[RawRecord]:
        """The records that have been handed out and are not handled."""
        return self.raws[self._settled : self.given]

    def write(self, at: RowAt, row: Written, *, keep: Keep) -> None:
        """The record in hand sets a row, which counts when it is handled: `keep` is told then."""
        self.written[at] = row
        self._written_by = self.given - 1
        self._keep = keep

    def keys(self) -> Sequence[UserKey]:
        """The keys of those not handed out yet (and None before); may end the slice earlier."""
        if self._keys is None:
            column = [raw.key for raw in self.raws[self.given :]]
            self._keys = [None] * self.given
            self._keys += self._read(self.part.topic.spec.key, column)
        return self._keys

    def timestamp_ms(self, row: int) -> int:
        """The event time of one of them."""
        return self._times[row]

    def record(self, row: int) -> AnyRecord:
        """One of them with its coordinates."""
        part, raw, key = self.part, self.raws[row], self.keys()[row]
        timestamp = moment(self.timestamp_ms(row))
        at = (part.topic.name, part.partition, raw.offset)
        return Record(key, self.values[row], timestamp, raw.headers, *at)

    def answer(self, data: bytes | None, *, of_list: bool) -> None:
        """This was yielded for the record in hand, or for all that were given and are not done."""
        if self._asks:
            first = self._settled if of_list else self.given - 1
            self._answer_rows(range(first, self.given), data)

    def settle(self, until: int) -> None:
        """The rows before this one are handled."""
        if until > self._settled:
            if self._asks:
                self._answer_rows(range(self._settled, until), None)
            self.part.progress.done(self.raws[self._settled : until])
            self._settled = until
            if self.written and self._written_by < until:
                written, self.written = self.written, {}
                if not self.part.is_over:
                    self._keep(written)

    def hand(self) -> list[tuple[SlicePart, RawRecord]]:
        """What has been handed out and is not handled."""
        return [(self.part, raw) for raw in self.raws[self._settled : self.given]]

    def take_back(self) -> None:
        """What has been handed out but is not handled has not been seen by anybody."""
        self.given = self._settled
        self.written = {}
        self.results = [each for each in self.results if each[0] < self.given]

    def cut(self) -> None:
        """What has not been handed out is not to be any more."""
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
        """A column from the next row on."""
        try:
            return deserialize_column(serde, column)
        except Exception:  # noqa: BLE001 - a serde of the user: found and raised below
            # Which one was it, and why? Again one by one.
            loads = serde.loads
            read, error = map_until_error(
                lambda data: None if data is None else loads(data), column
            )
        if error is not None:
            self._end_before(self.given + len(read), error)
        return read

    def _read_times(self, accepted: EventTimes) -> list[int]:
        """The event times; the slice ends before a record that has none."""
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
        """The record at this place can't be read: what is behind it is for another slice."""
        rest = self.raws[end + 1 :]
        if self.bad is not None:
            rest += [self.bad, *self.rest]
        self.failure = self.part.failed(self._node, self.raws[end], error)
        self.failure.__cause__ = error
        self.bad, self.rest = self.raws[end], rest
        del self.values[end:]
        del self.raws[end:]


def _keep_nothing(_: Mapping[RowAt, Written]) -> None:
    """Nothing has been set."""
