"""Reader advice: what is wrong with groups, transactions, and topics that apps have left behind.

As in `cluster_advice`, each function looks for one kind of fault. `READER_RULES` lists them.

Rule of the module: a group counts as late by the age of its next record only if it does not catch
up soon. A group that reads a year of history has an old next record, and nothing is wrong with it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from streamlog.adviser.cluster_advice import Rule
from streamlog.adviser.log_view import (
    Diagnosis,
    GroupView,
    LogView,
    ReadingView,
    Thresholds,
    listed,
    span,
)
from streamlog.errors import quantity
from streamlog.record import TopicPartition

REBALANCING: Final = frozenset(
    {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}
)
OWN_TOPIC: Final = re.compile(r"(?P<app>.+)-(?:changelog|repartition)")
"""A topic that an app creates for itself; those of Kafka Streams have such names too."""


def _lag(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    for group in _sorted(log):
        behind = {at: each for at, each in group.readings.items() if each.is_behind}
        late = {at: each for at, each in behind.items() if _is_late(each, thresholds)}
        if not late:
            continue
        oldest_ms = max((each.lag_ms or 0 for each in late.values()), default=0)
        records = sum(each.lag or 0 for each in late.values())
        age = f", the oldest {span(oldest_ms)} old" if oldest_ms else ""
        if not group.members:
            yield Diagnosis(
                "warning",
                "unread-lag",
                _where(group, late),
                f"a lag of {quantity(records, 'record')}{age}, and the group has no member",
                "nothing reads them, until they are lost to retention",
                "start its consumers; if they are gone for good: "
                + log.command(f"groups delete {_name(group)}"),
            )
        elif not any(each.is_falling_behind for each in late.values()):
            yield Diagnosis(
                "warning",
                "lag",
                _where(group, late),
                f"a lag of {quantity(records, 'record')}{age}",
                "results are that much late",
                "see which partitions and members are slow: "
                + log.command(f"groups describe {_name(group)}"),
            )


def _is_late(each: ReadingView, thresholds: Thresholds) -> bool:
    """Whether a partition that is behind will stay so for a while."""
    if each.catch_up_s is not None:
        return each.waits and each.catch_up_s > thresholds.catch_up_s
    if each.lag_ms is not None:
        return each.lag_ms > thresholds.lag_ms
    # The age is not known: records wait, and no offset was committed during the observation.
    return each.consume_rate == 0


def _falling_behind(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    """Yield groups that read less than is written, with the partitions that they need."""
    for group in _sorted(log):
        by_topic: defaultdict[str, dict[TopicPartition, ReadingView]] = defaultdict(dict)
        for at, each in group.readings.items():
            by_topic[at.topic][at] = each
        for topic, readings in sorted(by_topic.items()):
            if group.members and any(each.is_falling_behind for each in readings.values()):
                yield _sizing(log, group, topic, readings)


def _sizing(
    log: LogView, group: GroupView, topic: str, readings: dict[TopicPartition, ReadingView]
) -> Diagnosis:
    written = sum(each.produce_rate or 0 for each in readings.values())
    read = sum(each.consume_rate or 0 for each in readings.values())
    readers = sum(any(at.topic == topic for at in held) for held in group.members.values())
    there = len(log.topics[topic].partitions) if topic in log.topics else len(readings)
    start = f"start more consumers, up to {there}"
    if readers and read:
        # Partitions are the target rate divided by what one consumer reads.
        wanted = max(math.ceil(written / (read / readers)), readers + 1)
        start = f"run {wanted} consumers instead of {readers}"
        if wanted > there:
            start += ", which takes as many partitions: " + log.command(
                f"topics alter {topic} --partitions {wanted}"
            )
    return Diagnosis(
        "critical",
        "falling-behind",
        f"group {group.group_id}, topic {topic}",
        f"{written:.0f} records/s are written and {read:.0f} read by"
        f" {quantity(readers, 'consumer')} of {quantity(there, 'partition')}",
        "the lag grows until records are lost to retention",
        start,
    )


def _lost(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    for group in _sorted(log):
        lost = {at: each for at, each in group.readings.items() if each.lost}
        if lost:
            count = sum(each.lost or 0 for each in lost.values())
            yield Diagnosis(
                "critical",
                "lost-records",
                _where(group, lost),
                f"{quantity(count, 'offset')} were deleted before the group read them",
                "its next read skips them, by auto.offset.reset, and no one reports what they were",
                "lengthen retention.ms; replay from a copy, or accept the loss: "
                + log.command(f"groups reset-offsets {_name(group)} --to-earliest --execute"),
            )


def _soon_lost(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    for group in _sorted(log):
        soon: dict[TopicPartition, float] = {}
        for at, each in group.readings.items():
            used = _used_retention(log, at, each) if each.is_behind else None
            if used is not None and used > thresholds.retention_share:
                soon[at] = used
        if soon:
            topic = min(soon).topic
            yield Diagnosis(
                "critical",
                "lag-near-retention",
                f"group {group.group_id}: {listed(map(_text, sorted(soon)))}",
                f"the next record has used {max(soon.values()):.0%} of its retention",
                "it is deleted before the group reads it",
                "lengthen the retention until the group has caught up: "
                + log.alter_topic(topic, "retention.ms", "-1"),
            )


def _used_retention(log: LogView, at: TopicPartition, each: ReadingView) -> float | None:
    """Return the share of its retention that a group's next record has used; None: no limit."""
    topic = log.topics.get(at.topic)
    if topic is None:
        return None
    shares = []
    if topic.retention_ms and each.lag_ms is not None:
        shares.append(each.lag_ms / topic.retention_ms)
    held, records = topic.sizes.get(at.partition), topic.records.get(at.partition)
    if topic.retention_bytes and held and records and each.lag:
        shares.append(held * min(each.lag / records, 1) / topic.retention_bytes)
    # A record that is past its retention is not deleted yet: only whole segments are.
    return max(shares, default=None)


def _rebalancing(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    for group in _sorted(log):
        if group.was_rebalancing and group.state in REBALANCING:
            yield Diagnosis(
                "warning",
                "long-rebalance",
                f"group {group.group_id}",
                f"the group was in a rebalance for {log.watched_s:.0f} s ({group.state})",
                "no member of a classic group reads meanwhile",
                "look for members that come and go, or that take longer than"
                " max.poll.interval.ms: " + log.command(f"groups describe {_name(group)}"),
            )


def _idle_members(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    for group in _sorted(log):
        idle = sorted(member for member, held in group.members.items() if not held)
        if not idle or len(idle) == len(group.members) or group.state in REBALANCING:
            continue
        # Workers without a task may hold standbys: `app_advice` counts the tasks.
        if f"{group.group_id}-topology" in log.topics:
            continue
        topics = sorted({at.topic for held in group.members.values() for at in held})
        yield Diagnosis(
            "warning",
            "idle-members",
            f"group {group.group_id}",
            f"{len(idle)} of {quantity(len(group.members), 'member')} have no partition",
            "they cost memory and connections, and read nothing",
            "stop them, or, if the group needs them, add partitions: "
            + log.command(f"topics alter {topics[0]} --partitions {len(group.members)}"),
        )


def _hanging(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    for each in log.transactions:
        if each.open_ms <= each.timeout_ms + thresholds.transaction_ms:
            continue
        yield Diagnosis(
            "critical",
            "hanging-transaction",
            f"transactional id {each.transactional_id}",
            f"its transaction is open for {span(each.open_ms)}, its time-out is"
            f" {span(each.timeout_ms)}; partitions: {listed(map(_text, sorted(each.partitions)))}",
            "readers of committed records stop there, and compaction too",
            "look at its producer and its coordinator; if that does not end it, find and abort it: "
            + log.command("transactions find-hanging"),
        )


def _long_timeouts(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    long = [
        each
        for each in log.transactions
        if thresholds.lag_ms < each.open_ms <= each.timeout_ms + thresholds.transaction_ms
    ]
    if long:
        yield Diagnosis(
            "warning",
            "long-transaction",
            listed(f"transactional id {each.transactional_id}" for each in long),
            f"transactions are open for up to {span(max(each.open_ms for each in long))}",
            "readers of committed records see nothing behind their first record until they end",
            "commit more often, or shorten the producer's transaction.timeout.ms, so that an"
            " abandoned transaction ends earlier",
        )


def _orphans(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    """Yield topics of apps that have neither members nor committed offsets."""
    left = []
    for name, topic in sorted(log.topics.items()):
        if OWN_TOPIC.fullmatch(name) is None or not any(topic.records.values()):
            continue
        if not any(name.startswith(f"{group}-") for group in log.groups):
            left.append(name)
    if left:
        yield Diagnosis(
            "warning",
            "orphaned-topics",
            listed(left),
            "no group belongs to these changelogs and repartition topics",
            "they keep disk space, replicas and open files",
            "if the app is gone for good: "
            + "; ".join(log.command(f"topics delete {name}") for name in left[:1]),
        )


def _where(group: GroupView, readings: dict[TopicPartition, ReadingView]) -> str:
    return f"group {group.group_id}: {listed(map(_text, sorted(readings)))}"


def _text(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _name(group: GroupView) -> str:
    return shlex.quote(group.group_id)


def _sorted(log: LogView) -> Iterator[GroupView]:
    return (log.groups[name] for name in sorted(log.groups))


READER_RULES: Final[tuple[Rule, ...]] = (
    _lost,
    _soon_lost,
    _falling_behind,
    _lag,
    _rebalancing,
    _idle_members,
    _hanging,
    _long_timeouts,
    _orphans,
)
