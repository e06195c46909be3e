"""JoinWindow: which records of two streams belong together, and how long they wait.

A left record is joined with the right ones whose timestamps lie in [its own - before, its own +
after], both ends included. The window of a record is closed when stream time is more than `grace`
beyond its far end: until then nobody says that it has found no partner (KIP-633, KAFKA-10847).
Rule of the file: a definition that exists is valid. One of both spans may be negative, as long as
something is left between them: `before="-1m", after="5m"` is from one to five minutes later.

How long records are kept follows from what must be found. A record x of one side has partners up
to `reach(x)` later, and a partner y is in time while stream time is at most `grace` beyond y itself
and beyond the end of y's window, whichever is later: y + max(reach(y), 0) + grace. So x is needed
until x + reach(x) + max(reach(y), 0) + grace. A negative reach shortens nothing on the other side,
which is why `keep_ms` counts it as 0.
Not done here: buffers and matching (`processing/joins/stream_join`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from streamlog.durations import DURATION_MS_MAX, Dur, duration_ms
from streamlog.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinWindow:
    """How far the timestamps of two records that are joined may lie apart, in milliseconds."""

    before_ms: int
    """A right record may be so much earlier than the left one."""
    after_ms: int
    """A right record may be so much later than the left one."""
    grace_ms: int = 0
    """How far stream time may pass a record's window before the record counts as unmatched."""

    def __post_init__(self) -> None:
        for name in ("before_ms", "after_ms"):
            if not -DURATION_MS_MAX <= getattr(self, name) <= DURATION_MS_MAX:
                raise ConfigError(
                    f"{name} of a join must lie within {DURATION_MS_MAX} ms: {getattr(self, name)}"
                )
        if not 0 <= self.grace_ms <= DURATION_MS_MAX:
            raise ConfigError(
                f"grace_ms of a join must lie in 0..{DURATION_MS_MAX}: {self.grace_ms}"
            )
        if self.before_ms + self.after_ms < 0:
            raise ConfigError(
                f"no record is {self.before_ms} ms before and {self.after_ms} ms after another "
                "one: before and after of a join must not be less than 0 together"
            )

    @classmethod
    def of(
        cls,
        within: Dur,
        *,
        before: Dur | None = None,
        after: Dur | None = None,
        grace: Dur = "0s",
    ) -> JoinWindow:
        """Records at most `within` apart.

        Args:
            within: the largest difference of their timestamps, either way.
            before: how much earlier the right record may be, in place of `within`.
            after: how much later the right record may be, in place of `within`. `before` and
                `after` may be negative, such as "-5s" or `timedelta(seconds=-5)`.
            grace: how much out of order records may come and still find each other; a record
                without a partner is handed on so much later.

        Raises:
            ConfigError: a duration is malformed, or nothing is left between before and after.
        """
        return cls(
            before_ms=_signed_ms(within if before is None else before),
            after_ms=_signed_ms(within if after is None else after),
            grace_ms=duration_ms(grace),
        )

    @property
    def keep_ms(self) -> int:
        """How far stream time may pass a record of either side while the join keeps it."""
        return max(self.before_ms, 0) + max(self.after_ms, 0) + self.grace_ms

    def reach_ms(self, *, left: bool) -> int:
        """How long after a record the last partner of it may come, by their timestamps."""
        return self.after_ms if left else self.before_ms

    def closes_ms(self, timestamp_ms: int, *, left: bool) -> int:
        """When stream time is beyond this, a record of the side without a partner has none."""
        return timestamp_ms + self.reach_ms(left=left) + self.grace_ms


def _signed_ms(value: Dur) -> int:
    """A duration that may be negative."""
    if isinstance(value, str) and value.strip().startswith("-"):
        return -duration_ms(value.strip()[1:])
    if isinstance(value, timedelta) and value < timedelta(0):
        return -duration_ms(-value)
    return duration_ms(value)
