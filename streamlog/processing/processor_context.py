"""TaskContext: what a processor sees of its task, and what it has forwarded.

Rule of the file: what can't be had at the moment (the record, while a timer fires) is an error
that says so, never something made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from streamlog.chance import UUID, Chance, Random
from streamlog.durations import EPOCH, When, moment, when_ms
from streamlog.errors import UsageError
from streamlog.processing.columns import Batch, Feed, Origin
from streamlog.processing.timers import Alarm, KeyTimers
from streamlog.record import Record
from streamlog.topology import ClockName, Process, TimerStore
from streamlog.windows.emit import UNKNOWN_MS

AT_ONCE_MAX = 1_000_000
"""Timers set, while timers fire, for a time that has come: this many are an endless chain."""


class Forwarded:
    """What has been forwarded and not handed on yet: columns, all of one origin."""

    __slots__ = ("keys", "rows", "timestamps", "values")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.timestamps: list[int] = []

    def cut(self, length: int) -> None:
        """Forget all but the first ones."""
        for column in (self.rows, self.keys, self.values, self.timestamps):
            del column[length:]

    def add(self, row: int, key: object, value: object, timestamp_ms: int) -> None:
        """One more record, made at this row of the origin."""
        self.rows.append(row)
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp_ms)

    def batch(self, origin: Origin) -> Batch:
        """All of it."""
        batch = Batch(origin, self.rows, self.keys, self.values, self.timestamps)
        batch.keys_are_raw = batch.values_are_raw = False
        return batch


class TaskTimers:
    """`self.ctx.timers` of a processor."""

    def __init__(self, node: Process, clocks: Mapping[ClockName, KeyTimers | None]) -> None:
        self._node = node
        self._clocks = clocks
        self._is_closed = False
        self._firing_ms = UNKNOWN_MS
        self._at_once = 0

    def set(self, key: object, at: When, tag: str = "", *, clock: ClockName = "event") -> None:
        """Call `on_timer` at this time, instead of what was set for this key and tag before."""
        timers = self._of(clock)
        at_ms = when_ms(at)
        if at_ms < 0:
            raise UsageError(f"a timer can't be set for a time before 1970: {at!r}")
        if at_ms <= self._firing_ms:
            self._at_once += 1
            if self._at_once > AT_ONCE_MAX:
                raise UsageError("on_timer sets timers for times that have come, without an end")
        timers.set(self._raw(key), at_ms, tag)

    def cancel(self, key: object, tag: str = "", *, clock: ClockName = "event") -> None:
        """Do not call it."""
        self._of(clock).cancel(self._raw(key), tag)

    def fire(self, at_ms: int) -> None:
        """A timer of this time is firing; UNKNOWN_MS: none is."""
        self._firing_ms = at_ms
        if at_ms == UNKNOWN_MS:
            self._at_once = 0

    def close(self) -> None:
        """Refuse changes from here on: nobody would commit them."""
        self._is_closed = True

    def key_of(self, timer: Alarm) -> object:
        """The key of a timer, as the user gave it."""
        return self._declared.key.loads(timer.key)

    @property
    def _declared(self) -> TimerStore:
        if self._node.timers is None:
            raise UsageError(f"{self._node.name!r} can't set timers: its class has no on_timer")
        return self._node.timers

    def _of(self, clock: ClockName) -> KeyTimers:
        timers = self._clocks.get(clock)
        if timers is None:
            _ = self._declared
            raise UsageError(f"a timer's clock is 'event' or 'wall', not {clock!r}")
        if self._is_closed:
            raise UsageError("timers can't be set in close(): the last commit has been")
        return timers

    def _raw(self, key: object) -> bytes:
        if key is None:
            raise UsageError("None is no key for a timer")
        return self._declared.key.dumps(key)


class TaskContext:
    """`self.ctx` of a processor."""

    def __init__(self, app_id: str, node: str, timers: TaskTimers) -> None:
        self._chance = Chance(f"{app_id}/{node}".encode())
        self._record: Record[Any, Any] | None = None
        self._origin: Origin | None = None
        self._feed: Feed | None = None
        self._row = self._number = self._timestamp_ms = 0
        self._is_drawn = False
        self.timers = timers
        self.forwarded = Forwarded()
        self.time_ms = UNKNOWN_MS
        self.wall_ms = UNKNOWN_MS

    def take(self, batch: Batch, at: int, *, index: int) -> Record[Any, Any]:
        """The record that is in hand from now on; `index` counts those at the same place."""
        record = self._record = batch.record(at)
        self._origin, self._row, self._number = batch.origin, batch.rows[at], index
        self._feed = batch.origin.feed
        self._timestamp_ms = batch.timestamps[at]
        self._is_drawn = False
        return record

    def fire(self, alarm: Alarm, feed: Feed, *, row: int, number: int) -> None:
        """What fires now, in place of a record; `number` is that of the firing."""
        self._record = self._origin = None
        self._feed, self._row, self._number = feed, row, number
        self._timestamp_ms = alarm.at_ms
        self._is_drawn = False

    def let_go(self) -> None:
        """There is nothing in hand."""
        self._record = self._origin = self._feed = None

    @property
    def written_ms(self) -> int:
        """The time of what is in hand; in `init`, stream time."""
        return max(self.time_ms, 0) if self._feed is None else self._timestamp_ms

    @property
    def record(self) -> Record[Any, Any]:
        """The record in hand."""
        if self._record is None:
            raise UsageError("ctx.record is there in process() only: there is no record here")
        return self._record

    @property
    def stream_time(self) -> datetime:
        """How far event time has come in all sources."""
        return moment(self.time_ms) if self.time_ms > UNKNOWN_MS else EPOCH

    @property
    def wall_time(self) -> datetime:
        """The time of the machine, as of this round of work."""
        if self.wall_ms == UNKNOWN_MS:
            raise UsageError("ctx.wall_time is not known in init(): no work has begun yet")
        return moment(self.wall_ms)

    @property
    def random(self) -> Random:
        """Random numbers that follow from the place of the record."""
        return self._drawn().random

    def uuid(self) -> UUID:
        """A UUID that follows from the place of the record."""
        return self._drawn().uuid()

    def forward(self, key: object, value: object, *, timestamp: When | None = None) -> None:
        """Hand a record on."""
        if self._feed is None:
            raise UsageError(
                "ctx.forward belongs into process(), timers and punctuations: there is nothing in "
                "hand here"
            )
        timestamp_ms = self._timestamp_ms if timestamp is None else when_ms(timestamp)
        if timestamp_ms < 0:
            raise UsageError(f"a record can't be forwarded with a time before 1970: {timestamp!r}")
        self.forwarded.add(self._row, key, value, timestamp_ms)

    def _drawn(self) -> Chance:
        if self._feed is None:
            raise UsageError(
                "ctx.random and ctx.uuid() belong into process(), timers and punctuations: they "
                "follow from what is in hand"
            )
        if not self._is_drawn:
            self._is_drawn = True
            if self._origin is None:
                place = b"%d " % self._number + self._feed.identity
            else:
                place = self._origin.place(self._row) + self._number.to_bytes(4)
            self._chance.move(place)
        return self._chance
