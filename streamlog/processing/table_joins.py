"""TableTableJoinStep: rows of two tables by key, as both have told them.

A change of one side gives a new row with what the other one told last. Rules of the file:

1. A result has the larger timestamp of the change and of the other side's row, if that is there;
   a deletion's counts, what was deleted before does not.
2. A deletion goes on only if there was a row to be deleted.
3. What is kept is what the sides have handed on, not what they have: each result follows from those
   before it, whatever tables were made of.
4. What one record changes on both sides is one change of the join: `meetings` says from where to
   where. Until then the row is what it was, for those who look it up, too.

Rows of windowed tables expire when stream time is so far beyond their windows that neither side can
change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from streamlog.durations import moment, when_ms
from streamlog.errors import CorruptData
from streamlog.processing.aggregate import ROWS_BYTES_MAX, RowSizes
from streamlog.processing.changes import result_before, result_of
from streamlog.processing.columns import Batch, Feed
from streamlog.processing.step import Collector, Step
from streamlog.record import Windowed
from streamlog.tables.store import (
    KeyValueStore,
    prefix_end,
    split_window_key,
    window_bound,
    window_key,
)
from streamlog.topology import TableTableJoin
from streamlog.windows.emit import UNKNOWN_MS

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, bytes | None, int, bytes | None]).decode


class Told:
    """What one side has told of a key."""

    __slots__ = ("data", "time_ms", "value")

    def __init__(self, value: object, data: bytes | None, time_ms: int) -> None:
        self.value = value
        """None: there is no row, or no more."""
        self.data = data
        self.time_ms = time_ms
        """Its timestamp; UNKNOWN_MS without a row."""


class Pair:
    """What both sides have told of a key."""

    __slots__ = ("dirty", "left", "raw", "right")

    def __init__(self, raw: bytes, left: Told, right: Told) -> None:
        self.raw = raw
        self.left = left
        self.right = right
        self.dirty = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be kept."""
        return self.left.value is None and self.right.value is None


class _Held:
    """What both sides have told of a key since changes are held; None: nothing."""

    __slots__ = ("last", "left", "left_ms", "right", "right_ms")

    def __init__(self) -> None:
        self.left: Told | None = None
        self.right: Told | None = None
        self.left_ms = self.right_ms = UNKNOWN_MS
        """When, also of deletions."""
        self.last = (0, 0)
        """The batch with its last change, and where in it."""


class _Results:
    """Changes in the making, of those that came in a batch: columns for the next one."""

    __slots__ = ("batch", "changed", "new", "old", "times")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.changed: list[bool] = []
        """For each record that came in."""
        self.new: list[Any] = []
        self.old: list[Any] = []
        self.times: list[int] = []


class TableSideStep(Step):
    """Where the changes of one of the tables come in."""

    def __init__(self, name: str, *, is_left: bool) -> None:
        super().__init__(name)
        self.is_left = is_left
        self.take: Callable[[Batch, bool], None] | None = None
        """Of the join behind it."""

    def process(self, batch: Batch) -> None:
        """Tell the join which side this is."""
        if self.take is not None:
            self.take(batch, self.is_left)


class TableTableJoinStep(Step):
    """Rows of two tables by key."""

    def __init__(
        self,
        node: TableTableJoin,
        store: KeyValueStore,
        collector: Collector,
        *,
        sides: Sequence[TableSideStep],
        feeds: Sequence[Feed],
        tells_old_values: bool,
    ) -> None:
        super().__init__(node.name)
        self._node = node
        self._feeds = feeds
        self._prefix = node.store.prefix
        self._store = store
        self._collector = collector
        self._tells_old_values = tells_old_values
        self._pairs: dict[bytes, Pair] = {}
        self._dirty: list[Pair] = []
        self._holds = 0
        self._held: dict[bytes, _Held] = {}
        self._held_batches: list[Batch] = []
        self._sizes = RowSizes()
        self._expired_ms = UNKNOWN_MS
        for side in sides:
            side.take = self.take

    def take(self, batch: Batch, is_left: bool) -> None:  # noqa: FBT001 - as `TableSideStep.take`
        """Take in changes of one side, hand on what comes of them."""
        serde = self._node.left if is_left else self._node.right
        batch, datas = self.written_values(batch, serde)
        batch, raw_keys = self._keyed(batch)
        columns = zip(raw_keys, batch.values, datas, batch.timestamps, strict=True)
        if self._holds:
            self._keep(batch, columns, is_left=is_left)
            return
        results = _Results(batch)
        for at, (raw, value, data, time_ms) in enumerate(columns):
            pair = self._pair(raw)
            told = Told(value, data, UNKNOWN_MS if value is None else time_ms)
            other = pair.right if is_left else pair.left
            left, right = (told, other) if is_left else (other, told)
            if self._change(results, at, pair, left, right):
                results.times.append(max(time_ms, other.time_ms))
        self._hand_on(results)

    def hold(self) -> None:
        """Both sides are about to hear of the same record: wait until they have."""
        self._holds += 1

    def release(self) -> bool:
        """They have: one row for each key that has changed. Returns whether there was one."""
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
            self._hand_on(results)
        return True

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - as of its sides
        """All above have let time take effect: what they told is one change."""
        return self._holds > 0 and self.release()

    def flush(self) -> None:
        """Write changed rows into the store, and remove those that have expired."""
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
        """The row of a key as bytes; None if there is none."""
        pair = self._pair(raw)
        found: object = self._node.joined(pair.left.value, pair.right.value)
        return found

    def lookup_all(self, raws: Sequence[bytes | None]) -> list[object]:
        """The row of each key."""
        return [None if raw is None else self.lookup(raw) for raw in raws]

    def table(self) -> Iterator[tuple[Any, Any]]:
        """All rows, by the bytes of the key."""
        self.flush()
        for stored, data in self._store.range(self._prefix, prefix_end(self._prefix)):
            value = joined_row(self._node, data)
            if value is not None:
                yield self._key(stored[len(self._prefix) :]), value

    def _keyed(self, batch: Batch) -> tuple[Batch, Sequence[bytes]]:
        """The changes that have a key, with where the rows of those lie."""
        if batch.has_null_keys:
            kept = [key is not None for key in batch.keys]
            self._collector.drop(self.name, "null key", kept.count(False))
            batch = batch.where(kept)
        if self._node.kept_ms is None:
            raws = batch.raw_keys(self._node.key, self.name)
        else:
            raws = batch.applied(self.name, self._row_key, batch.keys)
        return batch, [raw or b"" for raw in raws]

    def _row_key(self, key: Windowed[Any]) -> bytes:
        return window_key(when_ms(key.end), when_ms(key.start), self._node.key.dumps(key.key))

    def _key(self, raw: bytes) -> object:
        if self._node.kept_ms is None:
            return self._node.key.loads(raw)
        end_ms, start_ms, own = split_window_key(raw)
        return Windowed(self._node.key.loads(own), moment(start_ms), moment(end_ms))

    def _pair(self, raw: bytes) -> Pair:
        pair = self._pairs.get(raw)
        if pair is None:
            data = self._store.get(self._prefix + raw)
            pair = self._pairs[raw] = Pair(raw, *_told(self._node, data))
        return pair

    def _keep(
        self,
        batch: Batch,
        columns: Iterable[tuple[bytes, Any, bytes | None, int]],
        *,
        is_left: bool,
    ) -> None:
        """Note what a side has told, until the other one has been heard."""
        number = len(self._held_batches)
        self._held_batches.append(batch)
        for at, (raw, value, data, time_ms) in enumerate(columns):
            told = Told(value, data, UNKNOWN_MS if value is None else time_ms)
            held = self._held.setdefault(raw, _Held())
            held.last = (number, at)
            if is_left:
                held.left, held.left_ms = told, time_ms
            else:
                held.right, held.right_ms = told, time_ms

    def _change_held(self, results: _Results, at: int, raw: bytes, held: _Held) -> None:
        pair = self._pair(raw)
        left, right = held.left or pair.left, held.right or pair.right
        left_ms = left.time_ms if held.left is None else held.left_ms
        right_ms = right.time_ms if held.right is None else held.right_ms
        if self._change(results, at, pair, left, right):
            results.times.append(max(left_ms, right_ms))

    def _change(self, results: _Results, at: int, pair: Pair, left: Told, right: Told) -> bool:
        """These are the sides of a row from here on; whether that changes it."""
        before_left, before_right = pair.left, pair.right
        pair.left, pair.right = left, right
        if not pair.dirty:
            pair.dirty = True
            self._dirty.append(pair)
        node, old = self._node, None
        new = result_of(self, results.batch, at, node.joined, left.value, right.value)
        if new is None or self._tells_old_values:
            before = before_left.value, before_right.value
            is_there = node.joins(*before)
            old = result_before(self, results.batch, at, node.joined, *before) if is_there else None
        is_change = new is not None or old is not None
        results.changed.append(is_change)
        if is_change:
            results.new.append(new)
            results.old.append(old)
        return is_change

    def _hand_on(self, results: _Results) -> None:
        batch = results.batch
        changes = batch if all(results.changed) else batch.where(results.changed)
        changes = changes.with_values(results.new)
        changes.timestamps = results.times
        changes.old_values = results.old if self._tells_old_values else None
        self.forward(changes)

    def _expire(self) -> None:
        """Remove the rows of windows that nobody can change any more."""
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


def _told(node: TableTableJoin, data: bytes | None) -> tuple[Told, Told]:
    if data is None:
        return Told(None, None, UNKNOWN_MS), Told(None, None, UNKNOWN_MS)
    try:
        left_ms, left, right_ms, right = _decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"a row of {node.name!r} is not readable: {error}") from error
    return (
        Told(None if left is None else node.left.loads(left), left, left_ms),
        Told(None if right is None else node.right.loads(right), right, right_ms),
    )


def joined_row(node: TableTableJoin, data: bytes) -> object:
    """The row that these bytes of the store stand for; None if there is none.

    Raises:
        CorruptData: they are not readable.
    """
    left, right = _told(node, data)
    found: object = node.joined(left.value, right.value)
    return found
