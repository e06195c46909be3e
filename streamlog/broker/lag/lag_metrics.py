"""Lag metrics: the lag of groups under the names of kafka-lag-exporter.

Dashboards and alerts made for it work, without its `cluster_name` and member labels. What it does
not have begins with `streamlog_`. What is not known has no series; its number is a metric.

Rule of this module: the series by partition are bounded. Groups are listed in the order of their
ids until `SERIES_MAX` partitions are listed; aggregates always cover all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from streamlog.broker.lag.group_lag import GroupLag, GroupTotals, PartitionLag
from streamlog.metrics.registry import Kind, Metric, Point, number

SERIES_MAX = 20_000
"""The partitions of groups that are listed one by one."""

_GROUP = "kafka_consumergroup_group_"
_OWN = "streamlog_consumergroup_group_"
_OfPartition: TypeAlias = Callable[[PartitionLag], "float | None"]
_OfGroup: TypeAlias = Callable[[GroupTotals], "float | None"]

_BY_PARTITION: tuple[tuple[str, str, _OfPartition], ...] = (
    (_GROUP + "offset", "Committed offset of a group.", lambda each: each.committed_offset),
    (
        _GROUP + "lag",
        "Offsets from a group's committed offset to the high watermark.",
        lambda each: each.lag,
    ),
    (
        _GROUP + "lag_seconds",
        "Age of the next record that a group reads, in seconds; 0 if there is none.",
        lambda each: _seconds(each.lag_ms),
    ),
)
_BY_GROUP: tuple[tuple[str, str, _OfGroup], ...] = (
    (_GROUP + "max_lag", "Largest lag of a group in a partition.", lambda each: each.max_lag),
    (
        _GROUP + "max_lag_seconds",
        "Age of the oldest next record that a group reads, in seconds.",
        lambda each: _seconds(each.max_lag_ms),
    ),
    (_GROUP + "sum_lag", "Sum of a group's lag over all partitions.", lambda each: each.sum_lag),
    (
        _OWN + "lost_records",
        "Offsets that were deleted before a group read them: its next read skips them.",
        lambda each: each.lost,
    ),
    (
        _OWN + "consume_rate",
        "Offsets per second that a group commits, over the last one to two minutes.",
        lambda each: each.consume_rate,
    ),
    (
        _OWN + "catch_up_seconds",
        "Time until a group has caught up, at its present rate; +Inf if it falls behind.",
        lambda each: each.catch_up_s,
    ),
)


def lag_metrics(groups: Sequence[GroupLag]) -> Iterator[Metric]:
    """Yield the metrics of these groups."""
    listed = _listed(groups)
    by_partition = ("group", "topic", "partition")
    for name, text, of_partition in _BY_PARTITION:
        points = _partition_points(groups[:listed], of_partition)
        yield Metric(name, text, Kind.GAUGE, by_partition, points)
    for name, text, of_group in _BY_GROUP:
        yield Metric(name, text, Kind.GAUGE, ("group",), _group_points(groups, of_group))
    yield Metric(
        _OWN + "members",
        "Members of a group.",
        Kind.GAUGE,
        ("group", "type", "state"),
        (((each.group_id, each.kind, each.state), each.members) for each in groups),
    )
    yield Metric(
        _GROUP + "topic_sum_lag",
        "Sum of a group's lag over the partitions of a topic.",
        Kind.GAUGE,
        ("group", "topic"),
        _topic_points(groups),
    )
    yield number(
        "streamlog_consumergroup_unknown_partitions",
        "Partitions of groups whose lag could not be found out in time, or at all.",
        sum(each.totals.unknown for each in groups),
    )
    yield number(
        "streamlog_consumergroup_unlisted_partitions",
        "Partitions of groups without series of their own, because there are too many.",
        sum(len(each.partitions) for each in groups[listed:]),
    )


def _listed(groups: Sequence[GroupLag]) -> int:
    """Return how many groups have series for their partitions."""
    total = 0
    for count, group in enumerate(groups):
        total += len(group.partitions)
        if total > SERIES_MAX:
            return count
    return len(groups)


def _partition_points(groups: Sequence[GroupLag], of: _OfPartition) -> Iterator[Point]:
    for group in groups:
        for each in group.partitions:
            value = of(each)
            if value is not None:
                yield (group.group_id, each.topic, str(each.partition)), value


def _group_points(groups: Sequence[GroupLag], of: _OfGroup) -> Iterator[Point]:
    for group in groups:
        value = of(group.totals)
        if value is not None:
            yield (group.group_id,), value


def _topic_points(groups: Sequence[GroupLag]) -> Iterator[Point]:
    for group in groups:
        for topic, lag in group.totals.by_topic.items():
            yield (group.group_id, topic), lag


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
