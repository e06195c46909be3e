"""Each fault of brokers, disks and topics has its finding, and what is healthy has none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.adviser import Thresholds, advise
from streamlog.adviser.cluster_advice import days_left
from streamlog.adviser.log_view import LogView, MirrorView
from streamlog.client.admin.cluster_descriptions import QuorumDescription, QuorumReplica
from streamlog.record import TopicPartition
from streamlog.replace import replace
from tests.adviser.views import GIB, broker, disk, log, partition, topic, with_broker

T0 = TopicPartition("t", 0)


def codes(view: LogView) -> list[str]:
    return [each.code for each in advise(view)]


def quorum(*voters: QuorumReplica) -> QuorumDescription:
    return QuorumDescription(1, 1, 5_000, voters, ())


def voter(node_id: int, *, end: int = 5_000, is_rejoining: bool = False) -> QuorumReplica:
    return QuorumReplica(node_id, end, 0, 0, is_rejoining)


def mirror(*, is_stopped: bool) -> MirrorView:
    return MirrorView(name="t", link="standby", is_stopped=is_stopped, reason="it was deleted")


def test_a_mirror_that_copies_is_no_fault() -> None:
    assert codes(log(mirrors=(mirror(is_stopped=False),))) == []


FAULTS: dict[str, tuple[str, LogView]] = {
    "no controller": ("no-controller", log(controller=-1)),
    "two voters": ("even-voters", log(quorum=quorum(voter(1), voter(2)))),
    "a voter far behind": (
        "voter-behind",
        log(quorum=quorum(voter(1), voter(2), voter(3, end=3_000))),
    ),
    "a voter that rejoins": (
        "voter-behind",
        log(quorum=quorum(voter(1), voter(2), voter(3, is_rejoining=True))),
    ),
    "a fenced broker": ("broker-down", with_broker(log(), is_fenced=True)),
    "a silent broker": ("broker-down", with_broker(log(), silent="timed out")),
    "a broker that is gone": ("broker-down", log(brokers=(broker(1), broker(2)))),
    "no leader": ("offline-partitions", log(topic("t", partition(0, in_sync=(), leader=-1)))),
    "one in sync": ("under-min-isr", log(topic("t", partition(0, in_sync=(1,))))),
    "two of three in sync": ("under-replicated", log(topic("t", partition(0, in_sync=(1, 2))))),
    "one replica": ("one-replica", log(topic("t", partition(0, replicas=(1,))))),
    "min ISR 1": ("min-isr-1", log(topic(settings={"min.insync.replicas": "1"}))),
    "min ISR of all": ("min-isr-all", log(topic(settings={"min.insync.replicas": "3"}))),
    "unclean elections": (
        "unclean-election",
        log(topic(settings={"unclean.leader.election.enable": "true"})),
    ),
    "new topics have one replica": (
        "default-one-replica",
        with_broker(log(), settings={"default.replication.factor": "1"}),
    ),
    "one broker without syncs": (
        "flush-os",
        log(
            topic("t", partition(0, replicas=(1,))),
            brokers=(broker(1, settings={"flush": "os"}),),
            disks=(),
        ),
    ),
    "no cleaner": ("cleaner-off", with_broker(log(), settings={"log.cleaner.enable": "false"})),
    "a failed disk": ("failed-disk", log(disks=(disk(1, is_failed=True),))),
    "a full disk": ("disk-full", log(disks=(disk(1, usable_bytes=5 * GIB),))),
    "a disk that fills up": (
        "disk-days",
        log(disks=(disk(1, growth={T0: 1024**2}),), watched_s=10.0),
    ),
    "a large partition": ("large-partitions", log(topic(sizes=dict.fromkeys(range(3), 26 * GIB)))),
    "records in one partition": ("skewed-partitions", log(topic(ends={0: 90_000, 1: 1, 2: 1}))),
    "writes to one partition": (
        "skewed-partitions",
        log(topic(rates={0: 5_000.0, 1: 1.0, 2: 1.0}), watched_s=10.0),
    ),
    "other leaders": (
        "leader-imbalance",
        log(topic("t", *(partition(n, replicas=(1, 2, 3), leader=2) for n in range(3)))),
    ),
    "a broker that holds most": (
        "unbalanced-brokers",
        log(disks=(disk(1, used_bytes=9 * GIB), disk(2), disk(3))),
    ),
    "a throttle without a move": (
        "throttle-left",
        log(topic(settings={"leader.replication.throttled.replicas": "0:1"})),
    ),
    "a mirror that is stopped": ("mirror-stopped", log(mirrors=(mirror(is_stopped=True),))),
    "a cordoned broker": (
        "cordoned-broker",
        with_broker(log(), settings={"cordoned.log.dirs": "*"}),
    ),
    "two releases": ("mixed-versions", with_broker(log(), version="0.9.0")),
    "two releases of Kafka": (
        "mixed-versions",
        log(
            is_streamlog=False,
            brokers=tuple(broker(n, version=None, apis={0: 9 + n // 3}) for n in (1, 2, 3)),
        ),
    ),
    "interpreted modules": ("interpreted-modules", with_broker(log(), interpreted=12)),
    "few descriptors": ("few-descriptors", with_broker(log(), connections=100)),
    "brokers' clocks apart": ("clocks-apart", with_broker(log(), clock_ahead_ms=-5_000)),
    "this clock apart": (
        "clocks-apart",
        log(brokers=tuple(broker(each, clock_ahead_ms=9_000) for each in (1, 2, 3))),
    ),
    "a logger at DEBUG": ("verbose-loggers", with_broker(log(), levels={"streamlog": "DEBUG"})),
    "pushes every second": (
        "frequent-pushes",
        log(subscriptions={"all": {"metrics": "*", "interval.ms": "1000"}}),
    ),
    "a subscription to nothing": (
        "empty-subscription",
        log(subscriptions={"all": {"metrics": "", "interval.ms": "60000"}}),
    ),
}

HEALTHY: dict[str, LogView] = {
    "a cluster": log(quorum=quorum(voter(1), voter(2), voter(3))),
    "one broker, one replica": log(
        topic("t", partition(0, replicas=(1,))), brokers=(broker(1),), disks=(disk(1),)
    ),
    "what could not be seen": log(
        topic(settings=dict.fromkeys(["min.insync.replicas", "cleanup.policy"])),
        brokers=tuple(
            broker(n, version=None, interpreted=None, connections=None, clock_ahead_ms=None)
            for n in (1, 2, 3)
        ),
    ),
    "a move": log(
        topic(
            "t",
            partition(0, in_sync=(1, 2)),
            settings={"leader.replication.throttled.replicas": "0:1"},
        ),
        moves=1,
    ),
    "clocks within the error": log(
        brokers=tuple(
            broker(n, clock_ahead_ms=700 * (n - 2), clock_error_ms=300) for n in (1, 2, 3)
        )
    ),
    "a few records in one partition": log(topic(ends={0: 900, 1: 1, 2: 1})),
    "offsets of groups in one partition": log(
        topic("__consumer_offsets", is_internal=True, ends={0: 90_000, 1: 1, 2: 1})
    ),
    "a disk that grows slowly": log(
        disks=tuple(disk(n, growth={T0: 100.0}) for n in (1, 2, 3)), watched_s=10.0
    ),
    "a subscription": log(subscriptions={"all": {"metrics": "*", "interval.ms": "60000"}}),
    "two brokers, one required": log(
        topic("t", partition(0, replicas=(1, 2)), settings={"min.insync.replicas": "1"}),
        brokers=(broker(1), broker(2)),
        disks=(),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_finding_and_no_other(name: str) -> None:
    code, view = FAULTS[name]
    assert codes(view) == [code]
    (found,) = advise(view)
    assert found.where
    assert found.problem
    assert found.outlook
    assert found.remedy


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_healthy_has_no_finding(name: str) -> None:
    assert advise(HEALTHY[name]) == []


def test_commands_name_the_log_and_what_is_wrong() -> None:
    (found,) = advise(log(topic("my.topic", settings={"min.insync.replicas": "1"})))
    assert found.where == "my.topic"
    assert found.remedy == (
        "streamlog configs alter --topic my.topic --set min.insync.replicas=2 --log kafka://h:1"
    )


def test_critical_findings_come_first() -> None:
    view = with_broker(log(controller=-1), interpreted=1)
    assert codes(view) == ["no-controller", "interpreted-modules"]


def test_of_many_partitions_the_first_are_named() -> None:
    rows = [partition(n, in_sync=(), leader=-1) for n in range(10)]
    (found,) = advise(log(topic("t", *rows)))
    assert found.where == "t-0, t-1, t-2 and 7 more"


def test_many_replicas_are_reported_with_their_brokers() -> None:
    found = advise(log(), thresholds=Thresholds(broker_replicas=2))
    assert [(each.code, each.where) for each in found] == [
        ("many-replicas", "broker 1 (3), broker 2 (3), broker 3 (3)")
    ]


def test_the_setting_of_a_parent_logger_covers_those_below() -> None:
    levels = {"streamlog": "DEBUG", "streamlog.broker": "DEBUG", "asyncio": "TRACE"}
    (found,) = advise(with_broker(log(), levels=levels))
    assert "--unset asyncio --unset streamlog " in found.remedy


def test_kafka_refuses_writes_where_more_replicas_are_required_than_there_are() -> None:
    tight = topic("t", partition(0, replicas=(1, 2)), settings={"min.insync.replicas": "3"})
    assert codes(log(tight)) == ["min-isr-all"]
    assert codes(replace(log(tight), is_streamlog=False)) == ["min-isr-above-replicas"]


def test_a_partition_with_a_size_limit_fills_no_disk() -> None:
    day_s = 24 * 60 * 60
    grows = {T0: GIB / day_s}
    free = 10 * GIB
    for limit, expected in (("-1", 10.0), (str(4 * GIB), None), (str(20 * GIB), 10.0)):
        view = log(topic(settings={"retention.bytes": limit}))
        found = days_left(view, disk(1, growth=grows, sizes={T0: 0}), free)
        assert found == pytest.approx(expected)


@given(
    rates=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=4),
    limits=st.lists(st.integers(0, 10**9), min_size=4, max_size=4),
    free=st.integers(1, 10**9),
)
def test_days_left_are_those_of_a_simulation(
    rates: list[int], limits: list[int], free: int
) -> None:
    """Growth is linear between the moments at which partitions reach their limits."""
    topics = [
        topic(
            f"t{n}",
            partition(0, topic=f"t{n}"),
            settings={"retention.bytes": str(limits[n]), "segment.bytes": "0"},
        )
        for n in range(len(rates))
    ]
    growth = {TopicPartition(f"t{n}", 0): float(rate) for n, rate in enumerate(rates)}
    left = days_left(log(*topics), disk(1, growth=growth, sizes={}), free)

    def grown(seconds: float) -> float:
        return sum(min(rate * seconds, limits[n]) for n, rate in enumerate(rates))

    if left is None:
        assert sum(limits[: len(rates)]) <= free * (1 + 1e-9)
    else:
        assert grown(left * 86_400) == pytest.approx(free)
