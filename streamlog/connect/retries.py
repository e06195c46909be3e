"""Retries: how long a connector waits before its next attempt, and for how long it tries at all.

Kafka Connect's times: the first wait is 300 ms, each further one twice as long up to a limit, less
a random share of a fifth, so that the tasks of a connector do not all return at once.

Rule: pure. Chance comes in as a number between 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_WAIT_MS: Final = 300
"""The wait after the first failure."""
WAIT_MS_MAX: Final = 60_000
"""The longest wait; Kafka Connect's default of `errors.retry.delay.max.ms`."""
JITTER: Final = 0.2
"""The largest share of a wait that chance takes off."""
WITHOUT_END: Final = -1
"""Kafka Connect's `errors.retry.timeout` for no limit."""


@dataclass(frozen=True, slots=True)
class RecordRetries:
    """For how long a record is tried again on which a converter or a transform fails for now."""

    timeout_ms: int = 0
    """The time from the first failure on; 0 for no second attempt, -1 for no limit."""
    wait_ms_max: int = WAIT_MS_MAX
    """The longest wait between two attempts, also of those after a broken connection."""


NO_RETRIES: Final = RecordRetries()
"""Kafka Connect's defaults."""


class RecordRetry:
    """The attempts with one record, as Kafka Connect's RetryWithToleranceOperator makes them."""

    def __init__(self, retries: RecordRetries) -> None:
        self._retries = retries
        self._failures = 0
        self._deadline_ms: int

    def fail(self, now_ms: int, chance: float) -> int | None:
        """Note a failure; returns the wait before the next attempt in milliseconds, None for none.

        Args:
            now_ms: the time.
            chance: a random number from 0 to 1.
        """
        timeout_ms, longest_ms = self._retries.timeout_ms, self._retries.wait_ms_max
        if not self._failures:
            self._deadline_ms = now_ms + timeout_ms
        is_limited = timeout_ms != WITHOUT_END
        if is_limited and now_ms >= self._deadline_ms:
            self._failures = 0
            return None
        wait_ms = _doubled(self._failures, longest_ms)
        self._failures += 1
        # Apache Kafka's: behind the limit it draws a wait, so that tasks do not return together.
        if wait_ms > longest_ms:
            wait_ms = int(longest_ms * chance)
        return min(wait_ms, self._deadline_ms - now_ms) if is_limited else wait_ms

    def succeed(self) -> None:
        """Note a success: the next record has the whole time again."""
        self._failures = 0


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
        wait_ms = min(_doubled(self.failures, self._wait_ms_max), self._wait_ms_max)
        self.failures += 1
        wait_ms = round(wait_ms * (1 - JITTER * chance))
        # "Retry-After: 3600" of a server that is overloaded is honoured beyond the limit.
        return max(wait_ms, at_least_ms or 0)

    def succeed(self) -> None:
        """Note a success: the next failure waits as briefly as a first one."""
        self.failures = 0


def _doubled(failures: int, longest_ms: int) -> int:
    """Return the first wait, doubled at each failure until it is longer than the longest."""
    # Bounded: after days of failures the shift would be a number of thousands of digits.
    return FIRST_WAIT_MS << min(failures, longest_ms.bit_length())
