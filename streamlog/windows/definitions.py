"""Window definitions: frozen specs that stand in the topology, and their constructors.

A definition says which windows there are, how long they wait for stragglers (`grace`) and
how long their rows are kept (`retention`). Rule of the file: a definition that exists is
valid; every check stands in `__post_init__`, so that no path around the constructors is
left. Windows are aligned to the epoch, half open [start, end), and never start below it.
Not done here: assigning timestamps (`assign`), closing and emission (`emit`), days and months
(`calendar`).
"""

from __future__ import annotations

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
