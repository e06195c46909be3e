"""Windows of so many records of a key, whenever they come.

Rule of the file: records count in the order in which the task takes them, whatever their times;
none is late. A window goes from the earliest of its records to the latest, both included. With a
timeout one that does not fill up ends all the same, by stream time. Not done here: which windows
are open (`processing/counted`).
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.durations import DURATION_MS_MAX, Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.windows.definitions import Windows

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
