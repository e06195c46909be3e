"""Sessions: windows that records make for themselves, as long as they come close together.

A session spans from the first of its records to the last, both included; records no further apart
than the gap are of one session, so a record that comes between two may make one of them. Semantics
are those of Kafka Streams' SessionWindows; the limit of a session's length is added here. Rule of
the file: which sessions a record joins follows from the open sessions of its key and the record's
time alone. Not done here: which of them are open (`emit`), and their states (`processing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.windows.definitions import Windows

Span = tuple[int, int]
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


def joined(windows: Sessions, spans: Sequence[Span], timestamp_ms: int) -> tuple[list[int], Span]:
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
