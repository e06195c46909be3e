"""Window definitions: frozen specs that stand in the topology, and their constructors.

Tumbling and hopping windows are half open, [start, end), aligned to the epoch, and never start
below it. A session spans the first to the last of its records, both included; records no further
apart than the gap belong to one session. A sliding window holds [start, start + size], both
included: one ends at each record, and one begins a millisecond after each record. A count window
holds a number of records of a key, in the order in which the task processes them; with a timeout it
also ends by stream time. Semantics are those of Kafka Streams; count windows and the limit of a
session's length are ours. Rules of the module: a definition that exists is valid, as every check
stands in `__post_init__`; which windows a record may belong to is plain arithmetic on integers,
without state. Not done here: assigning timestamps (`window_assigner`), closing and emission
(`emit`), days and months (`calendar`), which windows are open (`processing/windows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from streamlog.durations import DURATION_MS_MAX, Dur, duration_ms
from streamlog.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """What all windows of time have in common, in milliseconds."""

    size_ms: int
    grace_ms: int = 0
    retention_ms: int

    size_ms_min: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("size_ms", "grace_ms", "retention_ms"):
            value = getattr(self, name)
            if not 0 <= value <= DURATION_MS_MAX:
                raise ConfigError(f"{name} of a window must lie in 0..{DURATION_MS_MAX}: {value}")
        if self.size_ms < self.size_ms_min:
            raise ConfigError("a window must be longer than 0 ms: give it a size such as '1m'")
        if self.retention_ms < self.size_ms + self.grace_ms:
            raise ConfigError(
                f"retention of {self.retention_ms} ms is shorter than the window's size "
                f"({self.size_ms} ms) plus its grace ({self.grace_ms} ms): rows would be gone "
                "before their window closes; raise retention or lower grace"
            )

    @property
    def described(self) -> str:
        """As a line about a topology says it."""
        return f"windows of {self.size_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tumbling(Windows):
    """Windows side by side: every timestamp is in exactly one.

    `offset_ms` moves the borders away from the epoch (a day that begins at 06:00 UTC has an
    offset of 6 h); the window that would begin below 0 is cut off there.
    """

    offset_ms: int = 0

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        if not 0 <= self.offset_ms < self.size_ms:
            raise ConfigError(
                f"the offset of a tumbling window must be shorter than its size of "
                f"{self.size_ms} ms: {self.offset_ms} ms"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopping(Windows):
    """Windows of one size that begin every `step_ms`: those shorter apart than long overlap."""

    step_ms: int

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        if not 0 < self.step_ms <= self.size_ms:
            raise ConfigError(
                f"the step of a hopping window must be longer than 0 ms and no longer than its "
                f"size of {self.size_ms} ms, as records between two windows would be in none: "
                f"{self.step_ms} ms"
            )

    @property
    def described(self) -> str:
        """As a line about a topology says it."""
        return f"windows of {self.size_ms} ms every {self.step_ms} ms"


def tumbling(
    size: Dur, *, grace: Dur = "0s", retention: Dur | None = None, offset: Dur = "0s"
) -> Tumbling:
    """Windows of `size` side by side, aligned to the epoch and moved by `offset`.

    Args:
        size: length of a window.
        grace: how far stream time may pass the end of a window before it closes.
        retention: how long a row is kept, counted from the start of its window; by default
            just as long as needed, `size` plus `grace`.
        offset: moves the borders; shorter than `size`.

    Raises:
        ConfigError: a duration is malformed, `size` is zero, `offset` is not shorter than
            `size`, or `retention` is shorter than `size` plus `grace`.
    """
    size_ms, grace_ms = duration_ms(size), duration_ms(grace)
    return Tumbling(
        size_ms=size_ms,
        grace_ms=grace_ms,
        retention_ms=size_ms + grace_ms if retention is None else duration_ms(retention),
        offset_ms=duration_ms(offset),
    )


def hopping(size: Dur, step: Dur, *, grace: Dur = "0s", retention: Dur | None = None) -> Hopping:
    """Windows of `size`, one beginning every `step`, aligned to the epoch.

    A record is in every window around it, `size / step` of them; the first begins at 0, none
    before. What costs time and room is that number, not `size`.

    Args:
        size: length of a window.
        step: from the start of one window to that of the next; not longer than `size`.
        grace: how far stream time may pass the end of a window before it closes.
        retention: how long a row is kept, counted from the start of its window; by default
            just as long as needed, `size` plus `grace`.

    Raises:
        ConfigError: a duration is malformed, `size` or `step` is zero, `step` is longer than
            `size`, or `retention` is shorter than `size` plus `grace`.
    """
    size_ms, grace_ms = duration_ms(size), duration_ms(grace)
    return Hopping(
        size_ms=size_ms,
        grace_ms=grace_ms,
        retention_ms=size_ms + grace_ms if retention is None else duration_ms(retention),
        step_ms=duration_ms(step),
    )


RECORDS_MAX = 1_000_000
"""Of one window."""
OVERLAPS_MAX = 1_000
"""Windows that one record may be in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Windows):
    """Windows of `records` records; `size_ms` is how long one may be open, at most."""

    records: int
    step: int

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        for name, value in (("n", self.records), ("step", self.step)):
            if type(value) is not int or not 0 < value <= RECORDS_MAX:
                raise ConfigError(
                    f"{name} of a count window is a number of records from 1 to {RECORDS_MAX}, "
                    f"not {value!r}"
                )
        if self.step > self.records:
            raise ConfigError(
                f"the step of a count window can't be larger than its {self.records} records, as "
                f"those between two windows would be in none: {self.step}"
            )
        if -(-self.records // self.step) > OVERLAPS_MAX:
            raise ConfigError(
                f"with a step of {self.step} a record would be in more than {OVERLAPS_MAX} windows"
                f" of {self.records} records: take a larger step"
            )

    @property
    def timeout_ms(self) -> int | None:
        """How long a window may be open; None: until it is full."""
        return None if self.size_ms == DURATION_MS_MAX else self.size_ms

    @property
    def described(self) -> str:
        """As a line about a topology says it."""
        step = "" if self.step == self.records else f" every {self.step}"
        limit = "" if self.timeout_ms is None else f", up to {self.timeout_ms} ms"
        return f"windows of {self.records} records{step}{limit}"


def count_window(n: int, *, step: int | None = None, timeout: Dur | None = None) -> Counted:
    """Windows of `n` records of a key, in the order in which they are taken.

    A result is handed on with the record that fills its window. Its `Windowed` key says from when
    to when the records are, both included.

    Args:
        n: how many records a window has.
        step: one begins with every so many records of the key; by default when the last one is
            full, so that none overlap.
        timeout: a window that is open for so long, from its first record on and in stream time,
            ends with what it has.

    Raises:
        ConfigError: a number is out of range, `step` is larger than `n`, or the timeout is
            malformed or zero.
    """
    size_ms = DURATION_MS_MAX if timeout is None else duration_ms(timeout)
    if not size_ms:
        raise ConfigError("the timeout of a count window must be longer than 0 ms, such as '5m'")
    step = n if step is None else step
    return Counted(size_ms=size_ms, retention_ms=size_ms, records=n, step=step)


SessionSpan = tuple[int, int]
"""The times of a session's first record and of its last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions(Windows):
    """Sessions; `size_ms` is the gap."""

    max_length_ms: int | None = None
    """From the first record of a session to its last one, at most; None: no limit."""

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        if self.max_length_ms == 0:
            raise ConfigError("max_length of a session must be longer than 0 ms, such as '8h'")

    @property
    def gap_ms(self) -> int:
        """The longest time between a record of a session and the next one."""
        return self.size_ms


def session(gap: Dur, *, grace: Dur = "0s", max_length: Dur | None = None) -> Sessions:
    """Sessions of a key: records no further apart than `gap`.

    A session is closed when stream time has passed its last record by more than the gap and the
    grace. A record is late if its session, with all that it joins, would be closed. With final
    rows a session that is closed takes in no more records; one that comes within its gap, and is
    not late, begins another one. With `Emit.UPDATE` it does, for one more gap, as in Kafka Streams.

    `max_length` cuts those that would not end. A record goes into the session that it falls in and
    joins those within the gap, the earliest first; those that would make the whole longer than
    `max_length` are left alone, and if it may join none it begins one of its own. So records in
    order fill a session up to the length, and the first one beyond begins the next, however close
    it is.

    Args:
        gap: the longest time between two records that belong together.
        grace: how far stream time may pass the end of a session and the gap before it closes.
        max_length: from a session's first record to its last, at most.

    Raises:
        ConfigError: a duration is malformed, or `gap` or `max_length` is zero.
    """
    gap_ms, grace_ms = duration_ms(gap), duration_ms(grace)
    return Sessions(
        size_ms=gap_ms,
        grace_ms=grace_ms,
        retention_ms=gap_ms + grace_ms,
        max_length_ms=None if max_length is None else duration_ms(max_length),
    )


def merge_spans(
    windows: Sessions, spans: Sequence[SessionSpan], timestamp_ms: int
) -> tuple[list[int], SessionSpan]:
    """Which sessions a record joins, and what they are together with it.

    Args:
        windows: their definition.
        spans: the open sessions of the record's key; apart from each other, in order.
        timestamp_ms: the record's.

    Returns:
        Places in `spans`, ascending, and the session that replaces those.
    """
    gap_ms, limit_ms = windows.gap_ms, windows.max_length_ms
    near = [
        at
        for at, (start_ms, end_ms) in enumerate(spans)
        if start_ms <= timestamp_ms + gap_ms and end_ms >= timestamp_ms - gap_ms
    ]
    if limit_ms is not None:
        # The one around it comes first: then no two sessions ever overlap.
        near.sort(key=lambda at: not spans[at][0] <= timestamp_ms <= spans[at][1])
    found: list[int] = []
    start_ms = end_ms = timestamp_ms
    for at in near:
        first_ms, last_ms = min(start_ms, spans[at][0]), max(end_ms, spans[at][1])
        if limit_ms is None or last_ms - first_ms <= limit_ms:
            found.append(at)
            start_ms, end_ms = first_ms, last_ms
    return sorted(found), (start_ms, end_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliding(Windows):
    """Sliding windows; those of 0 ms hold records of the same time."""

    size_ms_min: ClassVar[int] = 0

    @property
    def looks_back_ms(self) -> int:
        """Records that far before the end of a window may be needed to make it."""
        return self.size_ms + 1


def sliding(size: Dur, *, grace: Dur = "0s", retention: Dur | None = None) -> Sliding:
    """Windows of `size` that begin and end where records are: "in the last two hours", exactly.

    A record costs time and room in every window around it, twice as many as there are records
    around it; windows that need not be exact are cheaper as `hopping`.

    Args:
        size: from the start of a window to its end, both of which are in it.
        grace: how far stream time may pass the end of a window before it closes.
        retention: how long a row is kept, counted from the start of its window; by default
            just as long as needed, `size` plus `grace`.

    Raises:
        ConfigError: a duration is malformed, or `retention` is shorter than `size` plus `grace`.
    """
    size_ms, grace_ms = duration_ms(size), duration_ms(grace)
    return Sliding(
        size_ms=size_ms,
        grace_ms=grace_ms,
        retention_ms=size_ms + grace_ms if retention is None else duration_ms(retention),
    )


def window_up_to(timestamp_ms: int, size_ms: int) -> int:
    """The start of the window that ends at a record, or of the first one there is."""
    return max(timestamp_ms - size_ms, 0)


def window_after(timestamp_ms: int) -> int:
    """The start of the window that begins after a record."""
    return timestamp_ms + 1
