"""The history of lags: bounded, ordered, and true to its newest look."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.adviser.log_view import GroupView, ReadingView
from streamlog.console import log_sight
from streamlog.console.log_sight import POINT_MS, POINTS_MAX, LagHistory, lag_of
from streamlog.record import TopicPartition

READINGS = st.builds(
    lambda lag, age, lost: ReadingView(committed=0, lag=lag, lag_ms=age, lost=lost),
    st.none() | st.integers(0, 10**9),
    st.none() | st.integers(0, 10**9),
    st.none() | st.integers(0, 10),
)


def group(*readings: ReadingView) -> GroupView:
    at = {TopicPartition("t", number): each for number, each in enumerate(readings)}
    return GroupView(group_id="g", readings=at)


@given(st.lists(READINGS, max_size=5))
def test_a_group_is_as_late_as_its_latest_partition(readings: list[ReadingView]) -> None:
    lag = lag_of(group(*readings))
    ages = [each.lag_ms for each in readings if each.lag_ms is not None]
    lags = [each.lag for each in readings if each.lag is not None]
    assert lag.age_ms == (max(ages) if ages else None)
    assert lag.records == (sum(lags) if lags else None)
    assert lag.lost == sum(each.lost or 0 for each in readings)


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * POINT_MS), st.none() | st.integers(0, 10**12)), max_size=30
    )
)
def test_the_newest_look_of_each_interval_is_kept(steps: list[tuple[int, int | None]]) -> None:
    history, at_ms, newest = LagHistory(), 0, dict[int, tuple[float, int | None]]()
    for step_ms, lag in steps:
        at_ms += step_ms
        history.add({"g": group(ReadingView(committed=0, lag=lag))}, at_ms)
        newest[at_ms // POINT_MS] = (at_ms / 1_000, lag)
    series = history.series("g")
    assert [*zip(series.times_s, series.records, strict=True)] == [*newest.values()]


def test_history_has_a_bound(monkeypatch: object) -> None:
    history = LagHistory()
    for look in range(POINTS_MAX + 50):
        history.add({"g": group(ReadingView(committed=0, lag=look))}, look * POINT_MS)
    series = history.series("g")
    assert len(series.times_s) == POINTS_MAX
    assert series.records[-1] == POINTS_MAX + 49
    many = {str(n): group() for n in range(log_sight.GROUPS_MAX + 5)}
    history.add(many, 10**9)
    assert not history.series("g").times_s
    assert sum(bool(history.series(name).times_s) for name in many) == log_sight.GROUPS_MAX
