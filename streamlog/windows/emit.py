"""When a windowed result is emitted, and the stream time that decides it.

Stream time is kept per source (a partition of the topics that a task's records come from,
also through a repartition topic) and never goes back. A record is late against the time of
its own source; a window closes for good at the minimum over all sources, so that a source
that is read faster than the others neither drops their records nor closes their windows.
Rule of the file: the sources are fixed at the start, and one that has not been heard of
holds every window open until it speaks or is declared idle. Not done here: finding out who
is idle, and rows and their store (`processing/tables/aggregate`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import msgspec

from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError, CorruptData

Source: TypeAlias = tuple[str, int]
"""A topic and a partition of it."""

FAR_MS = 1 << 62
"""Later than every timestamp."""
UNKNOWN_MS = -1
"""The time of a source that has not been heard of: below every timestamp."""

_Rows: TypeAlias = list[tuple[str, int, int, bool]]


EmitClock = Literal["event", "wall"]
"""By which intervals are counted: stream time, or the clock on the wall."""


@dataclass(frozen=True, slots=True)
class Emit:
    """When a windowed aggregation emits: one of the three below, or `early`."""

    name: str
    every_ms: int = 0
    """Of `early`."""
    clock: EmitClock = "event"
    """Of `early`."""

    UPDATE: ClassVar[Emit]
    """At each change: the window's new value."""
    CLOSE: ClassVar[Emit]
    """Once per window, when it closes: its final value."""
    COMMIT: ClassVar[Emit]
    """At each commit, the newest value of every window and key that has changed since the last one:
    what a record cache does, with the commit interval for its bound."""

    @staticmethod
    def early(every: Dur, *, clock: EmitClock = "event") -> Emit:
        """At most one row per window, key and interval, and the final one when the window closes.

        At the end of an interval the newest value goes on of every window and key that has
        changed in it and is open still.

        Args:
            every: the interval. Those of stream time are aligned to the epoch.
            clock: "event" counts stream time, so the same records give the same rows; "wall"
                the clock of the worker.

        Raises:
            ConfigError: `every` is malformed or zero, or there is no such clock.
        """
        every_ms = duration_ms(every)
        if not every_ms:
            raise ConfigError(f"Emit.early needs an interval longer than 0 ms, not {every!r}")
        if clock not in ("event", "wall"):
            raise ConfigError(f"the clock of Emit.early is 'event' or 'wall', not {clock!r}")
        return Emit(f"early every {every_ms} ms ({clock})", every_ms, clock)

    @property
    def is_final(self) -> bool:
        """Whether a window that closes gives its final rows."""
        return self == Emit.CLOSE or self.is_early

    @property
    def is_early(self) -> bool:
        """Whether rows of open windows go on at intervals."""
        return self.every_ms > 0


Emit.UPDATE, Emit.CLOSE, Emit.COMMIT = Emit("UPDATE"), Emit("CLOSE"), Emit("COMMIT")


class Cadence:
    """Which intervals are over, by one clock; `early` rows go on at their ends."""

    __slots__ = ("_is_aligned", "every_ms", "next_ms", "over_ms")

    def __init__(self, emit: Emit) -> None:
        self.every_ms = emit.every_ms
        self._is_aligned = emit.clock == "event"
        self.next_ms = UNKNOWN_MS
        """When the interval ends; UNKNOWN_MS as long as none has begun."""
        self.over_ms = UNKNOWN_MS
        """When the last one has ended that was due."""

    def is_due(self, now_ms: int) -> bool:
        """Whether an interval is over by now; if so the next one has begun.

        The first time that is known begins the first interval.
        """
        if now_ms < self.next_ms or now_ms <= UNKNOWN_MS:
            return False
        has_begun = self.next_ms > UNKNOWN_MS
        self.over_ms = self.next_ms
        begun_ms = now_ms // self.every_ms * self.every_ms if self._is_aligned else now_ms
        self.next_ms = begun_ms + self.every_ms
        return has_begun


def is_late(window_end_ms: int, source_time_ms: int, grace_ms: int) -> bool:
    """Whether a window is closed to a record whose source has come to `source_time_ms`."""
    return window_end_ms + grace_ms <= source_time_ms


def closed_until(stream_time_ms: int, grace_ms: int) -> int:
    """The largest end of a window that is closed at this time; below 0 while there is none.

    Windows with `end <= closed_until(...)` are closed, all others are open.
    """
    return stream_time_ms - grace_ms


class StreamTime:
    """How far event time has come, in each source and for all of them together.

    Invariant: no time reported here ever falls, also when an idle source wakes up behind
    the others or the state is written down and read again.
    """

    __slots__ = ("_behind", "_floor_ms", "_idle", "_now_ms", "_times")

    def __init__(self, sources: Iterable[Source]) -> None:
        self._times: dict[Source, int] = dict.fromkeys(sources, UNKNOWN_MS)
        self._idle: set[Source] = set()
        self._now_ms = UNKNOWN_MS
        # The minimum over live sources and how many of them are there: as long as one of
        # them stays, a source that moves on costs a comparison and not a look at all others.
        self._floor_ms = UNKNOWN_MS
        self._behind = len(self._times)

    @property
    def now_ms(self) -> int:
        """The time up to which every live source has come: windows close by this one.

        It is the minimum over the sources that are not idle; if all are, the largest time
        any of them had. UNKNOWN_MS while a live source has not been heard of.
        """
        return self._now_ms

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources, in the order given at the start."""
        return tuple(self._times)

    def time_of(self, source: Source) -> int:
        """The time against which records of this source are judged late.

        At least `now_ms`: a source that was idle while windows were closed without it can't
        open them again.
        """
        return max(self._times[source], self._now_ms)

    def advance(self, source: Source, timestamp_ms: int) -> None:
        """A record or time mark of `source`: nothing earlier is expected from it any more.

        The source counts as live again. Older timestamps change nothing else.
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
        """How far `source` has come, all together have, and all others have.

        As long as nothing but `source` advances, to a time t, its own time is the larger of t
        and the first of these, and `now_ms` the larger of the second and of the smaller of t
        and the third.
        """
        others = [
            time
            for other, time in self._times.items()
            if other != source and other not in self._idle
        ]
        return self.time_of(source), self._now_ms, min(others, default=FAR_MS)

    def set_idle(self, source: Source) -> None:
        """Do not wait for `source` until it is heard of again."""
        if source not in self._times:
            raise KeyError(source)
        self._idle.add(source)
        self._settle()

    def is_idle(self, source: Source) -> bool:
        """Whether `source` is not waited for at the moment."""
        return source in self._idle

    def _settle(self) -> None:
        """Look at all sources again."""
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
        self._now_ms = max(self._now_ms, self._floor_ms)

    def to_data(self) -> dict[str, object]:
        """Everything as plain data, for a section of `Progress`."""
        rows = [
            [topic, partition, time_ms, (topic, partition) in self._idle]
            for (topic, partition), time_ms in self._times.items()
        ]
        return {"now_ms": self._now_ms, "sources": rows}

    def load(self, data: Mapping[str, object]) -> None:
        """Take over what `to_data` gave.

        Sources that are not known here are left out, and those that are new here have not
        been heard of; the common time never falls.

        Raises:
            CorruptData: it is not what `to_data` gives.
        """
        try:
            rows = msgspec.convert(data["sources"], _Rows)
            now_ms = msgspec.convert(data["now_ms"], int)
        except (KeyError, msgspec.ValidationError) as error:
            raise CorruptData(f"the stream time written down is not readable: {error}") from error
        for topic, partition, time_ms, idle in rows:
            source = (topic, partition)
            if source in self._times:
                self._times[source] = max(self._times[source], time_ms)
                self._idle |= {source} if idle else set()
        self._now_ms = max(self._now_ms, now_ms)
        self._settle()
