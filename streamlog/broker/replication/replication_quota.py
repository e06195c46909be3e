"""ReplicationQuota: how many bytes a second throttled replicas may send, or fetch (KIP-73).

Pure: time is passed in. As in Kafka bytes are counted in samples of a second, the last eleven of
which are measured, and the quota is exceeded while their rate is above the bound. So the answer
that exceeds it still goes, and nothing goes after it until enough time has passed.
Rule of the file: what was too much is paid back in full. A sample that is forgotten leaves behind
what it had above the bound, which Kafka forgets with it. A scenario without that: the bound is
50 kB a second, and an answer has a megabyte; it would be forgotten after eleven seconds, and a
megabyte would go every eleven seconds, at twice the bound.
So in any span no more goes than the bound allows for it and for `MEASURED_MS` and a sample more,
and the one answer that exceeds it.
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
    """One direction of one broker. While it is unbounded nothing is counted."""

    def __init__(self, bytes_per_s: int = UNBOUNDED) -> None:
        self._bytes_per_s = bytes_per_s
        self._samples: deque[_Sample] = deque()
        self._since_ms = 0
        """From when on it is measured: where the first sample begins, if there is one."""
        self._owed_bytes = 0
        """What had gone above the bound until then."""

    @property
    def bytes_per_s(self) -> int:
        """The bound."""
        return self._bytes_per_s

    def limit(self, bytes_per_s: int, now_ms: int) -> None:
        """Go by another bound from now on. What was above the old one is still owed."""
        if bytes_per_s == self._bytes_per_s:
            return
        self._pass_over(sum(each.size_bytes for each in self._samples), now_ms)
        self._samples.clear()
        self._bytes_per_s = bytes_per_s

    def record(self, size_bytes: int, now_ms: int) -> None:
        """So much goes now."""
        if self._bytes_per_s >= UNBOUNDED or not size_bytes:
            return
        self._forget(now_ms)
        if not self._samples:
            self._pass_over(0, now_ms)
        if not self._samples or now_ms - self._samples[-1].start_ms >= SAMPLE_MS:
            self._samples.append(_Sample(now_ms))
        self._samples[-1].size_bytes += size_bytes

    def exceeded_for_ms(self, now_ms: int) -> int:
        """For how long nothing more may go; 0 if something may. To be asked again by then."""
        if self._bytes_per_s >= UNBOUNDED:
            return 0
        self._forget(now_ms)
        used_bytes = self._owed_bytes + sum(each.size_bytes for each in self._samples)
        takes_ms = -(-used_bytes * 1000 // self._bytes_per_s)
        elapsed_ms = now_ms - self._since_ms
        return 0 if takes_ms <= max(elapsed_ms, SAMPLE_MS) else takes_ms - elapsed_ms

    def rate(self, now_ms: int) -> float:
        """Bytes a second, as measured; 0 while it is unbounded."""
        self._forget(now_ms)
        if not self._samples:
            return 0.0
        size_bytes = sum(each.size_bytes for each in self._samples)
        return size_bytes * 1000 / max(now_ms - self._since_ms, SAMPLE_MS)

    def _forget(self, now_ms: int) -> None:
        """Samples that are too old to be measured."""
        while self._samples and now_ms - self._samples[0].start_ms >= MEASURED_MS:
            gone = self._samples.popleft()
            until_ms = self._samples[0].start_ms if self._samples else now_ms
            self._pass_over(gone.size_bytes, until_ms)

    def _pass_over(self, size_bytes: int, until_ms: int) -> None:
        """Measure from `until_ms` on; so much had gone since the last time."""
        allowed_bytes = (until_ms - self._since_ms) * self._bytes_per_s // 1000
        self._owed_bytes = max(0, self._owed_bytes + size_bytes - allowed_bytes)
        self._since_ms = until_ms
