"""Joins of two tables, by key and by foreign key.

`TableTableJoinStep` makes a new row from a change of one side and the last row of the other. A
foreign-key join has three steps: `ReferStep` in the left table's task, `ForeignKeyJoinStep` in the
right table's task, `ForeignKeyRowsStep` after both. Rules of the module:

1. A result has the larger timestamp of the change and of the other side's row, if there is one. A
   deletion counts with its own timestamp.
2. A deletion is forwarded only if there was a row.
3. The step keeps what the sides have forwarded, so each result follows from those before it.
4. What one record changes on both sides is one change of the join. A step forwards to its children
   one after the other, so the join holds changes from before the first child that leads to it until
   after the last one (`wait_for_both_sides`).
5. Each change of a left row has a version, counted by its task. An outcome of an older version than
   the newest known one is dropped: the row refers to another key now. For each version exactly one
   task reports an outcome: the right row's task, or the left table's if the row refers to nothing.
6. The version of a deleted row is kept as long as an older outcome may be under way.

Rows of windowed tables expire once stream time is so far past their windows that neither side can
change them. Not done here: the bytes between the tasks (`tables/change_serdes`).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from streamlog.durations import moment, when_ms
from streamlog.errors import CorruptData
from streamlog.nodes.table_nodes import ForeignKeyJoin, ForeignKeyRows, Refer, TableTableJoin
from streamlog.processing.column_batch import Batch, TimeSource
from streamlog.processing.outbox import Collector
from streamlog.processing.step import Step, apply_to_new, apply_to_old
from streamlog.processing.tables.aggregate import ROWS_BYTES_MAX, RowSizes
from streamlog.record import Windowed
from streamlog.serdes.erased_types import AnySerde, JsonValue, UserKey, UserValue
from streamlog.tables.change_serdes import Reference, ReferenceOutcome
from streamlog.tables.stores.store import (
    KeyValueStore,
    NamedStore,
    prefix_end,
    split_window_key,
    window_bound,
    window_key,
)
from streamlog.topology import Subtopology
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS

_encode = msgspec.msgpack.Encoder().encode
_decode_sides = msgspec.msgpack.Decoder(tuple[int, bytes | None, int, bytes | None]).decode


class JoinSideRow:
    """The row of a key on one side."""

    __slots__ = ("data", "time_ms", "value")

    def __init__(self, value: object, data: bytes | None, time_ms: int) -> None:
        self.value = value
        """None: there is no row."""
        self.data = data
        self.time_ms = time_ms
        """Timestamp of the row; UNKNOWN_MS without a row."""


class JoinPair:
    """The rows of a key on both sides."""

    __slots__ = ("dirty", "left", "raw", "right")

    def __init__(self, raw: bytes, left: JoinSideRow, right: JoinSideRow) -> None:
        self.raw = raw
        self.left = left
        self.right = right
        self.dirty = False

    @property
    def is_empty(self) -> bool:
        """Whether neither side has a row, so that nothing has to be kept."""
        return self.left.value is None and self.right.value is None


class _Held:
    """The rows of a key that both sides have reported while changes are held; None: no change."""

    __slots__ = ("last", "left", "left_ms", "right", "right_ms")

    def __init__(self) -> None:
        self.left: JoinSideRow | None = None
        self.right: JoinSideRow | None = None
        self.left_ms = self.right_ms = UNKNOWN_MS
        """Timestamps of the changes, deletions included."""
        self.last = (0, 0)
        """Number of the batch with the last change, and the index in it."""


class _Results:
    """Changes made of a batch, as columns that are being filled."""

    __slots__ = ("batch", "changed", "new", "old", "times")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.changed: list[bool] = []
        """For each record of the batch, whether it is a change."""
        self.new: list[UserValue] = []
        self.old: list[UserValue] = []
        self.times: list[int] = []


class TableSideStep(Step):
    """The entry of the changes of one table."""

    def __init__(self, name: str, *, is_left: bool) -> None:
        super().__init__(name)
        self.is_left = is_left
        self.join: TableTableJoinStep | ForeignKeyJoinStep | None = None
        """The join that takes the changes."""

    def process(self, batch: Batch) -> None:
        """Pass the changes to the join as those of this side."""
        if (join := self.join) is not None:
            self.hand_over(join, len(batch), partial(join.take, batch, self.is_left))


class TableTableJoinStep(Step):
    """Joins rows of two tables by key."""

    def __init__(
        self,
        node: TableTableJoin,
        store: KeyValueStore,
        collector: Collector,
        *,
        sides: Sequence[TableSideStep],
        feeds: Sequence[TimeSource],
        sends_old_values: bool,
    ) -> None:
        super().__init__(node.name)
        self._node = node
        self._feeds = feeds
        self._prefix = node.store.prefix
        self._store = store
        self._collector = collector
        self._sends_old_values = sends_old_values
        self._pairs: dict[bytes, JoinPair] = {}
        self._dirty: list[JoinPair] = []
        self._holds = 0
        self._held: dict[bytes, _Held] = {}
        self._held_batches: list[Batch] = []
        self._sizes = RowSizes()
        self._expired_ms = UNKNOWN_MS
        for side in sides:
            side.join = self

    def take(self, batch: Batch, is_left: bool) -> None:  # noqa: FBT001 - as `TableSideStep.take`
        """Take changes of one side, and forward the resulting changes."""
        serde = self._node.left if is_left else self._node.right
        batch, datas = self.serialize_values(batch, serde)
        batch, raw_keys = self._serialize_keyed(batch)
        columns = zip(raw_keys, batch.values, datas, batch.timestamps, strict=True)
        if self._holds:
            self._keep(batch, columns, is_left=is_left)
            return
        results = _Results(batch)
        for at, (raw, value, data, time_ms) in enumerate(columns):
            pair = self._pair(raw)
            changed = JoinSideRow(value, data, UNKNOWN_MS if value is None else time_ms)
            other = pair.right if is_left else pair.left
            left, right = (changed, other) if is_left else (other, changed)
            if self._change(results, at, pair, left, right):
                results.times.append(max(time_ms, other.time_ms))
        self._forward_results(results)

    def hold(self) -> None:
        """Hold changes: a record is about to reach both sides."""
        self._holds += 1

    def release(self) -> bool:
        """Forward one change for each key that changed while held; returns whether any did."""
        self._holds -= 1
        if self._holds or not self._held_batches:
            return False
        held, self._held = self._held, {}
        batches, self._held_batches = self._held_batches, []
        raws: list[dict[int, bytes]] = [{} for _ in batches]
        for raw, each in held.items():
            number, at = each.last
            raws[number][at] = raw
        for batch, own in zip(batches, raws, strict=True):
            results = _Results(batch)
            for at in range(len(batch)):
                if at in own:
                    self._change_held(results, at, own[at], held[own[at]])
                else:
                    results.changed.append(False)
            self._forward_results(results)
        return True

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - as of its sides
        """Release what was held while the steps above let time take effect."""
        return self._holds > 0 and self.release()

    def flush(self) -> None:
        """Write changed rows into the store, and remove expired ones."""
        dirty, self._dirty = self._dirty, []
        gone = [pair for pair in dirty if pair.is_empty]
        kept = [pair for pair in dirty if not pair.is_empty]
        datas = [
            _encode((pair.left.time_ms, pair.left.data, pair.right.time_ms, pair.right.data))
            for pair in kept
        ]
        self._store.write((self._prefix + pair.raw, None) for pair in gone)
        keys = [self._prefix + pair.raw for pair in kept]
        self._store.write(zip(keys, datas, strict=True))
        for pair in dirty:
            pair.dirty = False
        for pair in gone:
            self._pairs.pop(pair.raw, None)
        self._sizes.add(keys, datas)
        if self._sizes.bytes_of(len(self._pairs)) > ROWS_BYTES_MAX:
            self._pairs.clear()
        self._expire()

    def lookup(self, raw: bytes) -> object:
        """Return the row of a key as bytes; None if there is none."""
        pair = self._pair(raw)
        found: object = self._node.joined(pair.left.value, pair.right.value)
        return found

    def lookup_all(self, raws: Sequence[bytes | None]) -> list[object]:
        """Return the row of each key."""
        return [None if raw is None else self.lookup(raw) for raw in raws]

    def table(self) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over all rows, by the bytes of the key."""
        self.flush()
        for stored, data in self._store.range(self._prefix, prefix_end(self._prefix)):
            value = read_joined_row(self._node, data)
            if value is not None:
                yield self._key(stored[len(self._prefix) :]), value

    def _serialize_keyed(self, batch: Batch) -> tuple[Batch, Sequence[bytes]]:
        """Return the changes that have a key, with their row keys."""
        if batch.has_null_keys:
            kept = [key is not None for key in batch.keys]
            self._collector.drop(self.name, "null key", kept.count(False))
            batch = batch.where(kept)
        if self._node.kept_ms is None:
            raws = batch.raw_keys(self._node.key, self.name)
        else:
            raws = batch.apply_function(self.name, self._row_key, batch.keys)
        return batch, [raw or b"" for raw in raws]

    def _row_key(self, key: Windowed[UserKey]) -> bytes:
        return window_key(when_ms(key.end), when_ms(key.start), self._node.key.dumps(key.key))

    def _key(self, raw: bytes) -> object:
        if self._node.kept_ms is None:
            return self._node.key.loads(raw)
        end_ms, start_ms, own = split_window_key(raw)
        return Windowed(self._node.key.loads(own), moment(start_ms), moment(end_ms))

    def _pair(self, raw: bytes) -> JoinPair:
        pair = self._pairs.get(raw)
        if pair is None:
            data = self._store.get(self._prefix + raw)
            pair = self._pairs[raw] = JoinPair(raw, *_read_sides(self._node, data))
        return pair

    def _keep(
        self,
        batch: Batch,
        columns: Iterable[tuple[bytes, UserValue, bytes | None, int]],
        *,
        is_left: bool,
    ) -> None:
        """Store what a side reports until the other side has been reached."""
        number = len(self._held_batches)
        self._held_batches.append(batch)
        for at, (raw, value, data, time_ms) in enumerate(columns):
            changed = JoinSideRow(value, data, UNKNOWN_MS if value is None else time_ms)
            held = self._held.setdefault(raw, _Held())
            held.last = (number, at)
            if is_left:
                held.left, held.left_ms = changed, time_ms
            else:
                held.right, held.right_ms = changed, time_ms

    def _change_held(self, results: _Results, at: int, raw: bytes, held: _Held) -> None:
        pair = self._pair(raw)
        # A table joined with a filter of itself; one record changes key k from 1 to 2.
        # 1. The filter passes 2: both sides have changed. The join makes one row of (2, 2), and
        #    never the row of (2, 1) that neither table ever described.
        # 2. The filter drops 2: the right side is deleted. An inner join forwards one deletion.
        # 3. Only the left path has a change: the right row is the one kept from before.
        left, right = held.left or pair.left, held.right or pair.right
        left_ms = left.time_ms if held.left is None else held.left_ms
        right_ms = right.time_ms if held.right is None else held.right_ms
        if self._change(results, at, pair, left, right):
            results.times.append(max(left_ms, right_ms))

    def _change(
        self, results: _Results, at: int, pair: JoinPair, left: JoinSideRow, right: JoinSideRow
    ) -> bool:
        """Set both sides of a row; returns whether that changes the joined row."""
        before_left, before_right = pair.left, pair.right
        pair.left, pair.right = left, right
        if not pair.dirty:
            pair.dirty = True
            self._dirty.append(pair)
        node, old = self._node, None
        new = apply_to_new(self, results.batch, at, node.joined, left.value, right.value)
        if new is None or self._sends_old_values:
            before = before_left.value, before_right.value
            is_there = node.joins(*before)
            old = apply_to_old(self, results.batch, at, node.joined, *before) if is_there else None
        is_change = new is not None or old is not None
        results.changed.append(is_change)
        if is_change:
            results.new.append(new)
            results.old.append(old)
        return is_change

    def _forward_results(self, results: _Results) -> None:
        batch = results.batch
        changes = batch if all(results.changed) else batch.where(results.changed)
        changes = changes.with_values(results.new)
        changes.timestamps = results.times
        changes.old_values = results.old if self._sends_old_values else None
        self.forward(changes)

    def _expire(self) -> None:
        """Remove the rows of windows that can no longer change."""
        if self._node.kept_ms is None:
            return
        time_ms = min((feed.time_ms for feed in self._feeds), default=UNKNOWN_MS)
        until_ms = time_ms - self._node.kept_ms
        if until_ms <= self._expired_ms:
            return
        low, high = window_bound(self._expired_ms + 1), window_bound(until_ms + 1)
        self._store.delete_range(self._prefix + low, self._prefix + high)
        for raw in [raw for raw in self._pairs if raw < high]:
            del self._pairs[raw]
        self._expired_ms = until_ms


def _read_sides(node: TableTableJoin, data: bytes | None) -> tuple[JoinSideRow, JoinSideRow]:
    if data is None:
        return JoinSideRow(None, None, UNKNOWN_MS), JoinSideRow(None, None, UNKNOWN_MS)
    try:
        left_ms, left, right_ms, right = _decode_sides(data)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"a row of {node.name!r} is not readable: {error}") from error
    return (
        JoinSideRow(None if left is None else node.left.loads(left), left, left_ms),
        JoinSideRow(None if right is None else node.right.loads(right), right, right_ms),
    )


def read_joined_row(node: TableTableJoin, data: bytes) -> object:
    """Return the row that these bytes of the store encode; None if there is none.

    Raises:
        CorruptData: the bytes are not readable.
    """
    left, right = _read_sides(node, data)
    found: object = node.joined(left.value, right.value)
    return found


FAN_OUT_ROWS = 10_000
"""The most outcomes that are forwarded in one batch, if many rows refer to one."""

_LENGTH = struct.Struct(">I")
_TIME = struct.Struct(">Q")


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A value with its timestamp and, for left rows, the version; what the stores hold."""

    timestamp_ms: int
    value: bytes | None
    version: int = 0
    gone_ms: int = UNKNOWN_MS
    """The merge key at which it was deleted."""


_decode = msgspec.msgpack.Decoder(_Row).decode


def _row_of(node: str, data: bytes) -> _Row:
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"a row of {node!r} is not readable: {error}") from error


class _Message(NamedTuple):
    """A message to send: its record, its key, its content and its timestamp."""

    at: int
    key: UserKey
    message: Reference | ReferenceOutcome
    timestamp_ms: int


def _batch_of(batch: Batch, sent: Sequence[_Message]) -> Batch:
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
    """Turns changes of the left table into references and outcomes."""

    section = "references"

    def __init__(self, node: Refer) -> None:
        super().__init__(node.name)
        self._node = node
        self._version = 0

    def process(self, batch: Batch) -> None:
        """Send, for each change, which key its row no longer refers to, and which one it does."""
        raws = batch.raw_keys(self._node.key, self.name)
        sent: list[_Message] = []
        columns = zip(raws, batch.values, batch.old_values or (), strict=True)
        for at, (raw, value, old_value) in enumerate(columns):
            if raw is not None and (value is not None or old_value is not None):
                self._version += 1
                sent += self._answer(batch, at, raw)
        self.forward(_batch_of(batch, sent))

    def _answer(self, batch: Batch, at: int, raw: bytes) -> Iterator[_Message]:
        value, old_value = batch.values[at], (batch.old_values or ())[at]
        key, time_ms, version = batch.keys[at], batch.timestamps[at], self._version
        old = None if old_value is None else apply_to_old(self, batch, at, self._on, old_value)
        new = None if value is None else apply_to_new(self, batch, at, self._on, value)
        # Row k of the left table, whose change has version 8:
        # 1. It referred to a and refers to b: the task of a removes the reference; the task of b
        #    adds it, and reports the outcome of version 8.
        # 2. It still refers to a, with another value: only a's task receives it, and reports.
        # 3. It is deleted: a's task removes the reference, and the left table reports.
        # 4. It refers to nothing (the function returned None): the left table reports, and in a
        #    left join the outcome is a row without a right side.
        if old is not None and old[0] is not None and (new is None or new[0] != old[0]):
            yield _Message(at, old[0], Reference(raw, version, None), time_ms)
        if new is None:  # Deleted, or a row on which the function fails.
            yield _Message(at, key, ReferenceOutcome(version, None, value is None), time_ms)
        elif new[0] is not None:
            yield _Message(at, new[0], Reference(raw, version, value), time_ms)
        else:
            alone = self._node.is_left
            result = apply_to_new(self, batch, at, self._node.fn, value, None) if alone else None
            yield _Message(at, key, ReferenceOutcome(version, result), time_ms)

    def _on(self, value: object) -> tuple[UserKey]:
        return (self._node.on(value),)

    def to_data(self) -> dict[str, object]:
        """Return the last version."""
        return {"version": self._version}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore the last version."""
        self._version = int(data["version"])


class ForeignKeyJoinStep(Step):
    """Joins references with the rows that they refer to."""

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
            side.join = self

    def take(self, batch: Batch, is_left: bool) -> None:  # noqa: FBT001 - as `TableSideStep.take`
        """Take references, or changes of the rows that they refer to."""
        if batch.has_null_keys:
            kept = [key is not None for key in batch.keys]
            self._collector.drop(self.name, "null key", kept.count(False))
            batch = batch.where(kept)
        batch, raw_keys = self.serialize_keys(batch, self._node.key)
        if is_left:
            raws = [raw or b"" for raw in raw_keys]
            sent = [each for at, raw in enumerate(raws) for each in self._refer(batch, at, raw)]
            self.forward(_batch_of(batch, sent))
            return
        batch, raw_keys, datas = self.serialize_with(batch, self._node.key, self._node.value)
        for at, (raw, data) in enumerate(zip(raw_keys, datas, strict=True)):
            changed = self._answer(batch, at, raw or b"", data)
            while some := list(islice(changed, FAN_OUT_ROWS)):
                self.forward(_batch_of(batch, some))

    def _refer(self, batch: Batch, at: int, raw: bytes) -> Iterator[_Message]:
        """Store a reference to this key and report its outcome, or remove the reference."""
        node, reference = self._node, batch.values[at]
        reference_key = _LENGTH.pack(len(raw)) + raw + reference.row_key
        if reference.value is None:
            self._references.delete(reference_key)
            return
        time_ms = batch.timestamps[at]
        value = node.row_value.dumps(reference.value)
        self._references.put(reference_key, _encode(_Row(time_ms, value, reference.version)))
        data = self._rows.get(raw)
        row = None if data is None else _row_of(self.name, data)
        right = None if row is None or row.value is None else node.value.loads(row.value)
        result = self._join(batch, at, reference.value, right)
        key = node.row_key.loads(reference.row_key)
        later_ms = time_ms if row is None else max(time_ms, row.timestamp_ms)
        yield _Message(at, key, ReferenceOutcome(reference.version, result), later_ms)

    def _answer(self, batch: Batch, at: int, raw: bytes, data: bytes | None) -> Iterator[_Message]:
        """Store the changed row of this key; report an outcome for each row that refers to it."""
        node, time_ms = self._node, batch.timestamps[at]
        if data is not None:
            self._rows.put(raw, _encode(_Row(time_ms, data)))
        elif self._rows.get(raw) is None:
            return
        else:
            self._rows.delete(raw)
        head = _LENGTH.pack(len(raw)) + raw
        for reference_key, stored in self._references.range(head, prefix_end(head)):
            reference = _row_of(self.name, stored)
            left = node.row_value.loads(reference.value or b"")
            result = self._join(batch, at, left, batch.values[at])
            key = node.row_key.loads(reference_key[len(head) :])
            outcome = ReferenceOutcome(reference.version, result)
            yield _Message(at, key, outcome, max(time_ms, reference.timestamp_ms))

    def _join(self, batch: Batch, at: int, left: object, right: object) -> UserValue:
        if right is None and not self._node.is_left:
            return None
        return apply_to_new(self, batch, at, self._node.fn, left, right)


class ForeignKeyRowsStep(Step):
    """Keeps the newest outcome for each row of the left table."""

    def __init__(
        self,
        node: ForeignKeyRows,
        store: KeyValueStore,
        *,
        feeds: Sequence[TimeSource],
        sends_old_values: bool,
    ) -> None:
        super().__init__(node.name)
        self._key: AnySerde = node.key
        self._value: AnySerde = node.value
        self._rows = NamedStore(store, node.store)
        self._gone = NamedStore(store, node.gone)
        self._feeds = feeds
        self._sends_old_values = sends_old_values
        self._next_gone_ms = 0
        """No row that is kept for its version was deleted before this time."""

    def process(self, batch: Batch) -> None:
        """Keep the outcomes that are new, and forward the changes."""
        raws = batch.raw_keys(self._key, self.name)
        new: list[UserValue] = []
        old: list[UserValue] = []
        kept: list[bool] = []
        for at, raw in enumerate(raws):
            outcome = batch.values[at]
            turn_ms = max(batch.origin.turns[batch.rows[at]], batch.origin.times[batch.rows[at]])
            replaced = self._newer(outcome, raw or b"", batch.timestamps[at], turn_ms)
            value = outcome.value
            kept.append(replaced is not None and (value is not None or replaced.value is not None))
            if replaced is not None and kept[-1]:
                new.append(value)
                telling = self._sends_old_values and replaced.value is not None
                old.append(self._value.loads(replaced.value or b"") if telling else None)
        changes = (batch if all(kept) else batch.where(kept)).with_values(new)
        self.forward(changes.with_old_values(old) if self._sends_old_values else changes)

    def _newer(
        self, outcome: ReferenceOutcome, raw: bytes, timestamp_ms: int, turn_ms: int
    ) -> _Row | None:
        """Keep an outcome; returns the row that it replaces, or None if there is a newer one."""
        data = self._rows.get(raw)
        row = _Row(UNKNOWN_MS, None) if data is None else _row_of(self.name, data)
        # Row k referred to a (version 7) and now refers to b (version 8).
        # 1. The outcome of 8 arrives first, then that of 7: 7 is dropped, since k has left a.
        # 2. b's row changes later: its task reports 8 again with another value, which replaces
        #    the outcome. Hence `<` and not `<=`.
        # 3. k is deleted by version 9: the row stays, without a value, so that a late 8 finds a
        #    newer version. `settle` removes it once every source has passed the deletion.
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
        """Remove deleted rows for which no older outcome can be under way, by event time."""
        time_ms = min((feed.time_ms for feed in self._feeds), default=UNKNOWN_MS)
        if time_ms <= self._next_gone_ms or not all(feed.at_end for feed in self._feeds):
            return False
        for gone_key, _ in self._gone.range(b"", _TIME.pack(time_ms)):
            gone_ms, raw = _TIME.unpack_from(gone_key)[0], gone_key[_TIME.size :]
            data = self._rows.get(raw)
            if data is not None and _row_of(self.name, data).gone_ms == gone_ms:
                self._rows.delete(raw)
            self._gone.delete(gone_key)
        following = next(self._gone.range(_TIME.pack(time_ms)), None)
        self._next_gone_ms = FAR_MS if following is None else _TIME.unpack_from(following[0])[0]
        return False

    def lookup(self, raw: bytes) -> object:
        """Return the row of a key as bytes; None if there is none."""
        data = self._rows.get(raw)
        value = None if data is None else _row_of(self.name, data).value
        return None if value is None else self._value.loads(value)

    def lookup_all(self, raws: Sequence[bytes | None]) -> list[object]:
        """Return the row of each key."""
        return [None if raw is None else self.lookup(raw) for raw in raws]

    def table(self) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over all rows, by the bytes of the key."""
        for raw, data in self._rows.range():
            row = _row_of(self.name, data)
            if row.value is not None:
                yield self._key.loads(raw), self._value.loads(row.value)


def read_outcome_row(node: ForeignKeyRows, data: bytes) -> object:
    """Return the row that these bytes of the store encode; None if there is none.

    Raises:
        CorruptData: the bytes are not readable.
    """
    row = _row_of(node.name, data)
    found: object = None if row.value is None else node.value.loads(row.value)
    return found


class HoldStep(Step):
    """Makes a join hold changes, before the first child that leads to it."""

    def __init__(self, join: TableTableJoinStep) -> None:
        super().__init__(join.name)
        self._join = join

    def process(self, batch: Batch) -> None:  # noqa: ARG002 - the children next to it take it
        """Hold: a record is about to reach both sides."""
        self._join.hold()


class ReleaseStep(HoldStep):
    """Releases a join, after the last child that leads to it."""

    def process(self, batch: Batch) -> None:  # noqa: ARG002 - as `HoldStep.process`
        """Release: the record has reached both sides."""
        self._join.release()


def wait_for_both_sides(
    sub: Subtopology, steps: Mapping[str, Step], entries: Iterable[list[Step]]
) -> list[TableTableJoinStep]:
    """Make joins hold changes where paths to both of their sides fork; returns those joins.

    Args:
        sub: the sub-topology of these steps.
        steps: by name, with their children.
        entries: for each topic, the steps that read it.
    """
    parting = _Fork()
    waiting = []
    for node in sub.nodes:
        join = steps[node.name]
        if not isinstance(node, TableTableJoin) or not isinstance(join, TableTableJoinStep):
            continue
        left, right = ({*_nodes_above(sub, side)} for side in node.parents)
        forks = [steps[name].children for name in left & right]
        forks += [
            each for each in entries if _leads_to_join(each, left) and _leads_to_join(each, right)
        ]
        found = [parting.add(fork, join, left | right) for fork in forks]
        waiting += [join] * any(found)
    parting.apply()
    return waiting


class _Fork:
    """The children among which joins have to hold changes."""

    def __init__(self) -> None:
        self._forks: dict[int, list[Step]] = {}
        self._before: defaultdict[tuple[int, int], list[Step]] = defaultdict(list)
        self._after: defaultdict[tuple[int, int], list[Step]] = defaultdict(list)

    def add(self, fork: list[Step], join: TableTableJoinStep, above: Collection[str]) -> bool:
        """Make the join hold changes if several children lead to it; returns whether they do."""
        leading = [at for at, child in enumerate(fork) if child.name in above]
        if len(leading) > 1:
            self._forks[id(fork)] = fork
            self._before[id(fork), leading[0]].append(HoldStep(join))
            self._after[id(fork), leading[-1]].append(ReleaseStep(join))
        return len(leading) > 1

    def apply(self) -> None:
        """Insert the holds and releases among the children: joins further up release first."""
        for fork in self._forks.values():
            fork[:] = [
                each
                for at, child in enumerate(fork)
                for each in (*self._before[id(fork), at], child, *self._after[id(fork), at])
            ]


def _nodes_above(sub: Subtopology, side: str) -> Iterable[str]:
    """Yield a side of a join, and the nodes that lead to it."""
    yield side
    for node in sub.ancestors(sub.by_name[side]):
        yield node.name


def _leads_to_join(steps: Iterable[Step], above: Collection[str]) -> bool:
    return any(step.name in above for step in steps)
