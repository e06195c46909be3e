"""JoinWindow: which records of two streams belong together, and how long they wait.

A left record is joined with the right records whose timestamps lie in [its own - before, its own +
after], both inclusive. The window of a record closes when stream time is more than `grace` beyond
its far end: only then, a record without a partner is emitted alone (KIP-633, KAFKA-10847). Rule of
the file: a definition that exists is valid. One of `before` and `after` may be negative, if their
sum is not: `before="-1m", after="5m"` joins right records that are one to five minutes later.

How long a record is kept follows from the partners that it may still find. A record x of one side
has partners up to `reach(x)` later. A partner y is in time while stream time is at most `grace`
beyond y and beyond the end of y's window, whichever is later: y + max(reach(y), 0) + grace. So x is
needed until x + reach(x) + max(reach(y), 0) + grace. A negative reach shortens nothing on the other
side, which is why `keep_ms` counts it as 0. Not done here: buffers and matching
(`processing/joins/stream_join`).
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from streamlog.durations import DURATION_MS_MAX, Dur, duration_ms
from streamlog.errors import ConfigError


class JoinWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The largest distances between the timestamps of two joined records, in milliseconds."""

    before_ms: int
    """How much earlier than the left record the right one may be; may be negative."""
    after_ms: int
    """How much later than the left record the right one may be; may be negative."""
    grace_ms: int = 0
    """How far stream time may pass the end of a record's window before it counts as unmatched."""

    def __post_init__(self) -> None:
        for name in ("before_ms", "after_ms"):
            if not -DURATION_MS_MAX <= getattr(self, name) <= DURATION_MS_MAX:
                raise ConfigError(
                    f"{name} of a join must be from {-DURATION_MS_MAX} to {DURATION_MS_MAX} ms, "
                    f"not {getattr(self, name)} ms"
                )
        if not 0 <= self.grace_ms <= DURATION_MS_MAX:
            raise ConfigError(
                f"grace_ms of a join must be from 0 to {DURATION_MS_MAX} ms, not {self.grace_ms} ms"
            )
        if self.before_ms + self.after_ms < 0:
            raise ConfigError(
                f"before ({self.before_ms} ms) and after ({self.after_ms} ms) of a join leave no "
                "timestamp between them: their sum must not be negative"
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
        """Return the window of records whose timestamps differ by at most `within`.

        Args:
            within: the largest difference of the timestamps, in either direction.
            before: how much earlier the right record may be, instead of `within`.
            after: how much later the right record may be, instead of `within`. `before` and
                `after` may be negative, such as "-5s" or `timedelta(seconds=-5)`.
            grace: how far stream time may pass a window before it closes: records that are out of
                order by up to this find each other, and a record without a partner is emitted later
                by this.

        Raises:
            ConfigError: a duration is malformed, or the sum of `before` and `after` is negative.
        """
        return cls(
            before_ms=_signed_ms(within if before is None else before),
            after_ms=_signed_ms(within if after is None else after),
            grace_ms=duration_ms(grace),
        )

    @property
    def keep_ms(self) -> int:
        """How far stream time may pass a record of either side before the join drops it, in ms."""
        # before = -1 min, after = 5 min, no grace; a left record at 10:00.
        # 1. Its partners are at 10:01 to 10:05, so it is kept until 10:05: 5 min after itself.
        # 2. A right record at 10:05 has partners at 10:00 to 10:04, all before itself. It is kept
        #    for left records at 10:04 that are out of order: until stream time passes 10:10.
        # 3. With the plain sum of both, 4 min, the left record would be gone at 10:04.
        return max(self.before_ms, 0) + max(self.after_ms, 0) + self.grace_ms

    def reach_ms(self, *, left: bool) -> int:
        """Return how much later than a record of this side its last partner may be, in ms."""
        return self.after_ms if left else self.before_ms

    def closes_ms(self, timestamp_ms: int, *, left: bool) -> int:
        """Return the stream time after which a record of this side finds no more partners."""
        return timestamp_ms + self.reach_ms(left=left) + self.grace_ms


def _signed_ms(value: Dur) -> int:
    """Return a duration in milliseconds, which may be negative."""
    if isinstance(value, str) and value.strip().startswith("-"):
        return -duration_ms(value.strip()[1:])
    if isinstance(value, timedelta) and value < timedelta(0):
        return -duration_ms(-value)
    return duration_ms(value)
