"""What lag means, and its bounds."""

from __future__ import annotations

import math

import pytest

from streamlog.broker.lag import lag_metrics
from streamlog.broker.lag.group_lag import (
    RATE_WINDOW_MS,
    Ends,
    GroupLag,
    GroupTotals,
    PartitionLag,
    RateWindow,
    partition_lag,
)


def lag(
    committed: int,
    ends: Ends | None,
    *,
    next_ms: int | None = None,
    rates: tuple[float, float] | None = None,
    partition: int = 0,
) -> PartitionLag:
    return partition_lag(
        ("t", partition), committed, ends, next_ms=next_ms, now_ms=10_000, rates=rates
    )


def group(name: str, *partitions: PartitionLag) -> GroupLag:
    totals = GroupTotals()
    for each in partitions:
        totals.add(each)
    return GroupLag(name, "classic", "Stable", 1, partitions, totals)


@pytest.mark.parametrize(
    ("committed", "ends", "next_ms", "expected"),
    [
        (10, Ends(0, 10), None, (0, 0, 0)),
        (4, Ends(0, 10), 7_000, (6, 3_000, 0)),
        (4, Ends(6, 10), 9_000, (6, 1_000, 2)),
        (4, Ends(10, 10), None, (6, 0, 6)),
        # A record from the future; a log that ends before the committed offset; unknown ends.
        (4, Ends(0, 10), 20_000, (6, 0, 0)),
        (12, Ends(0, 10), None, (0, 0, 0)),
        (4, None, None, (None, None, None)),
        (4, Ends(0, 10), None, (6, None, 0)),
    ],
)
def test_lag_in_records_in_time_and_what_is_lost(
    committed: int,
    ends: Ends | None,
    next_ms: int | None,
    expected: tuple[int | None, int | None, int | None],
) -> None:
    found = lag(committed, ends, next_ms=next_ms)
    assert (found.lag, found.lag_ms, found.lost) == expected


def test_catching_up_takes_the_readable_lag_divided_by_what_is_gained() -> None:
    assert lag(0, Ends(20, 100), rates=(30.0, 10.0)).catch_up_s == 4.0
    assert lag(0, Ends(20, 100), rates=(10.0, 10.0)).catch_up_s == math.inf
    assert lag(0, Ends(20, 100)).catch_up_s is None
    assert lag(0, Ends(100, 100)).catch_up_s == 0.0


def test_the_slowest_partition_decides_for_its_group() -> None:
    fast, slow = lag(0, Ends(0, 10), rates=(5.0, 0.0)), lag(0, Ends(0, 90), rates=(5.0, 2.0))
    unknown, never = lag(0, Ends(0, 5)), lag(0, Ends(0, 5), rates=(0.0, 1.0))
    assert group("g", fast, slow).totals.catch_up_s == 30.0
    assert group("g", fast, unknown).totals.catch_up_s is None
    assert group("g", never, unknown).totals.catch_up_s == math.inf
    assert group("g").totals.catch_up_s == 0.0


def test_rates_cover_one_to_two_windows() -> None:
    window = RateWindow()
    window.note(0, 0, 0)
    assert window.rates(500, 5, 5) is None
    assert window.rates(2_000, 10, 20) == (5.0, 10.0)
    for step in range(1, 5):
        window.note(step * RATE_WINDOW_MS, step * 60, step * 120)
    # The older of the two looks that are kept is two windows ago.
    assert window.rates(5 * RATE_WINDOW_MS, 300, 600) == (1.0, 2.0)


@pytest.mark.parametrize("after", [(50, 200), (150, 90)])
def test_rates_begin_again_after_a_reset_or_a_shorter_log(after: tuple[int, int]) -> None:
    window = RateWindow()
    window.note(0, 100, 100)
    window.note(5_000, *after)
    assert window.rates(5_500, *after) is None
    assert window.rates(7_000, after[0] + 10, after[1] + 20) == (5.0, 10.0)


def test_series_by_partition_are_bounded_and_aggregates_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag_metrics, "SERIES_MAX", 5)
    groups = [
        group(name, *(lag(0, Ends(0, 9), partition=each) for each in range(3))) for name in "abc"
    ]
    found = {each.name: list(each.points) for each in lag_metrics.lag_metrics(groups)}
    listed = {labels[0] for labels, _ in found["kafka_consumergroup_group_lag"]}
    assert listed == {"a"}
    assert [value for _, value in found["kafka_consumergroup_group_sum_lag"]] == [27, 27, 27]
    assert found["streamlog_consumergroup_unlisted_partitions"] == [((), 6)]
    assert found["streamlog_consumergroup_unknown_partitions"] == [((), 9)]
    assert found["kafka_consumergroup_group_lag_seconds"] == []
