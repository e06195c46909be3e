"""ReplicationQuota: when it is exceeded, for how long, and its bound over any span of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.replication.replication_quota import (
    MEASURED_MS,
    SAMPLE_MS,
    UNBOUNDED,
    ReplicationQuota,
)

START_MS = 1_000_000


def test_an_unbounded_quota_counts_nothing() -> None:
    quota = ReplicationQuota()
    quota.record(10**12, START_MS)
    assert quota.exceeded_for_ms(START_MS) == 0
    assert quota.rate(START_MS) == 0
    quota.limit(1, START_MS)
    assert quota.exceeded_for_ms(START_MS) == 0


def test_a_quota_is_exceeded_until_the_rate_falls_to_the_bound() -> None:
    quota = ReplicationQuota(1_000)
    quota.record(1_000, START_MS)
    assert quota.exceeded_for_ms(START_MS) == 0, "one second's worth may pass at once"
    quota.record(2_000, START_MS)
    assert quota.exceeded_for_ms(START_MS) == 3_000
    assert quota.exceeded_for_ms(START_MS + 2_999) == 1
    assert quota.exceeded_for_ms(START_MS + 3_000) == 0
    assert quota.rate(START_MS + 3_000) == 1_000


def test_an_excess_does_not_expire_with_time() -> None:
    quota = ReplicationQuota(1_000)
    quota.record(100_000, START_MS)
    assert quota.exceeded_for_ms(START_MS + 2 * MEASURED_MS) == 100_000 - 2 * MEASURED_MS


def test_a_new_bound_takes_effect_at_once() -> None:
    quota = ReplicationQuota(1_000)
    quota.record(100_000, START_MS)
    quota.limit(100_000, START_MS + 10)
    assert quota.bytes_per_s == 100_000
    assert quota.exceeded_for_ms(START_MS + 10) == 0
    quota.limit(10, START_MS + 20)
    assert quota.exceeded_for_ms(START_MS + 20) > 9_000_000
    quota.limit(UNBOUNDED, START_MS + 30)
    assert quota.exceeded_for_ms(START_MS + 30) == 0


@given(
    st.integers(1, 10_000_000),
    st.lists(st.tuples(st.integers(0, 15_000), st.integers(0, 50_000)), max_size=60),
)
def test_any_span_stays_within_the_bound_plus_one_burst(
    rate: int, tries: list[tuple[int, int]]
) -> None:
    quota, now_ms, gone = ReplicationQuota(rate), START_MS, [(START_MS, 0)]
    for pause_ms, size_bytes in tries:
        now_ms += pause_ms
        if quota.exceeded_for_ms(now_ms) == 0:
            quota.record(size_bytes, now_ms)
            gone.append((now_ms, size_bytes))
    burst = max(size for _, size in gone)
    for first, (from_ms, _) in enumerate(gone):
        total = 0
        for to_ms, size in gone[first:]:
            total += size
            span_ms = to_ms - from_ms + SAMPLE_MS + MEASURED_MS
            assert total <= rate * span_ms / 1000 + burst
    whole_ms = gone[-1][0] - START_MS + SAMPLE_MS
    assert sum(size for _, size in gone) <= rate * whole_ms / 1000 + burst


@given(
    st.integers(1_000, 100_000),
    st.lists(st.integers(1, 500_000), min_size=20, max_size=60),
)
def test_waiting_out_the_quota_reaches_the_full_rate(rate: int, sizes: list[int]) -> None:
    quota, now_ms = ReplicationQuota(rate), START_MS
    for size_bytes in sizes:
        while held_ms := quota.exceeded_for_ms(now_ms):
            now_ms += held_ms
        quota.record(size_bytes, now_ms)
    took_ms = now_ms - START_MS
    assert took_ms <= sum(sizes[:-1]) * 1000 / rate + 3 * len(sizes)
