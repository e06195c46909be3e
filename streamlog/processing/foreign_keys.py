"""Joins of tables by foreign keys, at work: references, what they point to, and what came of them.

`ReferStep` stands where the left table is, `ForeignKeyJoinStep` where the right one is, and
`ForeignKeyRowsStep` behind both. Rules of the file:

1. Each change of a left row has a version, counted by its task. An outcome of a version older than
   the newest that has been heard of is left out: the row points elsewhere by now.
2. Of each version exactly one place tells an outcome: where it points to, or the left table's task
   if it points nowhere.
3. A deletion goes on only if there was a row to be deleted.
4. Of a row that is gone its version is kept as long as something older may be on its way: until
   all that is there has been read, and event time has passed the deletion.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from streamlog.errors import CorruptData
from streamlog.processing.changes import result_before, result_of
from streamlog.processing.columns import Batch, Feed
from streamlog.processing.step import Collector, Step
from streamlog.processing.table_joins import TableSideStep
from streamlog.serdes import Serde
from streamlog.tables.references import Outcome, Reference
from streamlog.tables.store import KeyValueStore, NamedStore, prefix_end
from streamlog.topology import ForeignKeyJoin, ForeignKeyRows, Refer
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS

FAN_OUT_ROWS = 10_000
"""Outcomes handed on at a time, if one row is pointed to by so many."""

_LENGTH = struct.Struct(">I")
_TIME = struct.Struct(">Q")
_encode = msgspec.msgpack.Encoder().encode


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A value with its timestamp, and of left rows the version; what the stores hold."""

    timestamp_ms: int
    value: bytes | None
    version: int = 0
    gone_ms: int = UNKNOWN_MS
    """When it was deleted, as the task's order has it."""


_decode = msgspec.msgpack.Decoder(_Row).decode


def _row_of(node: str, data: bytes) -> _Row:
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"a row of {node!r} is not readable: {error}") from error


class _Sent(NamedTuple):
    """Messages in the making: of which record, to which key, at what time."""

    at: int
    key: Any
    message: Reference | Outcome
    timestamp_ms: int


def _batch_of(batch: Batch, sent: Sequence[_Sent]) -> Batch:
    messages = Batch(
        batch.origin,
        [batch.rows[each.at] for each in sent],
        [each.key for each in sent],
        [each.message for each in sent],
        [each.timestamp_ms for each in sent],
    )
    messages.keys_are_raw = messages.values_are_raw = False
    return messages


class ReferStep(Step):
    """Changes of the left table as references and outcomes."""

    section = "references"

    def __init__(self, node: Refer) -> None:
        super().__init__(node.name)
        self._node = node
        self._version = 0

    def process(self, batch: Batch) -> None:
        """Say of each change what its row does not point to any more, and what it does."""
        raws = batch.raw_keys(self._node.key, self.name)
        sent: list[_Sent] = []
        columns = zip(raws, batch.values, batch.old_values or (), strict=True)
        for at, (raw, value, old_value) in enumerate(columns):
            if raw is not None and (value is not None or old_value is not None):
                self._version += 1
                sent += self._changed(batch, at, raw)
        self.forward(_batch_of(batch, sent))

    def _changed(self, batch: Batch, at: int, raw: bytes) -> Iterator[_Sent]:
        value, old_value = batch.values[at], (batch.old_values or ())[at]
        key, time_ms, version = batch.keys[at], batch.timestamps[at], self._version
        old = None if old_value is None else result_before(self, batch, at, self._on, old_value)
        new = None if value is None else result_of(self, batch, at, self._on, value)
        if old is not None and old[0] is not None and (new is None or new[0] != old[0]):
            yield _Sent(at, old[0], Reference(raw, version, None), time_ms)
        if new is None:  # Deleted, or a row on which the function fails.
            yield _Sent(at, key, Outcome(version, None, value is None), time_ms)
        elif new[0] is not None:
            yield _Sent(at, new[0], Reference(raw, version, value), time_ms)
        else:
            alone = self._node.is_left
            result = result_of(self, batch, at, self._node.fn, value, None) if alone else None
            yield _Sent(at, key, Outcome(version, result), time_ms)

    def _on(self, value: object) -> tuple[Any]:
        return (self._node.on(value),)

    def to_data(self) -> dict[str, object]:
        """The version counted last."""
        return {"version": self._version}

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._version = int(data["version"])


class ForeignKeyJoinStep(Step):
    """References and the rows that they point to."""

    def __init__(
        self,
        node: ForeignKeyJoin,
        store: KeyValueStore,
        collector: Collector,
        *,
        sides: Sequence[TableSideStep],
    ) -> None:
        super().__init__(node.name)
        self._node = node
        self._references = NamedStore(store, node.store)
        self._rows = NamedStore(store, node.rows)
        self._collector = collector
        for side in sides:
            side.take = self.take

    def take(self, batch: Batch, is_left: bool) -> None:  # noqa: FBT001 - as `TableSideStep.take`
        """Take in references, or rows that they point to."""
        if batch.has_null_keys:
            kept = [key is not None for key in batch.keys]
            self._collector.drop(self.name, "null key", kept.count(False))
            batch = batch.where(kept)
        batch, raw_keys = self.written_keys(batch, self._node.key)
        if is_left:
            raws = [raw or b"" for raw in raw_keys]
            sent = [each for at, raw in enumerate(raws) for each in self._referred(batch, at, raw)]
            self.forward(_batch_of(batch, sent))
            return
        batch, raw_keys, datas = self.written_with(batch, self._node.key, self._node.value)
        for at, (raw, data) in enumerate(zip(raw_keys, datas, strict=True)):
            changed = self._changed(batch, at, raw or b"", data)
            while some := list(islice(changed, FAN_OUT_ROWS)):
                self.forward(_batch_of(batch, some))

    def _referred(self, batch: Batch, at: int, raw: bytes) -> Iterator[_Sent]:
        """A row points to this key from now on, or no more."""
        node, reference = self._node, batch.values[at]
        place = _LENGTH.pack(len(raw)) + raw + reference.row_key
        if reference.value is None:
            self._references.delete(place)
            return
        time_ms = batch.timestamps[at]
        value = node.row_value.dumps(reference.value)
        self._references.put(place, _encode(_Row(time_ms, value, reference.version)))
        data = self._rows.get(raw)
        row = None if data is None else _row_of(self.name, data)
        right = None if row is None or row.value is None else node.value.loads(row.value)
        result = self._joined(batch, at, reference.value, right)
        key = node.row_key.loads(reference.row_key)
        later_ms = time_ms if row is None else max(time_ms, row.timestamp_ms)
        yield _Sent(at, key, Outcome(reference.version, result), later_ms)

    def _changed(self, batch: Batch, at: int, raw: bytes, data: bytes | None) -> Iterator[_Sent]:
        """The row of this key has changed: everyone who points to it hears of it."""
        node, time_ms = self._node, batch.timestamps[at]
        if data is not None:
            self._rows.put(raw, _encode(_Row(time_ms, data)))
        elif self._rows.get(raw) is None:
            return
        else:
            self._rows.delete(raw)
        head = _LENGTH.pack(len(raw)) + raw
        for place, stored in self._references.range(head, prefix_end(head)):
            reference = _row_of(self.name, stored)
            left = node.row_value.loads(reference.value or b"")
            result = self._joined(batch, at, left, batch.values[at])
            key = node.row_key.loads(place[len(head) :])
            outcome = Outcome(reference.version, result)
            yield _Sent(at, key, outcome, max(time_ms, reference.timestamp_ms))

    def _joined(self, batch: Batch, at: int, left: object, right: object) -> Any:  # noqa: ANN401 - the user's
        if right is None and not self._node.is_left:
            return None
        return result_of(self, batch, at, self._node.fn, left, right)


class ForeignKeyRowsStep(Step):
    """The newest outcome for each row of the left table."""

    def __init__(
        self,
        node: ForeignKeyRows,
        store: KeyValueStore,
        *,
        feeds: Sequence[Feed],
        tells_old_values: bool,
    ) -> None:
        super().__init__(node.name)
        self._key: Serde[Any] = node.key
        self._value: Serde[Any] = node.value
        self._rows = NamedStore(store, node.store)
        self._gone = NamedStore(store, node.gone)
        self._feeds = feeds
        self._tells_old_values = tells_old_values
        self._next_gone_ms = 0
        """No row that is gone was deleted before this."""

    def process(self, batch: Batch) -> None:
        """Take in the outcomes that are news."""
        raws = batch.raw_keys(self._key, self.name)
        new: list[Any] = []
        old: list[Any] = []
        kept: list[bool] = []
        for at, raw in enumerate(raws):
            outcome = batch.values[at]
            turn_ms = max(batch.origin.turns[batch.rows[at]], batch.origin.times[batch.rows[at]])
            replaced = self._newer(outcome, raw or b"", batch.timestamps[at], turn_ms)
            value = outcome.value
            kept.append(replaced is not None and (value is not None or replaced.value is not None))
            if replaced is not None and kept[-1]:
                new.append(value)
                telling = self._tells_old_values and replaced.value is not None
                old.append(self._value.loads(replaced.value or b"") if telling else None)
        changes = (batch if all(kept) else batch.where(kept)).with_values(new)
        self.forward(changes.with_old_values(old) if self._tells_old_values else changes)

    def _newer(self, outcome: Outcome, raw: bytes, timestamp_ms: int, turn_ms: int) -> _Row | None:
        """Keep an outcome; the row that it replaces, None if there is a newer one."""
        data = self._rows.get(raw)
        row = _Row(UNKNOWN_MS, None) if data is None else _row_of(self.name, data)
        if outcome.version < row.version:
            return None
        gone_ms = UNKNOWN_MS
        if outcome.is_gone:
            gone_ms = max(turn_ms, 0)
            self._gone.put(_TIME.pack(gone_ms) + raw, b"")
            self._next_gone_ms = min(self._next_gone_ms, gone_ms)
        value = None if outcome.value is None else self._value.dumps(outcome.value)
        self._rows.put(raw, _encode(_Row(timestamp_ms, value, outcome.version, gone_ms)))
        return row

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - event time only
        """All records at hand have been taken: forget what is gone for good."""
        time_ms = min((feed.time_ms for feed in self._feeds), default=UNKNOWN_MS)
        if time_ms <= self._next_gone_ms or not all(feed.at_end for feed in self._feeds):
            return False
        for place, _ in self._gone.range(b"", _TIME.pack(time_ms)):
            gone_ms, raw = _TIME.unpack_from(place)[0], place[_TIME.size :]
            data = self._rows.get(raw)
            if data is not None and _row_of(self.name, data).gone_ms == gone_ms:
                self._rows.delete(raw)
            self._gone.delete(place)
        following = next(self._gone.range(_TIME.pack(time_ms)), None)
        self._next_gone_ms = FAR_MS if following is None else _TIME.unpack_from(following[0])[0]
        return False

    def lookup(self, raw: bytes) -> object:
        """The row of a key as bytes; None if there is none."""
        data = self._rows.get(raw)
        value = None if data is None else _row_of(self.name, data).value
        return None if value is None else self._value.loads(value)

    def lookup_all(self, raws: Sequence[bytes | None]) -> list[object]:
        """The row of each key."""
        return [None if raw is None else self.lookup(raw) for raw in raws]

    def table(self) -> Iterator[tuple[Any, Any]]:
        """All rows, by the bytes of the key."""
        for raw, data in self._rows.range():
            row = _row_of(self.name, data)
            if row.value is not None:
                yield self._key.loads(raw), self._value.loads(row.value)


def outcome_row(node: ForeignKeyRows, data: bytes) -> object:
    """The row that these bytes of the store stand for; None if there is none.

    Raises:
        CorruptData: they are not readable.
    """
    row = _row_of(node.name, data)
    found: object = None if row.value is None else node.value.loads(row.value)
    return found
