"""A healthy log as a view, and ways to make it ill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamlog.adviser.log_view import (
    BrokerView,
    DiskView,
    GroupView,
    LogView,
    ReadingView,
    TopicView,
)
from streamlog.client.admin.cluster_descriptions import PartitionDescription
from streamlog.record import TopicPartition
from streamlog.replace import replace

GIB = 1024**3
SETTINGS: Mapping[str, str | None] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(GIB),
    "min.insync.replicas": "0",
    "unclean.leader.election.enable": "false",
    "leader.replication.throttled.replicas": "",
    "follower.replication.throttled.replicas": "",
    "mark.quiet.ms": "5000",
}
BROKER: Mapping[str, str | None] = {
    "max.connections": "4096",
    "default.replication.factor": "0",
    "flush": "always",
    "log.cleaner.enable": "true",
    "cordoned.log.dirs": "",
    "transaction.max.timeout.ms": "900000",
}


def partition(
    number: int,
    *,
    topic: str = "t",
    replicas: tuple[int, ...] | None = None,
    in_sync: tuple[int, ...] | None = None,
    leader: int | None = None,
) -> PartitionDescription:
    """Return a partition whose replicas are all in sync, led by the first one."""
    usual = tuple((number + each) % 3 + 1 for each in range(3))
    held = usual if replicas is None else replicas
    alive = held if in_sync is None else in_sync
    leads = held[0] if leader is None else leader
    return PartitionDescription(topic, number, leads, 1, held, alive, ())


def topic(name: str = "t", *partitions: PartitionDescription, **given: Any) -> TopicView:
    """Return a topic of three partitions; `settings` are those that differ."""
    rows = partitions or tuple(partition(number, topic=name) for number in range(3))
    numbers = [each.partition for each in rows]
    values = {
        "begins": dict.fromkeys(numbers, 0),
        "ends": dict.fromkeys(numbers, 100),
        "sizes": dict.fromkeys(numbers, 1_000),
        **given,
    }
    values["settings"] = {**SETTINGS, **given.get("settings", {})}
    return TopicView(name=name, partitions=rows, **values)


def broker(node_id: int, **given: Any) -> BrokerView:
    """Return a broker; `settings` are those that differ."""
    values = {
        "version": "1.0.0",
        "interpreted": 0,
        "connections": 5_000,
        "clock_ahead_ms": 0,
        "levels": {"root": "INFO", "streamlog": "INFO"},
        **given,
    }
    values["settings"] = {**BROKER, **given.get("settings", {})}
    return BrokerView(node_id=node_id, **values)


def disk(node_id: int, **given: Any) -> DiskView:
    """Return a disk that is half full."""
    values = {"total_bytes": 100 * GIB, "usable_bytes": 50 * GIB, **given}
    return DiskView(node_id=node_id, path="/data", **values)


def reading(**given: Any) -> ReadingView:
    """Return the progress of a group that has caught up."""
    return ReadingView(**{"committed": 100, "lag": 0, "lag_ms": 0, "lost": 0, **given})


def group(name: str = "g", **given: Any) -> GroupView:
    """Return a group of one member that has caught up with `t`."""
    parts = [TopicPartition("t", number) for number in range(3)]
    values = {
        "members": {"m": frozenset(parts)},
        "readings": {each: reading() for each in parts},
        **given,
    }
    return GroupView(group_id=name, **values)


def log(*topics: TopicView, **given: Any) -> LogView:
    """Return a healthy log with three brokers, one topic, and one group."""
    held = topics or (topic(),)
    values = {
        "brokers": tuple(broker(each) for each in (1, 2, 3)),
        "disks": tuple(disk(each) for each in (1, 2, 3)),
        "groups": {"g": group()},
        "url": "kafka://h:1",
        **given,
    }
    return LogView(topics={each.name: each for each in held}, **values)


def with_broker(view: LogView, **given: Any) -> LogView:
    """Return the log with another broker 1."""
    return replace(view, brokers=(broker(1, **given), *view.brokers[1:]))


def with_reading(reading_: ReadingView, **given: Any) -> LogView:
    """Return the log with a group that has this progress in `t-0`."""
    of = group(readings={TopicPartition("t", 0): reading_}, **given)
    return log(groups={"g": of})
