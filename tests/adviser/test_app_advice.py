"""Each fault between an app and its log has its finding, and what is healthy has none."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, JoinWindow, Windowed, hopping, session, tumbling
from streamlog.adviser import AppView, Diagnosis, advise
from streamlog.adviser.app_advice import SampleView, last_end_ms
from streamlog.adviser.log_view import LogView
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.topology import Topology
from streamlog.windows.definitions import Windows
from streamlog.windows.window_assigner import Assigner
from streamlog.worker.topics.app_topics import CHANGELOG_CONFIGS
from tests.adviser.views import BROKER, SETTINGS, group, log, partition, topic, with_broker

HOUR_MS = 60 * 60 * 1000
NOW_MS = 1_700_000_000_000
CHANGELOG = {**SETTINGS, **CHANGELOG_CONFIGS}


def counted(
    windows: Windows | None = None,
    *,
    is_retimed: bool = False,
    idle_after: str | None = None,
    late: bool = False,
) -> Topology:
    """Return an app that counts the records of `t` per window, by another key."""
    app = App("shop")
    source = app.topic("t", key=str, value=str)
    stream = app.stream(source)
    if is_retimed:
        stream = stream.set_timestamp(int, name="time")
    windowed = stream.rekey(lambda _, value: value, name="by-value").group_by_key()
    in_windows = windowed.windowed(windows or tumbling("1m", grace="10s")).emit(Emit.CLOSE)
    if late:
        in_windows = in_windows.late(lambda _: None)
    if idle_after is not None:
        in_windows = in_windows.idle_after(idle_after)
    in_windows.count(name="counts").changes().to(app.topic("rows", key=Windowed[str], value=int))
    return app.topology()


def joined() -> Topology:
    """Return an app that joins two topics."""
    app = App("shop")
    left, right = (app.stream(app.topic(name, key=str, value=str)) for name in ("t", "u"))
    left.join(right, lambda a, b: a + b, within=JoinWindow.of("1h"), name="both").to(
        app.topic("rows", key=str, value=str)
    )
    return app.topology()


def tabled() -> Topology:
    """Return an app with a table."""
    app = App("shop")
    app.table(app.topic("t", key=str, value=str)).changes().to(
        app.topic("rows", key=str, value=str)
    )
    return app.topology()


def sample(*times_ms: int, keys: list[bytes | None] | None = None) -> SampleView:
    return SampleView(times_ms=times_ms, keys=keys or [None] * len(times_ms))


def view(topology: Topology | None = None, **given: object) -> AppView:
    values = {"changelog_settings": CHANGELOG_CONFIGS, "now_ms": NOW_MS, **given}
    return AppView(topology=topology or counted(), **values)  # type: ignore[arg-type]


def topics(**others: dict[str, str]) -> LogView:
    """Return a log with the topics of `counted`; others' settings by name, `_` for `-`."""
    given = {name.replace("_", "-"): settings for name, settings in others.items()}
    own = {
        "shop-by-value-repartition": {},
        "shop-1-changelog": dict(CHANGELOG_CONFIGS),
        "t": {},
        "rows": {},
    }
    return log(
        *(topic(name, settings={**own[name], **given.get(name, {})}) for name in own),
        groups={"shop": group("shop")},
    )


def spread(newest_ms: int, *, behind_ms: int, share: float, count: int = 1_000) -> SampleView:
    """Return records in time, a share of which comes late."""
    late = round(count * share)
    times = [newest_ms - (behind_ms if number % count < late else 0) for number in range(count)]
    return sample(*sorted(times, reverse=True))


KEYS = [b"k%d" % number for number in range(1_000)]
T0 = TopicPartition("t", 0)
UNMARKED = {"mark.quiet.ms": "-1"}


def quiet(**settings: str) -> LogView:
    """Return a log in which nothing comes into partition 2 of `t`."""
    found = topics(t=settings)
    return replace(
        found,
        topics={**found.topics, "t": topic("t", ends={0: 100, 1: 100, 2: 0}, settings=settings)},
    )


FLOWS = {TopicPartition("t", number): sample(NOW_MS - 10) for number in (0, 1)}

FAULTS: dict[str, tuple[str, AppView, LogView]] = {
    "a source is missing": (
        "missing-source",
        view(),
        log(topic("other"), groups={}),
    ),
    "joined topics of other sizes": (
        "partition-counts",
        view(joined()),
        log(topic("t"), topic("u", partition(0, topic="u")), groups={}),
    ),
    "a changelog of another size": (
        "partition-counts",
        view(),
        replace(
            topics(),
            topics={
                **topics().topics,
                "shop-1-changelog": topic(
                    "shop-1-changelog",
                    partition(0, topic="shop-1-changelog"),
                    settings=dict(CHANGELOG_CONFIGS),
                ),
            },
        ),
    ),
    "a changelog that is deleted from": (
        "changelog-retention",
        view(),
        topics(shop_1_changelog={"cleanup.policy": "delete"}),
    ),
    "a compacted changelog with retention": (
        "changelog-retention",
        view(),
        topics(shop_1_changelog={"cleanup.policy": "compact,delete", "retention.ms": "1000"}),
    ),
    "a changelog that refuses large commits": (
        "changelog-settings",
        view(),
        topics(shop_1_changelog={"max.message.bytes": "1048588"}),
    ),
    "a repartition topic with retention": (
        "repartition-retention",
        view(),
        topics(shop_by_value_repartition={"retention.ms": "604800000"}),
    ),
    "a repartition topic with the broker's times": (
        "append-time",
        view(),
        topics(shop_by_value_repartition={"message.timestamp.type": "LogAppendTime"}),
    ),
    "a time-out that brokers refuse": (
        "transaction-timeout",
        view(),
        with_broker(topics(), settings={**BROKER, "transaction.max.timeout.ms": "5000"}),
    ),
    "commits as long as the time-out": (
        "commit-interval",
        view(commit_interval_ms=10_000),
        topics(),
    ),
    "a retention shorter than a window": (
        "short-retention",
        view(),
        topics(t={"retention.ms": "30000"}),
    ),
    "rows that are expired when they are written": (
        "expiring-rows",
        view(),
        topics(rows={"retention.ms": "60000"}),
    ),
    "a table whose rows expire": (
        "table-retention",
        view(tabled()),
        log(topic("t", settings={"retention.ms": "604800000"}), topic("rows"), groups={}),
    ),
    "late records": (
        "late-records",
        view(samples={T0: spread(NOW_MS, behind_ms=2 * HOUR_MS, share=0.05)}),
        topics(),
    ),
    "records of the future": (
        "future-times",
        view(samples={T0: sample(NOW_MS + 24 * HOUR_MS)}),
        topics(),
    ),
    "one key has a third": (
        "hot-key",
        view(samples={T0: sample(*[NOW_MS] * 1_500, keys=[*KEYS, *[b"hot"] * 500])}),
        topics(),
    ),
    "a quiet partition without marks": ("quiet-partitions", view(samples=FLOWS), quiet(**UNMARKED)),
    "a quiet partition behind set_timestamp": (
        "quiet-partitions",
        view(counted(is_retimed=True), samples=FLOWS),
        quiet(),
    ),
    "more workers than tasks": (
        "idle-workers",
        view(),
        replace(
            topics(),
            groups={
                "shop": group("shop", members={f"m{n}": frozenset({T0}) for n in range(7)}),
            },
        ),
    ),
    "topics of an earlier program": (
        "orphaned-topics",
        view(),
        replace(
            topics(),
            topics={**topics().topics, "shop-7-changelog": topic("shop-7-changelog")},
        ),
    ),
}

HEALTHY: dict[str, tuple[AppView, LogView]] = {
    "an app": (view(), topics()),
    "an app that has not run yet": (view(), log(topic("t"), groups={})),
    "an embedded log without topics": (view(), log(topic("x"), groups={}, url="embedded:./log")),
    "joined topics": (view(joined()), log(topic("t"), topic("u"), groups={})),
    "at least once": (
        view(guarantee="at_least_once", commit_interval_ms=60_000),
        with_broker(topics(), settings={**BROKER, "transaction.max.timeout.ms": "5000"}),
    ),
    "a retention longer than the window": (view(), topics(t={"retention.ms": str(HOUR_MS)})),
    "a table of a compacted topic": (
        view(tabled()),
        log(
            topic("t", settings={"cleanup.policy": "compact", "retention.ms": "604800000"}),
            topic("rows"),
            groups={},
        ),
    ),
    "records within the grace": (
        view(samples={T0: spread(NOW_MS, behind_ms=9_000, share=0.3)}),
        topics(),
    ),
    "a few late records": (
        view(samples={T0: spread(NOW_MS, behind_ms=2 * HOUR_MS, share=0.005)}),
        topics(),
    ),
    "late records that are kept": (
        view(counted(late=True), samples={T0: spread(NOW_MS, behind_ms=2 * HOUR_MS, share=0.05)}),
        topics(),
    ),
    "even keys": (view(samples={T0: sample(*[NOW_MS] * 1_000, keys=[*KEYS])}), topics()),
    "few keys": (
        view(samples={T0: sample(*[NOW_MS] * 1_000, keys=[b"a", b"b"] * 500)}),
        topics(),
    ),
    "a quiet partition with marks": (view(samples=FLOWS), quiet()),
    "a quiet partition and idle_after": (
        view(counted(idle_after="30s"), samples=FLOWS),
        quiet(**UNMARKED),
    ),
    "workers with standby replicas": (
        view(standby_replicas=1),
        replace(
            topics(),
            groups={
                "shop": group("shop", members={f"m{n}": frozenset({T0}) for n in range(7)}),
            },
        ),
    ),
    "topics of a version that runs alongside": (
        view(),
        replace(
            topics(),
            topics={
                **topics().topics,
                "shop-v2-by-value-repartition": topic("shop-v2-by-value-repartition"),
            },
            groups={"shop": group("shop"), "shop-v2": group("shop-v2")},
        ),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_finding_and_no_other(name: str) -> None:
    code, app, on = FAULTS[name]
    assert [each.code for each in advise(on, app)] == [code]


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_healthy_has_no_finding(name: str) -> None:
    app, on = HEALTHY[name]
    assert advise(on, app) == []


def only(app: AppView, on: LogView) -> Diagnosis:
    (found,) = advise(on, app)
    return found


def test_the_grace_that_late_records_need_is_named() -> None:
    late = spread(NOW_MS, behind_ms=2 * HOUR_MS, share=0.05)
    found = only(view(samples={T0: late}), topics())
    assert found.problem.startswith("50 of 1000 sampled records come after their window")
    (grace_s,) = re.findall(r"grace='(\d+)s'", found.remedy)
    # The window of such a record ended up to a minute after it.
    assert 2 * 3600 - 60 <= int(grace_s) <= 2 * 3600 + 1


def test_a_hot_key_is_named_with_its_partition_and_share() -> None:
    found = only(*FAULTS["one key has a third"][1:])
    assert found.where == "topic t, partition 0"
    assert found.problem == "key 'hot' has 33% of the last 1500 records there"


@pytest.mark.parametrize(
    "windows", [tumbling("7s"), tumbling("7s", offset="3s"), hopping("10s", "3s")]
)
@given(time_ms=st.integers(0, 2**40))
def test_the_last_window_of_a_record_is_the_assigners(windows: Windows, time_ms: int) -> None:
    assigned = Assigner(windows).of(time_ms)
    assert last_end_ms(windows, time_ms) == max(end for _, end in assigned)


def test_a_session_may_close_no_earlier_than_a_gap_after_its_record() -> None:
    assert last_end_ms(session("30s"), 1_000) == 31_000
    late = spread(NOW_MS, behind_ms=29_000, share=0.3)
    later = spread(NOW_MS, behind_ms=31_000, share=0.3)
    app: Callable[[SampleView], AppView] = lambda each: view(  # noqa: E731 - two of them
        counted(session("30s")), samples={T0: each}
    )
    assert advise(topics(), app(late)) == []
    assert only(app(later), topics()).code == "late-records"
