"""AggregateStep: one running result per key, and every change forwarded.

The states of keys in use are objects in a write-back cache; `flush` writes the changed ones into
the task's transaction, once per checkpoint and not once per record. Rule of the module: a state is
folded in the order of the records and nothing else reads it in between; `Aggregation.result`, which
is forwarded, is a copy of its own. As in Kafka Streams, records without key or value are dropped,
and a result has the largest timestamp of its records. `LastRecords` finds the record that changed a
row last, for the error of a row that cannot be stored, at no cost per record. Not done here:
windows (`processing/windows`), rows that expire (`ttl_aggregate`).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, cast

from streamlog.errors import ProcessingError, SerdeError
from streamlog.nodes.stream_nodes import Aggregate, Aggregation, WholeNumbers
from streamlog.nodes.window_nodes import CountedAggregate, RecordWindowsAggregate, WindowedAggregate
from streamlog.processing.column_batch import Batch, processing_error
from streamlog.processing.outbox import Collector
from streamlog.processing.step import Step
from streamlog.records.record_columns import has_none, total_bytes
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnySerde, UserKey, UserState, UserValue
from streamlog.tables.folds.folding import (
    Row,
    take_up,
    write_down,
    write_down_dirty,
    written,
)
from streamlog.tables.stores.store import Changes, KeyValueStore, prefix_end

NOTED_BATCHES_MAX = 32
"""Batches whose records are kept. Of older ones only the first offset is kept, per partition."""


class _Noted(NamedTuple):
    """The records of a batch."""

    topic: str
    partition: int
    offsets: Sequence[int]
    rows: Sequence[int]
    """Indexes into `offsets`."""
    raws: Sequence[bytes | None]


class LastRecords:
    """The records of one node since its last flush, by the keys of their rows."""

    __slots__ = ("_first", "_node", "_noted")

    def __init__(self, node: str) -> None:
        self._node = node
        self._noted: deque[_Noted] = deque(maxlen=NOTED_BATCHES_MAX)
        self._first: dict[tuple[str, int], int] = {}

    def note(self, batch: Batch, raws: Sequence[bytes | None]) -> None:
        """Add records that are folded into rows with these keys."""
        origin, rows = batch.origin, batch.rows
        if rows:
            self._first.setdefault((origin.topic, origin.partition), origin.offsets[rows[0]])
            self._noted.append(_Noted(origin.topic, origin.partition, origin.offsets, rows, raws))

    def clear(self) -> None:
        """Forget the records: all rows are stored."""
        self._noted.clear()
        self._first.clear()

    def failure(self, raw: bytes, error: Exception) -> ProcessingError:
        """Return the error of a row that can't be stored, for the caller to raise."""
        reason = SerdeError(f"can't store its state for key {raw!r}: {error}")
        # From the newest record back: the last one that was folded into the row left this state.
        for noted in reversed(self._noted):
            for at in range(len(noted.raws) - 1, -1, -1):
                if noted.raws[at] == raw:
                    offset = noted.offsets[noted.rows[at]]
                    return processing_error(
                        self._node, noted.topic, noted.partition, offset, reason
                    )
        for (topic, partition), offset in self._first.items():
            reason = SerdeError(f"{reason}; its record is at this offset or after it")
            return processing_error(self._node, topic, partition, offset, reason)
        return ProcessingError(f"{self._node!r} {reason}", node=self._node)


ROWS_BYTES_MAX = 64 * 1024 * 1024
"""States that one step keeps as objects after a flush, by estimate. Above this, all are dropped."""
ROW_BYTES = 400
"""What a row costs beyond its key and state: object headers and a dict entry."""
STATE_TIMES = 8
"""How many times larger a state is as an object than as bytes."""
KEY_TIMES = 2
"""A row has two keys in memory: its own, and the one in the store."""
SAMPLE = 16
"""One of this many rows is measured."""

IMMUTABLE_TYPES = frozenset({int, float, str, bytes, bool})
"""States of these types can't be changed in place."""

_TIMESTAMP = struct.Struct(">q")
_ABSENT: UserValue = object()
"""In place of a result: there is no row, and was none."""


class RowFormat:
    """A row as bytes: the timestamp in 8 bytes, then the state."""

    def __init__(self, node: str, aggregation: Aggregation) -> None:
        self._node = node
        self._initial = aggregation.initial
        self._state = aggregation.state
        self._last = None if _are_numbers(aggregation) else LastRecords(node)
        pack = getattr(self._state, "pack", None)
        self._packs = pack is not None
        """Whether states are written as MessagePack."""
        self._dumps: Callable[[UserState], bytes] = pack or self._state.dumps
        numbers = aggregation.numbers
        self._reads_numbers = self._packs and isinstance(numbers, WholeNumbers) and numbers.is_row
        """Whether a list of whole numbers is read back as it was written."""

    def dumps(self, row: Row) -> bytes:
        """Return the row as bytes.

        Raises:
            ProcessingError: the user's function left a state that can't be written.
        """
        try:
            return _TIMESTAMP.pack(row.timestamp_ms) + self._state.dumps(row.state)
        except Exception as error:  # noqa: BLE001 - a serde of the user's type
            caught = error
        last = self._last or LastRecords(self._node)
        raise last.failure(row.raw, caught) from caught

    def note(self, batch: Batch, raws: Sequence[bytes | None]) -> None:
        """Note records that are folded, for the error of a row that can't be stored."""
        if self._last is not None:
            self._last.note(batch, raws)

    def forget_noted(self) -> None:
        """Forget the noted records: all rows are stored."""
        if self._last is not None:
            self._last.clear()

    def dumps_all(self, rows: list[Row]) -> list[bytes]:
        """Return the rows as bytes.

        Raises:
            ProcessingError: as `dumps`.
        """
        try:
            return written(rows, self._dumps)
        except Exception:  # noqa: BLE001 - a serde of the user's: found and raised again below
            return [self.dumps(row) for row in rows]

    def write_down(
        self, rows: list[Row], head: bytes, keys: list[bytes], values: list[bytes | None]
    ) -> None:
        """Append the rows to columns of changes; see `folding.write_down`.

        Raises:
            ProcessingError: as `dumps`.
        """
        done = len(values)
        try:
            write_down(rows, head, self._dumps, keys, values, packs=self._packs)
        except Exception:  # noqa: BLE001 - a serde of the user's: found and raised again below
            # The rows before the error are in the columns already.
            self._write_each(rows[len(values) - done :], head, keys, values)

    def write_down_dirty(
        self, rows: dict[bytes, Row], head: bytes, keys: list[bytes], values: list[bytes | None]
    ) -> None:
        """Append the dirty rows to columns of changes; see `folding.write_down_dirty`.

        Raises:
            ProcessingError: as `dumps`.
        """
        try:
            write_down_dirty(rows, head, self._dumps, keys, values, packs=self._packs)
        except Exception:  # noqa: BLE001 - as above
            left = [row for row in rows.values() if row.dirty]
            self._write_each(left, head, keys, values)

    def _write_each(
        self, rows: list[Row], head: bytes, keys: list[bytes], values: list[bytes | None]
    ) -> None:
        for row in rows:
            values.append(self.dumps(row))
            row.key = head + row.raw
            keys.append(row.key)
            row.dirty = False

    def loads(self, data: bytes | None, raw: bytes = b"") -> Row:
        """Return the row of a key from its bytes; a new one if there are none."""
        if data is None:
            return Row(self._initial(), -1, raw)
        state = self._state.loads(data[_TIMESTAMP.size :])
        return Row(state, _TIMESTAMP.unpack_from(data)[0], raw)

    def take_up(
        self, raws: list[bytes], found: list[bytes | None], start: int, rows: dict[bytes, Row]
    ) -> list[bytes]:
        """Add the rows of these keys to `rows`; return the keys that have none.

        The store has found the bytes of the first key at index `start`, and so on.
        """
        return take_up(raws, found, start, rows, self.loads, are_numbers=self._reads_numbers)


def _are_numbers(aggregation: Aggregation) -> bool:
    """Return whether states are whole numbers, which can always be stored."""
    return isinstance(aggregation.numbers, WholeNumbers)


class RowSizes:
    """An estimate of the memory that rows take, from a sample of the rows that were written."""

    __slots__ = ("_bytes", "_rows")

    def __init__(self) -> None:
        self._bytes = self._rows = 0

    def add(self, keys: Sequence[bytes], values: Sequence[bytes | None], start: int = 0) -> None:
        """Sample rows that were written, from index `start` on."""
        keys, values = keys[start::SAMPLE], values[start::SAMPLE]
        self._rows += len(keys)
        self._bytes += KEY_TIMES * total_bytes(keys) + STATE_TIMES * total_bytes(values)

    def bytes_of(self, count: int) -> int:
        """Return the estimate for `count` rows."""
        return count * (ROW_BYTES + self._bytes // max(self._rows, 1))


def without_nulls(
    step: Step, batch: Batch, key: AnySerde, collector: Collector
) -> tuple[Batch, Sequence[bytes]]:
    """Return the records that have a key and a value, with keys as bytes; counts the others."""
    batch, raw_keys = step.serialize_keys(batch, key)
    if not has_none(raw_keys) and not has_none(batch.values):
        return batch, cast("Sequence[bytes]", raw_keys)
    kept = [
        raw is not None and value is not None
        for raw, value in zip(raw_keys, batch.values, strict=True)
    ]
    keyless = sum(raw is None for raw in raw_keys)
    collector.drop(step.name, "null key", keyless)
    collector.drop(step.name, "null value", kept.count(False) - keyless)
    return batch.where(kept), [
        raw for raw, keep in zip(raw_keys, kept, strict=True) if raw is not None and keep
    ]


def guard_state(
    node: Aggregate | WindowedAggregate | RecordWindowsAggregate | CountedAggregate,
) -> Aggregation:
    """Return the node's aggregation, whose failure must not change a state if records are skipped.

    A function may have changed the state in place before it raised, or leave one that can't be
    stored or shown. Where the policy skips the record, the function works on a copy, which replaces
    the state only if all of that succeeds.
    """
    aggregation, serde = node.aggregation, node.aggregation.state
    if node.on_error is None or node.on_error.action == "fail":
        return aggregation

    def copy_of(state: UserState) -> UserState:
        if state is None or type(state) in IMMUTABLE_TYPES:
            return state
        return serde.loads(serde.dumps(state))

    def add(state: UserState, value: UserValue) -> UserState:
        state = aggregation.add(copy_of(state), value)
        serde.dumps(state)
        aggregation.result(state)
        return state

    def merge(state: UserState, later: UserState) -> UserState:
        merges = aggregation.merge
        return state if merges is None else merges(copy_of(state), copy_of(later))

    return replace(aggregation, add=add, merge=merge)


class AggregateStep(Step):
    """One running result per key. A row whose state becomes None no longer exists."""

    def __init__(
        self,
        node: Aggregate,
        store: KeyValueStore,
        collector: Collector,
        *,
        sends_old_values: bool = False,
    ) -> None:
        super().__init__(node.name)
        self._sends_old_values = sends_old_values
        self._aggregation = guard_state(node)
        self._format = RowFormat(node.name, node.aggregation)
        self._key: AnySerde = node.key
        self._prefix = node.store.prefix
        self._store = store
        self._collector = collector
        self._rows: dict[bytes, Row] = {}
        self._dirty: list[Row] = []
        self._has_absent = False
        """Whether a record's result was None where there was no row, so that there is no change."""
        self._absent: set[bytes] = set()
        """Keys without a row in the store, as `_read_ahead` has found."""
        self._sizes = RowSizes()

    def process(self, batch: Batch) -> None:
        """Fold each record into its key's state and forward the new result."""
        batch, raw_keys = without_nulls(self, batch, self._key, self._collector)
        old_values: list[object] | None = [] if self._sends_old_values else None
        fold = self._fold if old_values is None else partial(self._fold_noting, old_values)
        self._format.note(batch, raw_keys)
        self._read_ahead(raw_keys)
        batch, folded = self.apply_function(batch, fold, raw_keys, batch.values, batch.timestamps)
        results = Batch(
            batch.origin,
            batch.rows,
            batch.keys,
            [result for result, _ in folded],
            [timestamp_ms for _, timestamp_ms in folded],
        )
        results.keys_are_raw = batch.keys_are_raw
        results.values_are_raw = False
        results.old_values = old_values
        if self._has_absent:
            self._has_absent = False
            results = results.where([value is not _ABSENT for value in results.values])
        self._absent.clear()
        self.forward(results)

    def _read_ahead(self, raws: Sequence[bytes]) -> None:
        """Read the rows of these records that are only in the store, all at once."""
        wanted = list({raw: None for raw in raws if raw not in self._rows})
        if not wanted:
            return
        found = self._store.get_all([self._prefix + raw for raw in wanted])
        self._absent.update(self._format.take_up(wanted, found, 0, self._rows))

    def _fold_noting(
        self, old_values: list[object], raw: bytes, value: object, timestamp_ms: int
    ) -> tuple[UserValue, int]:
        """Fold a record, and append the value that the new result replaces."""
        old_value = self.lookup(raw)
        folded = self._fold(raw, value, timestamp_ms)
        old_values.append(old_value)  # Not before the fold, which may fail.
        return folded

    def _fold(self, raw: bytes, value: object, timestamp_ms: int) -> tuple[UserValue, int]:
        # `add` may return None, which deletes the row.
        # 1. Key k has no row, and `add` returns None: nothing changes (`_ABSENT`).
        # 2. k has the state 5, and `add` returns None: a deletion is forwarded. The row stays in
        #    memory without a state until the flush removes it from the store.
        # 3. Another record of k before the flush: the state starts from `initial`, and the
        #    timestamp anew, as after the flush.
        row = self._rows.get(raw)
        if row is None:
            data = None if raw in self._absent else self._store.get(self._prefix + raw)
            row, is_there = self._format.loads(data, raw), data is not None
            row.state = self._aggregation.add(row.state, value)
            self._rows[raw] = row  # Not before the fold, which may fail on a key's first record.
        else:
            is_there = row.state is not None
            state = row.state if is_there else self._aggregation.initial()
            row.state = self._aggregation.add(state, value)
            row.timestamp_ms = row.timestamp_ms if is_there else -1
        row.timestamp_ms = max(row.timestamp_ms, timestamp_ms)
        if not row.dirty:
            row.dirty = True
            self._dirty.append(row)
        if row.state is None and not is_there:
            self._has_absent = True
            return _ABSENT, row.timestamp_ms
        return self._aggregation.result(row.state), row.timestamp_ms

    def flush(self) -> None:
        """Write changed states into the store, and remove rows without a state."""
        if any(row.state is None for row in self._dirty):
            self._remove([row for row in self._dirty if row.state is None])
        keys: list[bytes] = []
        values: list[bytes | None] = []
        self._format.write_down(self._dirty, self._prefix, keys, values)
        self._dirty = []
        self._format.forget_noted()
        self._store.write(Changes(keys, values))
        self._sizes.add(keys, values)
        if self._sizes.bytes_of(len(self._rows)) > ROWS_BYTES_MAX:
            self._rows.clear()

    def _remove(self, gone: Sequence[Row]) -> None:
        self._dirty = [row for row in self._dirty if row.state is not None]
        for row in gone:
            row.dirty = False
            self._rows.pop(row.raw, None)
            self._store.delete(self._prefix + row.raw)

    def lookup(self, raw: bytes) -> object:
        """Return the result for a key; None if there is none."""
        row = self._rows.get(raw)
        if row is None:
            data = None if raw in self._absent else self._store.get(self._prefix + raw)
            if data is None:
                return None
            row = self._rows[raw] = self._format.loads(data, raw)
        result: object = self._aggregation.result(row.state)
        return result

    def lookup_all(self, raws: Sequence[bytes | None]) -> list[object]:
        """Return the result for each key."""
        return [None if raw is None else self.lookup(raw) for raw in raws]

    def table(self) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over all keys with their results, by the bytes of the key."""
        self.flush()
        for key, data in self._store.range(self._prefix, prefix_end(self._prefix)):
            row = self._format.loads(data)
            yield self._key.loads(key[len(self._prefix) :]), self._aggregation.result(row.state)
