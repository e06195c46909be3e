"""Sliding windows: one for every stretch of time of a length that holds other records.

A window of the length d holds what lies in [start, start + d], both ends included. There is one
that ends at each record, and one that begins a millisecond after each record as soon as it holds
another one: all others would hold the same records as one of these. A record that comes before d
after the epoch has [0, d] for the first of the two. Semantics are those of Kafka Streams'
SlidingWindows. Rule of the file: plain integers, no state. Not done here: which windows are open
(`emit`), and what is in them (`processing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from streamlog.durations import Dur, duration_ms
from streamlog.windows.definitions import Windows


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
