"""Coordinator metrics: the groups and transactional ids of this broker, by state.

Only those that this broker coordinates count, once they are loaded, so sums over brokers are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from streamlog.broker.coordinator.group.group_coordinator import CLASSIC, CONSUMER
from streamlog.broker.coordinator.transaction.coordinated_transaction import TransactionState
from streamlog.metrics.registry import ITEMS_PER_STEP, Kind, Metric, Point, number

if TYPE_CHECKING:
    from streamlog.broker.coordinator.group.group_coordinator import GroupCoordinator
    from streamlog.broker.coordinator.transaction.transaction_coordinator import (
        TransactionCoordinator,
    )

CLASSIC_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
"""The states of groups with generations; a group that is dead here no longer exists."""
CONSUMER_STATES = ("Empty", "Assigning", "Reconciling", "Stable", "Dead")
"""The states of groups of KIP-848."""
_MANAGER = "kafka_coordinator_group_groupmetadatamanager_"
_GROUPS = "kafka_server_group_coordinator_metrics_"


def group_metrics(shards: Iterable[GroupCoordinator]) -> Iterator[Metric | None]:
    """Yield how many groups there are by protocol and state, and how often they rebalanced."""
    shards = [*shards]
    states: Counter[tuple[str, str]] = Counter()
    rebalances: Counter[str] = Counter()
    offsets = count = 0
    for shard in shards:
        for each in shard.states():
            states[each] += 1
            count += 1
            if count % ITEMS_PER_STEP == 0:
                yield None
        # A shard that moves to another broker takes its count away. Prometheus reads the smaller
        # sum as a restart of the counter, and `rate` stays right.
        rebalances += shard.rebalances
        offsets += shard.count_offsets()
        yield None
    yield from _classic_metrics(states, offsets)
    yield from _protocol_metrics(states, rebalances)


def _classic_metrics(states: Counter[tuple[str, str]], offsets: int) -> Iterator[Metric]:
    yield number(_MANAGER + "numgroups", "Groups.", states.total())
    for state in CLASSIC_STATES:
        yield number(
            f"{_MANAGER}numgroups{state.lower()}",
            f"Groups of the classic protocol in the state {state}.",
            states[CLASSIC, state],
        )
    yield number(_MANAGER + "numoffsets", "Committed offsets.", offsets)


def _protocol_metrics(
    states: Counter[tuple[str, str]], rebalances: Counter[str]
) -> Iterator[Metric]:
    by_protocol = Counter({CLASSIC: 0, CONSUMER: 0})
    for (protocol, _), size in states.items():
        by_protocol[protocol] += size
    yield Metric(
        _GROUPS + "group_count",
        "Groups by protocol.",
        Kind.GAUGE,
        ("protocol",),
        [((protocol,), size) for protocol, size in by_protocol.items()],
    )
    points: list[Point] = [((state,), states[CONSUMER, state]) for state in CONSUMER_STATES]
    yield Metric(
        _GROUPS + "consumer_group_count",
        "Groups of the consumer protocol (KIP-848) by state.",
        Kind.GAUGE,
        ("state",),
        points,
    )
    # Kafka's names of these counters end in `count`. They are shown as gauges, as by the JMX
    # exporter: some tools rename a counter whose name does not end in `_total`.
    yield number(
        _GROUPS + "group_completed_rebalance_count",
        "Rebalances of groups of the classic protocol that were completed here; only grows.",
        rebalances[CLASSIC],
    )
    yield number(
        _GROUPS + "consumer_group_rebalance_count",
        "Rebalances of groups of the consumer protocol, new group epochs; only grows.",
        rebalances[CONSUMER],
    )


def transaction_metrics(
    shards: Iterable[TransactionCoordinator], wall_ms: int
) -> Iterator[Metric | None]:
    """Yield how many transactional ids there are by state, and the age of the oldest open one."""
    states: Counter[TransactionState] = Counter()
    oldest_ms = wall_ms  # Without an open transaction, the age is 0.
    count = 0
    for shard in shards:
        for each in [*shard.transactions()]:
            states[each.state] += 1
            if each.state is TransactionState.ONGOING:
                oldest_ms = min(oldest_ms, each.start_ms)
            count += 1
            if count % ITEMS_PER_STEP == 0:
                yield None
    yield Metric(
        "streamlog_transactional_ids",
        "Transactional ids by the state of their transaction.",
        Kind.GAUGE,
        ("state",),
        [((state.title,), states[state]) for state in TransactionState],
    )
    yield number(
        "streamlog_transaction_oldest_open_seconds",
        "Age of the oldest open transaction; readers of committed records wait for it.",
        (wall_ms - oldest_ms) / 1000,
    )
