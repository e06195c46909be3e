"""When a windowed aggregation emits results, and the stream time that decides it.

Stream time is kept per source and never goes back. A source is a partition of a topic that a task's
records come from, directly or through a repartition topic. A record is late if the time of its own
source has passed its window. A window closes at the minimum over all sources. So a source that is
read faster than the others neither makes their records late nor closes their windows. Rule of the
file: the set of sources is fixed at the start, and a source without a record or time mark holds
every window open until one arrives or the source becomes idle. Not done here: detecting idle
sources (`processing/windows/windowed_step`), and rows and their store
(`processing/tables/aggregate`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar, Literal, TypeAlias

import msgspec

from streamlog.durations import Dur, duration_ms, duration_text
from streamlog.errors import ConfigError, CorruptData

Source: TypeAlias = tuple[str, int]
"""A topic and a partition of it."""

FAR_MS = 1 << 62
"""Later than every timestamp."""
UNKNOWN_MS = -1
"""The time of a source without a record or time mark: below every timestamp."""

_Rows: TypeAlias = list[tuple[str, int, int, bool]]


EmitClock = Literal["event", "wall"]
"""The clock that counts intervals: stream time, or the wall clock of the worker."""


class Emit(msgspec.Struct, frozen=True):
    """When a windowed aggregation emits: `UPDATE`, `CLOSE`, `COMMIT` or `early`."""

    name: str
    every_ms: int = 0
    """The interval of `early` in milliseconds; 0 for the others."""
    clock: EmitClock = "event"
    """The clock of `early`."""

    UPDATE: ClassVar[Emit]
    """Emit the new value of a window at each change."""
    CLOSE: ClassVar[Emit]
    """Emit the final value of a window once, when the window closes."""
    COMMIT: ClassVar[Emit]
    """Emit, at each commit, the newest value of every window and key that has changed since the
    last commit. This is what a record cache does, bounded by the commit interval."""

    @staticmethod
    def early(every: Dur, *, clock: EmitClock = "event") -> Emit:
        """Emit at most one row per window, key and interval, and the final row on close.

        At the end of an interval, every window and key that has changed in it and is still open
        emits its newest value.

        Args:
            every: the interval, longer than 0 ms. Intervals of stream time are aligned to the
                epoch.
            clock: "event" counts stream time, so that equal records give equal rows; "wall" counts
                the wall clock of the worker.

        Raises:
            ConfigError: `every` is malformed or zero, or `clock` is neither "event" nor "wall".
        """
        every_ms = duration_ms(every)
        if not every_ms:
            raise ConfigError(f"Emit.early needs an interval longer than 0 ms, not {every!r}")
        if clock not in ("event", "wall"):
            raise ConfigError(f"the clock of Emit.early must be 'event' or 'wall', not {clock!r}")
        return Emit(f"early every {duration_text(every_ms)} ({clock})", every_ms, clock)

    @property
    def is_final(self) -> bool:
        """Whether a window emits its final rows when it closes."""
        return self == Emit.CLOSE or self.is_early

    @property
    def is_early(self) -> bool:
        """Whether open windows emit rows at the ends of intervals."""
        return self.every_ms > 0


Emit.UPDATE, Emit.CLOSE, Emit.COMMIT = Emit("UPDATE"), Emit("CLOSE"), Emit("COMMIT")


class Cadence:
    """The intervals of `Emit.early` by one clock, and which of them have ended."""

    __slots__ = ("_is_aligned", "ended_ms", "every_ms", "next_ms")

    def __init__(self, emit: Emit) -> None:
        self.every_ms = emit.every_ms
        self._is_aligned = emit.clock == "event"
        self.next_ms = UNKNOWN_MS
        """When the current interval ends; UNKNOWN_MS before the first one begins."""
        self.ended_ms = UNKNOWN_MS
        """When the last interval ended for which `is_due` returned True."""

    def is_due(self, now_ms: int) -> bool:
        """Return whether an interval has ended by now; if so, begin the next one.

        The first known time begins the first interval and ends none.
        """
        if now_ms < self.next_ms or now_ms <= UNKNOWN_MS:
            return False
        has_begun = self.next_ms > UNKNOWN_MS
        self.ended_ms = self.next_ms
        # Aligned intervals of 10 s, the current one ends at 10:00:20, and time jumps to 10:00:47.
        # 1. One interval is due, not three: rows of the skipped ones would be equal.
        # 2. The next interval ends at 10:00:50, so the result depends on the times of records and
        #    not on when `is_due` is called.
        begun_ms = now_ms // self.every_ms * self.every_ms if self._is_aligned else now_ms
        self.next_ms = begun_ms + self.every_ms
        return has_begun


def is_late(window_end_ms: int, source_time_ms: int, grace_ms: int) -> bool:
    """Return whether a window is closed to a record whose source has reached this time."""
    return window_end_ms + grace_ms <= source_time_ms


def closed_until(stream_time_ms: int, grace_ms: int) -> int:
    """Return the largest end of a window that is closed at this time; below 0 if none can be.

    Windows with `end <= closed_until(...)` are closed, all others are open.
    """
    return stream_time_ms - grace_ms


class StreamTime:
    """The event time that each source has reached, and the one that all of them have reached.

    Invariant: no time that this class returns ever falls, even if an idle source continues behind
    the others, or after a restart.
    """

    __slots__ = ("_behind", "_floor_ms", "_idle", "_now_ms", "_times")

    def __init__(self, sources: Iterable[Source]) -> None:
        self._times: dict[Source, int] = dict.fromkeys(sources, UNKNOWN_MS)
        self._idle: set[Source] = set()
        self._now_ms = UNKNOWN_MS
        # The minimum over live sources, and how many of them are at it. While at least one remains
        # there, advancing another source costs one comparison instead of a scan of all sources.
        self._floor_ms = UNKNOWN_MS
        self._behind = len(self._times)

    @property
    def now_ms(self) -> int:
        """The time that every live source has reached, by which windows close.

        This is the minimum over the sources that are not idle; if all are idle, the largest time of
        any source. UNKNOWN_MS while a live source has no time.
        """
        return self._now_ms

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources, in the order of the constructor's argument."""
        return tuple(self._times)

    def time_of(self, source: Source) -> int:
        """Return the time that decides whether records of this source are late.

        It is at least `now_ms`: windows that closed while the source was idle stay closed when it
        continues.
        """
        return max(self._times[source], self._now_ms)

    def advance(self, source: Source, timestamp_ms: int) -> None:
        """Advance a source to the time of its record or time mark, and count it as live.

        An older timestamp does not change the time.
        """
        time_ms = self._times[source]
        if self._idle and source in self._idle:
            self._idle.remove(source)
            self._times[source] = max(time_ms, timestamp_ms)
            self._settle()
        elif timestamp_ms > time_ms:
            self._times[source] = timestamp_ms
            if time_ms == self._floor_ms:
                self._behind -= 1
                if not self._behind:
                    self._settle()

    def outlook(self, source: Source) -> tuple[int, int, int]:
        """Return the times of this source, of all sources, and of all other live sources.

        With these, a loop over records of one source computes times without calls. While only
        `source` advances, to a time t:

        - its own time is max(t, first);
        - `now_ms` is max(second, min(t, third)).
        """
        others = [
            time
            for other, time in self._times.items()
            if other != source and other not in self._idle
        ]
        return self.time_of(source), self._now_ms, min(others, default=FAR_MS)

    def set_idle(self, source: Source) -> None:
        """Do not wait for `source` until `advance` is called for it.

        Raises:
            KeyError: there is no such source.
        """
        if source not in self._times:
            raise KeyError(source)
        self._idle.add(source)
        self._settle()

    def is_idle(self, source: Source) -> bool:
        """Return whether windows close without waiting for `source`."""
        return source in self._idle

    def _settle(self) -> None:
        """Compute the minimum over all sources again."""
        if self._idle:
            live = [time for source, time in self._times.items() if source not in self._idle]
            times: Collection[int] = live or [max(self._times.values())]
        else:
            times = self._times.values()
        if len(times) == 1:
            (self._floor_ms,) = times
            self._behind = 1
        else:
            self._floor_ms = min(times, default=UNKNOWN_MS)
            self._behind = list(times).count(self._floor_ms)
        # Sources `a` at 10:05 and `b` at 10:00; `now_ms` is 10:00.
        # 1. `b` becomes idle: the minimum over live sources is 10:05, and windows close by it.
        # 2. `b` continues with a record at 10:01: the minimum falls to 10:01, but `now_ms` stays at
        #    10:05, and by `time_of` the record is late for the windows that have closed.
        # 3. Both are idle: the minimum is the largest time of both, so that the last windows close
        #    although no source advances.
        self._now_ms = max(self._now_ms, self._floor_ms)

    def to_data(self) -> dict[str, object]:
        """Return the times as plain data, for a section of `TaskProgress`."""
        rows = [
            [topic, partition, time_ms, (topic, partition) in self._idle]
            for (topic, partition), time_ms in self._times.items()
        ]
        return {"now_ms": self._now_ms, "sources": rows}

    def load(self, data: Mapping[str, object]) -> None:
        """Restore what `to_data` returned.

        Ignores sources that do not exist here. New sources have no time yet; `now_ms` never falls.

        Raises:
            CorruptData: the data does not have the form that `to_data` returns.
        """
        try:
            rows = msgspec.convert(data["sources"], _Rows)
            now_ms = msgspec.convert(data["now_ms"], int)
        except (KeyError, msgspec.ValidationError) as error:
            raise CorruptData(f"the stored stream time is not readable: {error}") from error
        for topic, partition, time_ms, idle in rows:
            source = (topic, partition)
            if source in self._times:
                self._times[source] = max(self._times[source], time_ms)
                self._idle |= {source} if idle else set()
        self._now_ms = max(self._now_ms, now_ms)
        self._settle()
