"""Which segments have expired, and which time counts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.expiry import LEAP_MS, SETTLE_MS, SteadyTime, expired_segments

NOW_MS = 1_000_000


@dataclass(frozen=True)
class Aged:
    size_bytes: int
    max_timestamp_ms: int


def count(config: TopicConfig, *segments: tuple[int, int]) -> int:
    return expired_segments([Aged(*each) for each in segments], config, wall_ms=NOW_MS)


def test_by_default_everything_is_kept() -> None:
    assert count(TopicConfig(), (10**12, 0), (10**12, 1)) == 0


def test_a_segment_expires_by_its_newest_record() -> None:
    config = TopicConfig(retention_ms=1_000)
    old, border, new = NOW_MS - 1_001, NOW_MS - 1_000, NOW_MS
    assert count(config, (1, old), (1, old), (1, border)) == 2
    assert count(config, (1, old), (1, old)) == 2
    assert count(config, (1, old), (1, new), (1, old)) == 1


@pytest.mark.parametrize("unaged", [(1, NOW_MS + 10**9), (1, -1), (0, -1)])
def test_a_segment_of_unknown_age_keeps_all_later_ones(
    unaged: tuple[int, int],
) -> None:
    assert count(TopicConfig(retention_ms=1_000), (1, 5), unaged, (1, 5)) == 1


def test_the_oldest_segments_expire_by_size() -> None:
    config = TopicConfig(retention_bytes=100)
    assert count(config, (50, 5), (50, 5), (50, 5)) == 1
    assert count(config, (50, 5), (50, 5), (49, 5)) == 0
    assert count(config, (300, 5), (100, 5)) == 1
    assert count(TopicConfig(retention_bytes=0), (50, 5), (0, -1)) == 1


def test_either_limit_expires_segments_except_under_compaction() -> None:
    both = {"retention_ms": 1_000, "retention_bytes": 100}
    segments = ((50, NOW_MS), (50, NOW_MS), (50, 5))
    assert count(TopicConfig(**both), *segments) == 1
    assert count(TopicConfig(**both), *((1, 5), (1, 5), (1, NOW_MS))) == 2
    assert count(TopicConfig(**both, cleanup_policy="compact"), *segments) == 0
    assert count(TopicConfig(**both, cleanup_policy="compact,delete"), *segments) == 1


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, NOW_MS))), st.integers(0, 500))
def test_retention_bytes_keeps_at_least_that_size(
    segments: list[tuple[int, int]], kept_bytes: int
) -> None:
    gone = count(TopicConfig(retention_bytes=kept_bytes), *segments)
    left = [size for size, _ in segments[gone:]]
    if gone:
        assert sum(left) >= kept_bytes
    if left:
        assert sum(left[1:]) < kept_bytes


def test_a_clock_that_leaps_forward_is_trusted_after_an_hour() -> None:
    time = SteadyTime()
    assert time.wall_ms(now_ms=0, wall_ms=10_000) == 10_000
    slewed_ms = 20_000 + LEAP_MS - 1
    assert time.wall_ms(now_ms=10_000, wall_ms=slewed_ms) == slewed_ms
    ahead_ms = 10**12
    assert time.wall_ms(now_ms=20_000, wall_ms=ahead_ms) == slewed_ms + 10_000
    assert time.wall_ms(now_ms=20_000 + SETTLE_MS - 1, wall_ms=ahead_ms) < 10**9
    assert time.wall_ms(now_ms=20_000 + SETTLE_MS, wall_ms=ahead_ms) == ahead_ms


def test_a_leap_that_is_undone_in_time_has_no_effect() -> None:
    time = SteadyTime()
    time.wall_ms(now_ms=0, wall_ms=10_000)
    time.wall_ms(now_ms=1_000, wall_ms=10**12)
    assert time.wall_ms(now_ms=2_000, wall_ms=12_000) == 12_000
    assert time.wall_ms(now_ms=3_000, wall_ms=5_000) == 5_000
    assert time.wall_ms(now_ms=SETTLE_MS * 2, wall_ms=10**12) < 10**9
