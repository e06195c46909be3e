"""Versioned tables, and streams joined as of the time of their records.

`VersionedTableStep` keeps the newest row per key like any table, and the versions before it in a
`VersionedStore`. A row that is older than the newest one of its key takes its place among the
versions and is no change of the table: nobody below hears of it; one that is older than the
history goes is late. `AsOfJoinStep` looks up what held at a record's timestamp; with a grace the
record waits for one of its stream that is so much later. Rule of the file: what is seen depends on
timestamps, and on how far the order of the task had come; the table's time is that of its own
records, and the wait is counted in that of the stream's (as in Kafka Streams, KIP-923).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from streamlog.processing.columns import Batch, Feed, Origin
from streamlog.processing.due_rows import DueRow, DueRows, place_of
from streamlog.processing.joins import Lookup, TableJoinStep, TableStep, viewed
from streamlog.processing.node_time import NodeTime
from streamlog.processing.serialized import loads_all
from streamlog.processing.step import Collector
from streamlog.tables.store import KeyValueStore, NamedStore
from streamlog.tables.timed_keys import TIME_MS_MAX
from streamlog.tables.versioned_store import VersionedStore
from streamlog.topology import AsOfJoin, VersionedTable
from streamlog.windows.emit import UNKNOWN_MS

DUE_ROWS = 10_000
"""Handed on at once."""
SEEN_ROWS_MAX = 100_000
"""Decoded versions in memory; beyond, all are dropped."""


@runtime_checkable
class AsOfLookup(Lookup, Protocol):
    """Port: a step that knows what held for a key at a time."""

    def lookup_as_of(self, raw: bytes, timestamp_ms: int) -> object:
        """The value for a key as bytes at that time; None if there was none, or none is known."""


class VersionedTableStep(TableStep):
    """The latest value per key by timestamp, and those before it."""

    section = "versioned"

    def __init__(
        self,
        node: VersionedTable,
        store: KeyValueStore,
        collector: Collector,
        *,
        tells_old_values: bool = False,
    ) -> None:
        super().__init__(node, store, collector, tells_old_values=tells_old_values)
        self._versions = VersionedStore(
            NamedStore(store, node.versions), history_retention_ms=node.history_ms
        )
        self._history_ms = node.history_ms
        self._time_ms = UNKNOWN_MS
        self._seen: dict[bytes, tuple[int, int, object]] = {}
        """Per key the version that was looked up last: from, until, value."""

    def process(self, batch: Batch) -> None:
        """Give each row its place; hand on those that are the newest of their keys."""
        batch, raws, datas = self.written_with(batch, self._key, self._value)
        kept: list[bool] = []
        replaced: list[object] = []
        for at, (raw, data) in enumerate(zip(raws, datas, strict=True)):
            if self._tells_old_values:
                replaced.append(None if raw is None else self.lookup(raw))
            is_news = raw is not None and self._put(raw, data, batch.timestamps[at])
            kept.append(is_news)
        self._collector.drop(self.name, "null key", sum(raw is None for raw in raws))
        if self._tells_old_values:
            batch = batch.with_old_values(replaced)
        self.forward(batch if all(kept) else batch.where(kept))

    def _put(self, raw: bytes, data: bytes | None, timestamp_ms: int) -> bool:
        """Take in one row; whether it is the newest of its key, and changes it."""
        if timestamp_ms > self._time_ms:
            self._time_ms = timestamp_ms
            self._versions.advance(timestamp_ms)
        newest_ms = self._versions.newest_ms(raw)
        if not self._versions.put(raw, data, timestamp_ms):
            late_by_ms = self._time_ms - self._history_ms - timestamp_ms
            self._collector.drop(self.name, "late", late_by_ms=late_by_ms)
            return False
        self._seen.pop(raw, None)
        if newest_ms is not None and timestamp_ms < newest_ms:
            return False
        return self._replace(raw, data)

    def lookup_as_of(self, raw: bytes, timestamp_ms: int) -> object:
        """The value for a key as bytes at that time; None if there was none, or none is known."""
        is_known = timestamp_ms >= self._time_ms - self._history_ms
        seen = self._seen.get(raw)
        if is_known and seen is not None and seen[0] <= timestamp_ms < seen[1]:
            return seen[2]
        found = self._versions.get(raw, timestamp_ms)
        if found is None:
            return None
        value = self._value.loads(found.value)
        if is_known:
            if len(self._seen) >= SEEN_ROWS_MAX:
                self._seen.clear()
            until_ms = TIME_MS_MAX if found.valid_to_ms is None else found.valid_to_ms
            self._seen[raw] = (found.timestamp_ms, until_ms, value)
        return value

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the rows."""
        return {"time_ms": self._time_ms}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave; the rows are in the store."""
        self._time_ms = int(data["time_ms"])
        if self._time_ms > UNKNOWN_MS:
            self._versions.advance(self._time_ms)


class AsOfJoinStep(TableJoinStep):
    """Each record with the row that held for its key at its timestamp."""

    def __init__(self, node: AsOfJoin, table: AsOfLookup, collector: Collector) -> None:
        super().__init__(node, table, collector)
        self._versions = table

    def _rows(self, batch: Batch, raws: Sequence[bytes | None]) -> tuple[Batch, list[object]]:
        return self.applied(batch, self._row_as_of, raws, batch.keys, batch.timestamps)

    def _row_as_of(self, raw: bytes | None, key: object, timestamp_ms: int) -> object:
        found = None if raw is None else self._versions.lookup_as_of(raw, timestamp_ms)
        for view in self._node.views:
            if found is None:
                break
            found = viewed(view, key, found)
        return found


class WaitingAsOfJoinStep(AsOfJoinStep):
    """The same for records that wait before, for rows that come late."""

    section = "joins"

    def __init__(
        self,
        node: AsOfJoin,
        table: AsOfLookup,
        collector: Collector,
        *,
        waiting: NamedStore,
        feeds: Sequence[Feed],
        partition: int,
    ) -> None:
        super().__init__(node, table, collector)
        self._serde = node.value
        self._grace_ms = node.grace_ms
        self.node_time = NodeTime(feeds)
        self._feeds = self.node_time.feeds
        self.feed = Feed((node.name, partition))
        """What has waited."""
        self._now_ms = UNKNOWN_MS
        self._waiting = DueRows(waiting)
        self._number = 0
        self._sequence = 0

    @property
    def own_feeds(self) -> Sequence[Feed]:
        """What has waited."""
        return (self.feed,)

    def process(self, batch: Batch) -> None:
        """Let records wait that are not late, hand on those whose turn has come."""
        batch = self._without_null_values(batch)
        batch, raws, datas = self.written_with(batch, self._node.key, self._serde)
        batch = self.node_time.of(batch)
        moments, headers = batch.of_origin(batch.origin.moments), batch.origin.headers
        at_once: list[int] = []
        for at, (raw, data) in enumerate(zip(raws, datas, strict=True)):
            now_ms = self._now_ms = max(self._now_ms, moments[at])
            if self._is_due(now_ms):
                self._join_now(batch, at_once)
                at_once = []
                self._release(now_ms)
            timestamp_ms = batch.timestamps[at]
            if raw is None or data is None or timestamp_ms <= now_ms - self._grace_ms:
                at_once.append(at)
                continue
            number, self._number = self._number, self._number + 1
            place = place_of(timestamp_ms, 0, raw, number)
            self._waiting.add(place, data, headers[batch.rows[at]] if headers else ())
        self._join_now(batch, at_once)
        self._set_time()

    def waits_for(self) -> Iterable[tuple[Feed, int]]:
        """When the next record has waited long enough."""
        next_ms = self._waiting.next_ms
        return () if next_ms is None else self.needs(next_ms)

    def needs(self, time_ms: int) -> Iterable[tuple[Feed, int]]:
        """It tells its time less how long records wait."""
        return [(feed, time_ms + self._grace_ms) for feed in self._feeds]

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - stream time only
        """All records at hand have been taken: tell those below whether more comes soon.

        What waits goes on with a record, never between two: rows of the table have their turns
        there as well, and which of them are seen must not depend on when that is.
        """
        self.feed.quiet_ms = min((feed.quiet_ms for feed in self._feeds), default=0)
        self.feed.at_end = all(feed.at_end for feed in self._feeds)
        return False

    def flush(self) -> None:
        """Write the records that wait into the store."""
        self._waiting.flush()

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the records."""
        return {
            "now_ms": self._now_ms,
            "time_ms": self.feed.time_ms,
            "number": self._number,
            "sequence": self._sequence,
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave; the records are in the store."""
        self._now_ms = int(data["now_ms"])
        self.feed.time_ms = int(data["time_ms"])
        self._number = int(data["number"])
        self._sequence = int(data["sequence"])
        self._waiting.load()

    def _without_null_values(self, batch: Batch) -> Batch:
        kept = [value is not None for value in batch.values]
        self._collector.drop(self.name, "null value", kept.count(False))
        return batch if all(kept) else batch.where(kept)

    def _is_due(self, now_ms: int) -> bool:
        next_ms = self._waiting.next_ms
        return next_ms is not None and next_ms <= now_ms - self._grace_ms

    def _join_now(self, batch: Batch, ats: Sequence[int]) -> None:
        """Join records in hand: those that were late when they came, or have no key."""
        if ats:
            chosen = {*ats}
            super().process(batch.where([at in chosen for at in range(len(batch))]))

    def _release(self, now_ms: int) -> None:
        due = self._waiting.due(now_ms - self._grace_ms + 1)
        while rows := list(islice(due, DUE_ROWS)):
            self._join_later(rows)

    def _join_later(self, rows: Sequence[DueRow]) -> None:
        """Join records that have waited."""
        first, self._sequence = self._sequence, self._sequence + len(rows)
        numbers, times = range(first, self._sequence), [row.due_ms for row in rows]
        keys, values = [row.key for row in rows], [row.value for row in rows]
        origin = Origin.of_rows(
            self.feed,
            numbers,
            times,
            raw_keys=keys,
            raw_values=values,
            headers=[row.headers for row in rows],
        )
        decoded = loads_all(self._node.key, keys), loads_all(self._serde, values)
        batch = Batch(origin, range(len(rows)), *decoded, times)
        batch.keys_are_raw = batch.values_are_raw = False
        super().process(batch)

    def _set_time(self) -> None:
        """What waits is later than this."""
        if self._now_ms > UNKNOWN_MS:
            self.feed.time_ms = max(self.feed.time_ms, self._now_ms - self._grace_ms)
