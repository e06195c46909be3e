"""ReplicationQuota: the bytes per second that throttled replicas may send or fetch (KIP-73).

Pure: the time is passed in. As in Kafka, bytes are counted in samples of one second, the last
eleven samples are measured, and the quota is exceeded while their rate is above the bound. So the
response that exceeds the bound is still sent, and no other until enough time has passed.

Rules of this module: the excess is paid back in full. A sample that is too old leaves its excess
behind as a debt, which Kafka forgets:
  1. The bound is 50 kB/s, and a response has 1 MB. 2. After eleven seconds its sample is dropped.
  3. Without the debt, 1 MB could go every eleven seconds: almost twice the bound.
So in any span, the bytes are at most what the bound allows for the span, `MEASURED_MS` and one more
sample, plus the one response that exceeds it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from streamlog.broker.config.settings import LONG_MAX

SAMPLE_MS = 1_000
SAMPLES = 11
"""Kafka's `replication.quota.window.num`, and above `replication.quota.window.size.seconds`."""
MEASURED_MS = SAMPLES * SAMPLE_MS
UNBOUNDED = LONG_MAX


@dataclass(slots=True)
class _Sample:
    start_ms: int
    size_bytes: int = 0


class ReplicationQuota:
    """The quota of one direction of one broker; without a bound, it counts nothing."""

    def __init__(self, bytes_per_s: int = UNBOUNDED) -> None:
        self._bytes_per_s = bytes_per_s
        self.is_bounded = bytes_per_s < UNBOUNDED
        """Whether it counts anything; most brokers have none."""
        self._samples: deque[_Sample] = deque()
        self._since_ms = 0
        """The start of the measured time; if there are samples, the start of the first one."""
        self._owed_bytes = 0
        """The bytes above the bound before that time."""

    @property
    def bytes_per_s(self) -> int:
        """The bound in bytes per second."""
        return self._bytes_per_s

    def limit(self, bytes_per_s: int, now_ms: int) -> None:
        """Apply another bound from now on; the excess over the old one stays owed."""
        if bytes_per_s == self._bytes_per_s:
            return
        self._pass_over(sum(each.size_bytes for each in self._samples), now_ms)
        self._samples.clear()
        self._bytes_per_s, self.is_bounded = bytes_per_s, bytes_per_s < UNBOUNDED

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes that are sent or fetched now."""
        if not self.is_bounded or not size_bytes:
            return
        self._forget(now_ms)
        # Idle time pays off the debt, and no more: unused bytes are not saved for later.
        if not self._samples:
            self._pass_over(0, now_ms)
        if not self._samples or now_ms - self._samples[-1].start_ms >= SAMPLE_MS:
            self._samples.append(_Sample(now_ms))
        self._samples[-1].size_bytes += size_bytes

    def exceeded_for_ms(self, now_ms: int) -> int:
        """Return for how many milliseconds the quota stays exceeded; 0 if it is not."""
        if not self.is_bounded:
            return 0
        self._forget(now_ms)
        used_bytes = self._owed_bytes + sum(each.size_bytes for each in self._samples)
        # Rounded up, so that the quota is no longer exceeded after this time.
        takes_ms = -(-used_bytes * 1000 // self._bytes_per_s)
        elapsed_ms = now_ms - self._since_ms
        # The span is at least one sample: otherwise its first bytes would exceed any bound.
        return 0 if takes_ms <= max(elapsed_ms, SAMPLE_MS) else takes_ms - elapsed_ms

    def rate(self, now_ms: int) -> float:
        """Return the measured bytes per second; 0 without a bound."""
        self._forget(now_ms)
        if not self._samples:
            return 0.0
        size_bytes = sum(each.size_bytes for each in self._samples)
        return size_bytes * 1000 / max(now_ms - self._since_ms, SAMPLE_MS)

    def _forget(self, now_ms: int) -> None:
        """Drop the samples that are too old, and keep their excess as a debt."""
        while self._samples and now_ms - self._samples[0].start_ms >= MEASURED_MS:
            gone = self._samples.popleft()
            until_ms = self._samples[0].start_ms if self._samples else now_ms
            self._pass_over(gone.size_bytes, until_ms)

    def _pass_over(self, size_bytes: int, until_ms: int) -> None:
        """Measure from `until_ms` on, after `size_bytes` since the earlier start."""
        allowed_bytes = (until_ms - self._since_ms) * self._bytes_per_s // 1000
        self._owed_bytes = max(0, self._owed_bytes + size_bytes - allowed_bytes)
        self._since_ms = until_ms
