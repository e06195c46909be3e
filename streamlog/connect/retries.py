"""Retries: how long a connector waits before its next attempt.

Kafka Connect's times: the first wait is 300 ms, each further one twice as long up to a limit, less
a random share of a fifth, so that the tasks of a connector do not all return at once.

Rule: pure. Chance comes in as a number between 0 and 1.
"""

from __future__ import annotations

from typing import Final

FIRST_WAIT_MS: Final = 300
"""The wait after the first failure."""
WAIT_MS_MAX: Final = 60_000
"""The longest wait; Kafka Connect's default of `errors.retry.delay.max.ms`."""
JITTER: Final = 0.2
"""The largest share of a wait that chance takes off."""
_DOUBLINGS_MAX: Final = 32


class Backoff:
    """The waits of one reader or sink task between its attempts."""

    def __init__(self, *, wait_ms_max: int = WAIT_MS_MAX) -> None:
        self._wait_ms_max = wait_ms_max
        self.failures = 0
        """The number of failures in a row."""

    def fail(self, chance: float, *, at_least_ms: int | None = None) -> int:
        """Note a failure; returns the wait before the next attempt in milliseconds.

        Args:
            chance: a random number from 0 to 1.
            at_least_ms: the wait that the other side has asked for, which may exceed the limit.
        """
        # Bounded: after days of failures the shift would be a number of thousands of digits.
        doublings = min(self.failures, _DOUBLINGS_MAX)
        self.failures += 1
        wait_ms = min(FIRST_WAIT_MS << doublings, self._wait_ms_max)
        wait_ms = round(wait_ms * (1 - JITTER * chance))
        # "Retry-After: 3600" of a server that is overloaded is honoured beyond the limit.
        return max(wait_ms, at_least_ms or 0)

    def succeed(self) -> None:
        """Note a success: the next failure waits as briefly as a first one."""
        self.failures = 0
