"""Window definitions: the frozen specs that nodes of a topology hold, and their constructors.

Tumbling and hopping windows are half open, [start, end), aligned to the epoch, and never start
before it. A session extends from its first to its last record, both inclusive; records whose
distance is at most the gap belong to one session. A sliding window is [start, start + size], both
inclusive: one ends at each record, and one begins a millisecond after each record. A count window
holds a number of records of a key, in the order in which the task processes them; with a timeout,
it also ends by stream time. The semantics are those of Kafka Streams; count windows and the limit
of a session's length are ours. Rules of the module: a definition that exists is valid, because
`__post_init__` makes every check; which windows a record may belong to is plain arithmetic on
integers, without state. Not done here: assigning timestamps (`window_assigner`), closing and
emission (`emit`), days and months (`calendar`), which windows are open (`processing/windows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from streamlog.durations import DURATION_MS_MAX, Dur, duration_ms, duration_text
from streamlog.errors import ConfigError, quantity


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that all windows share, in milliseconds."""

    size_ms: int
    grace_ms: int = 0
    retention_ms: int

    size_ms_min: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("size_ms", "grace_ms", "retention_ms"):
            value = getattr(self, name)
            if not 0 <= value <= DURATION_MS_MAX:
                raise ConfigError(
                    f"{name} of a window must be from 0 to {DURATION_MS_MAX} ms, not {value} ms"
                )
        if self.size_ms < self.size_ms_min:
            raise ConfigError("a window must be longer than 0 ms: give it a size such as '1m'")
        if self.retention_ms < self.size_ms + self.grace_ms:
            raise ConfigError(
                f"retention of {self.retention_ms} ms is shorter than the window's size "
                f"({self.size_ms} ms) plus its grace ({self.grace_ms} ms): rows would be removed "
                "before their window closes; raise retention or lower grace"
            )

    @property
    def description(self) -> str:
        """The windows as a phrase, for the description of a topology."""
        return f"windows of {duration_text(self.size_ms)}"


class Tumbling(Windows, frozen=True, kw_only=True):
    """Adjacent windows: every timestamp is in exactly one.

    `offset_ms` moves the borders away from the epoch: a day that begins at 06:00 UTC has an offset
    of 6 h. The first window begins at 0, and is shorter if there is an offset.
    """

    offset_ms: int = 0

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        if not 0 <= self.offset_ms < self.size_ms:
            raise ConfigError(
                f"the offset of a tumbling window must be shorter than its size of {self.size_ms} "
                f"ms, not {self.offset_ms} ms"
            )


class Hopping(Windows, frozen=True, kw_only=True):
    """Windows of one size, of which one begins every `step_ms`; they overlap if that is shorter."""

    step_ms: int

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        if not 0 < self.step_ms <= self.size_ms:
            raise ConfigError(
                f"the step of a hopping window must be longer than 0 ms and no longer than its "
                f"size of {self.size_ms} ms, not {self.step_ms} ms: records between two windows "
                "would be in none"
            )

    @property
    def description(self) -> str:
        """The windows as a phrase, for the description of a topology."""
        return f"windows of {duration_text(self.size_ms)} every {duration_text(self.step_ms)}"


def tumbling(
    size: Dur, *, grace: Dur = "0s", retention: Dur | None = None, offset: Dur = "0s"
) -> Tumbling:
    """Return adjacent windows of `size`, aligned to the epoch and moved by `offset`.

    Args:
        size: the length of a window, longer than 0 ms.
        grace: how far stream time may pass the end of a window before it closes.
        retention: how long a row is kept, counted from the start of its window; by default
            the minimum, `size` plus `grace`.
        offset: moves the borders of the windows; shorter than `size`.

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
    """Return windows of `size`, of which one begins every `step`, aligned to the epoch.

    A record is in all `size / step` windows around it, except that no window begins before the
    epoch. Time and memory depend on that number, not on `size`.

    Args:
        size: the length of a window, longer than 0 ms.
        step: the time from the start of one window to the start of the next; longer than 0 ms, and
            at most `size`.
        grace: how far stream time may pass the end of a window before it closes.
        retention: how long a row is kept, counted from the start of its window; by default
            the minimum, `size` plus `grace`.

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
"""The most records in one count window."""
OVERLAPS_MAX = 1_000
"""The most count windows that one record may be in."""


class Counted(Windows, frozen=True, kw_only=True):
    """Windows of `records` records; `size_ms` is the longest time that one may be open."""

    records: int
    step: int

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        for name, value in (("n", self.records), ("step", self.step)):
            if type(value) is not int or not 0 < value <= RECORDS_MAX:
                raise ConfigError(
                    f"{name} of a count window must be a number of records from 1 to "
                    f"{RECORDS_MAX}, not {value!r}"
                )
        if self.step > self.records:
            raise ConfigError(
                "the step of a count window must be at most its "
                f"{quantity(self.records, 'record')}, not {self.step}: records between two windows "
                "would be in none"
            )
        if -(-self.records // self.step) > OVERLAPS_MAX:
            raise ConfigError(
                f"with a step of {self.step} a record would be in more than {OVERLAPS_MAX} windows"
                f" of {self.records} records: use a larger step"
            )

    @property
    def timeout_ms(self) -> int | None:
        """The longest time that a window may be open, in ms; None: until it is full."""
        return None if self.size_ms == DURATION_MS_MAX else self.size_ms

    @property
    def description(self) -> str:
        """The windows as a phrase, for the description of a topology."""
        step = "" if self.step == self.records else f" every {self.step}"
        limit = "" if self.timeout_ms is None else f", up to {duration_text(self.timeout_ms)}"
        return f"windows of {quantity(self.records, 'record')}{step}{limit}"


def count_window(n: int, *, step: int | None = None, timeout: Dur | None = None) -> Counted:
    """Return windows of `n` records of a key, in the order in which the task takes them.

    A result is forwarded with the record that fills its window. Its `Windowed` key has the earliest
    and the latest timestamp of the records, both inclusive.

    Args:
        n: the number of records in a window, 1 to 1,000,000.
        step: a window begins with every `step`-th record of the key, 1 to `n`; by default `n`, so
            that windows do not overlap.
        timeout: the stream time, from its first record, after which a window ends with the records
            that it has; by default, a window waits until it is full.

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
"""The timestamps of the first and of the last record of a session."""


class Sessions(Windows, frozen=True, kw_only=True):
    """Sessions; `size_ms` is the gap."""

    max_length_ms: int | None = None
    """The longest time from the first to the last record of a session; None: no limit."""

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        if self.max_length_ms == 0:
            raise ConfigError("max_length of a session must be longer than 0 ms, such as '8h'")

    @property
    def gap_ms(self) -> int:
        """The longest time between two neighboring records of a session."""
        return self.size_ms


def session(gap: Dur, *, grace: Dur = "0s", max_length: Dur | None = None) -> Sessions:
    """Return sessions: runs of a key's records whose distances are at most `gap`.

    A session closes when stream time has passed its last record by more than gap and grace. A
    record is late if the session that it would form, with all sessions that it joins, would be
    closed. With `Emit.CLOSE`, a closed session takes no more records: a record within its gap that
    is not late begins another session. With `Emit.UPDATE`, a closed session takes records for one
    more gap, as in Kafka Streams.

    `max_length` limits sessions that would never end. A record joins the session that contains its
    timestamp, and then the sessions within the gap, the earliest first. It does not join a session
    if the result would be longer than `max_length`; if it can join none, it begins a new one. So
    records in order fill a session up to the limit, and the first record beyond begins the next
    session, however close it is.

    Args:
        gap: the longest time between two neighboring records of a session, longer than 0 ms.
        grace: how far stream time may pass the end of a session and its gap before it closes.
        max_length: the longest time from the first to the last record of a session; by default
            unlimited.

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
    """Return the sessions that a record joins, and the session that replaces them.

    Args:
        windows: the definition of the sessions.
        spans: the open sessions of the record's key, which do not overlap, in order.
        timestamp_ms: the timestamp of the record.

    Returns:
        Indexes into `spans`, ascending, and the span of those sessions with the record.
    """
    gap_ms, limit_ms = windows.gap_ms, windows.max_length_ms
    near = [
        at
        for at, (start_ms, end_ms) in enumerate(spans)
        if start_ms <= timestamp_ms + gap_ms and end_ms >= timestamp_ms - gap_ms
    ]
    if limit_ms is not None:
        # The gap is 3 min, the limit 10 min; sessions 10:00 to 10:06 and 10:07 to 10:14.
        # 1. A record at 10:08 is in the second session and within the gap of the first. If it
        #    joined the first one first (10:00 to 10:08), the two sessions would overlap.
        # 2. So it joins the session that contains it; the first one would make it 14 min long, and
        #    stays apart.
        # 3. A record at 10:06:30 is in neither: it joins the first one, and not the second as well,
        #    because both together are longer than the limit.
        near.sort(key=lambda at: not spans[at][0] <= timestamp_ms <= spans[at][1])
    found: list[int] = []
    start_ms = end_ms = timestamp_ms
    for at in near:
        first_ms, last_ms = min(start_ms, spans[at][0]), max(end_ms, spans[at][1])
        if limit_ms is None or last_ms - first_ms <= limit_ms:
            found.append(at)
            start_ms, end_ms = first_ms, last_ms
    return sorted(found), (start_ms, end_ms)


class Sliding(Windows, frozen=True, kw_only=True):
    """Sliding windows; a window of 0 ms holds the records with one timestamp."""

    size_ms_min: ClassVar[int] = 0

    @property
    def looks_back_ms(self) -> int:
        """How far before the end of a window the records lie that may be needed to create it."""
        return self.size_ms + 1


def sliding(size: Dur, *, grace: Dur = "0s", retention: Dur | None = None) -> Sliding:
    """Return windows of `size` that begin and end at records: exactly "in the last two hours".

    A record costs time and memory in every window around it, and there are twice as many windows as
    there are records within `size`. If windows need not be exact, use `hopping`, which is cheaper.

    Args:
        size: the time from the start of a window to its end, both inclusive; 0 ms or longer.
        grace: how far stream time may pass the end of a window before it closes.
        retention: how long a row is kept, counted from the start of its window; by default
            the minimum, `size` plus `grace`.

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
    """Return the start of the window that ends at a record; 0 if it would be before the epoch."""
    return max(timestamp_ms - size_ms, 0)


def window_after(timestamp_ms: int) -> int:
    """Return the start of the window that begins one millisecond after a record."""
    return timestamp_ms + 1
