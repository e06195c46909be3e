"""Each fault of groups and transactions has its finding, and what is healthy has none."""

from __future__ import annotations

import pytest

from streamlog.adviser import Diagnosis, advise
from streamlog.adviser.log_view import LogView, TransactionView
from streamlog.record import TopicPartition
from streamlog.replace import replace
from tests.adviser.views import GIB, group, log, reading, topic, with_reading

HOUR_MS = 60 * 60 * 1000
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
HELD = frozenset({T0, T1, T2})
LATE = reading(committed=40, lag=60, lag_ms=HOUR_MS)
FALLING = reading(committed=40, lag=60, lag_ms=10_000, consume_rate=50.0, produce_rate=200.0)
SHORT = topic(settings={"retention.ms": str(HOUR_MS)})


def short_kept(view: LogView) -> LogView:
    """Return the log with one hour of retention."""
    return replace(view, topics={"t": SHORT})


def open_for(open_ms: int, *, timeout_ms: int = 60_000) -> LogView:
    """Return a log with an open transaction."""
    made = TransactionView(
        transactional_id="shop", open_ms=open_ms, timeout_ms=timeout_ms, partitions=HELD
    )
    return log(transactions=(made,))


FAULTS: dict[str, tuple[str, LogView]] = {
    "an old next record": ("lag", with_reading(LATE)),
    "a catch-up that takes an hour": (
        "lag",
        with_reading(reading(lag=3_600, lag_ms=60_000, consume_rate=2.0, produce_rate=1.0)),
    ),
    "no member reads": ("unread-lag", with_reading(LATE, members={}, state="Empty")),
    "Kafka's group reads nothing": (
        "lag",
        with_reading(reading(lag=60, lag_ms=None, lost=None, consume_rate=0.0, produce_rate=0.0)),
    ),
    "more is written than read": ("falling-behind", with_reading(FALLING)),
    "records are lost": ("lost-records", with_reading(reading(lag=5, lost=5))),
    "the next record is nearly expired": (
        "lag-near-retention",
        short_kept(
            with_reading(
                reading(lag=60, lag_ms=HOUR_MS * 9 // 10, consume_rate=50.0, produce_rate=1.0)
            )
        ),
    ),
    "the next record is nearly beyond the size": (
        "lag-near-retention",
        replace(
            with_reading(reading(lag=95, lag_ms=5, consume_rate=50.0, produce_rate=1.0)),
            topics={
                "t": topic(settings={"retention.bytes": str(GIB)}, sizes={0: GIB, 1: GIB, 2: GIB})
            },
        ),
    ),
    "a rebalance that does not end": (
        "long-rebalance",
        log(groups={"g": group(state="PreparingRebalance", was_rebalancing=True)}),
    ),
    "a member without a partition": (
        "idle-members",
        log(groups={"g": group(members={"m": HELD, "idle": frozenset()})}),
    ),
    "a transaction beyond its time-out": ("hanging-transaction", open_for(200_000)),
    "a transaction of an hour": ("long-transaction", open_for(HOUR_MS, timeout_ms=2 * HOUR_MS)),
    "a changelog without an app": ("orphaned-topics", log(topic(), topic("gone-0-changelog"))),
    "a repartition topic without an app": (
        "orphaned-topics",
        log(topic(), topic("gone-by-key-repartition")),
    ),
}

HEALTHY: dict[str, LogView] = {
    "a history is loaded": with_reading(
        reading(lag=9_000, lag_ms=365 * 24 * HOUR_MS, consume_rate=5_000.0, produce_rate=0.0)
    ),
    "a lag of seconds": with_reading(reading(lag=5, lag_ms=3_000)),
    "a lag that was not observed": with_reading(reading(lag=60, lag_ms=None, lost=None)),
    "a marker at the end": with_reading(
        reading(lag=1, lag_ms=None, consume_rate=0.0), members={}, state="Empty"
    ),
    "a marker at the end, and known time": with_reading(reading(lag=1, lag_ms=0), members={}),
    "young records": short_kept(with_reading(reading(lag=60, lag_ms=1_000))),
    "a short rebalance": log(groups={"g": group(state="PreparingRebalance")}),
    "members that wait for their first partitions": log(
        groups={"g": group(members={"m": frozenset()}, state="PreparingRebalance")}
    ),
    "workers with standbys": log(
        topic(),
        topic("g-topology"),
        groups={"g": group(members={"m": HELD, "standby": frozenset()})},
    ),
    "a transaction within its time-out": open_for(50_000),
    "a changelog of an app": log(
        topic(),
        topic("shop-0-changelog"),
        topic("shop-by-key-repartition"),
        groups={"shop": group("shop")},
    ),
    "an empty changelog": log(topic(), topic("new-0-changelog", ends={0: 0, 1: 0, 2: 0})),
}


def only(view: LogView) -> Diagnosis:
    (found,) = advise(view)
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_finding_and_no_other(name: str) -> None:
    code, view = FAULTS[name]
    assert [each.code for each in advise(view)] == [code]


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_healthy_has_no_finding(name: str) -> None:
    assert advise(HEALTHY[name]) == []


def test_partitions_are_the_written_rate_divided_by_what_a_consumer_reads() -> None:
    found = only(with_reading(FALLING))
    assert found.problem == "200 records/s are written and 50 read by 1 consumer of 3 partitions"
    assert found.remedy == (
        "run 4 consumers instead of 1, which takes as many partitions:"
        " streamlog topics alter t --partitions 4 --log kafka://h:1"
    )


def test_consumers_that_fit_the_partitions_need_no_more_of_them() -> None:
    slow = replace(FALLING, produce_rate=90.0)
    assert only(with_reading(slow)).remedy == "run 2 consumers instead of 1"


def test_names_of_groups_are_quoted_in_commands() -> None:
    view = with_reading(LATE)
    view = replace(view, groups={"a b": replace(view.groups["g"], group_id="a b")})
    assert only(view).remedy.endswith("streamlog groups describe 'a b' --log kafka://h:1")


def test_a_group_that_commits_now_and_then_does_not_fall_behind() -> None:
    # 100 records a second, all read; 90 were committed, and the others came a second ago.
    steady = reading(lag=100, lag_ms=1_000, consume_rate=90.0, produce_rate=100.0)
    assert not steady.is_falling_behind
    assert replace(steady, lag_ms=60_000).is_falling_behind
    unknown = replace(steady, lag_ms=None)
    assert not unknown.is_falling_behind
    assert replace(unknown, lag=1_000).is_falling_behind
