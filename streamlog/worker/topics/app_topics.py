"""App topics: finds the topics of an app, creates missing ones, and refuses wrong partition counts.

Internal topics (repartition, changelog) are always created. Declared topics are created on an
embedded log. On a cluster they are created only if the app does not read them, or declares their
number of partitions: a missing source on a cluster is more likely a wrong name or the wrong
cluster.

Rule: partition counts of existing topics are never changed, as keys, and with them state, would
belong to other partitions. Not done here: deletion of topics that an app no longer uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from streamlog import repeated
from streamlog.client.admin import Admin, NewTopic
from streamlog.errors import (
    LogError,
    TopicExists,
    TopologyError,
    UnknownTopicOrPartition,
    quantity,
)
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.topology import Topology

logger = repeated.logger(__name__)

UNBOUNDED: Final = str(2**63 - 1)
BOUNDS: Final = {
    "message.timestamp.before.max.ms": UNBOUNDED,
    "message.timestamp.after.max.ms": UNBOUNDED,
}
"""The limits of record timestamps (KIP-937), in Kafka 3.6 and later."""
EVERY_TIMESTAMP: Final = {"message.timestamp.type": "CreateTime", **BOUNDS}
"""The settings of a topic that accepts every timestamp and keeps it."""
OF_TOPIC: Final = "topic"
"""The source of a setting that was made for the topic itself."""


def without_bounds(topic: NewTopic) -> NewTopic | None:
    """Return the topic without timestamp limits, for an older broker; None if it sets none."""
    if not topic.configs.keys() & BOUNDS.keys():
        return None
    configs = {name: value for name, value in topic.configs.items() if name not in BOUNDS}
    return replace(topic, configs=configs)


async def allow_every_timestamp(admin: Admin, topics: Iterable[str]) -> None:
    """Alter existing topics so that they accept every timestamp; settings of a topic stay."""
    for topic in sorted(topics):
        try:
            found = await admin.describe_configs(topic)
        except LogError as error:  # The user may lack the right to describe settings.
            logger.info("the settings of topic %s can't be read: %s", topic, error)
            continue
        lacking = {
            name: value
            for name, value in EVERY_TIMESTAMP.items()
            # A value that was set for this topic is the user's choice, and stays.
            if name in found and found[name].source != OF_TOPIC and found[name].value != value
        }
        if not lacking:
            continue
        shown = ",".join(f"{name}={value}" for name, value in lacking.items())
        try:
            await admin.alter_configs(lacking, topic=topic)
        except LogError as error:
            sets = " ".join(f"--set {each}" for each in shown.split(","))
            logger.warning(
                "topic %s may refuse event times that this app writes, and its settings can't be"
                " altered (%s). Run as a user with that right: streamlog configs alter --topic %s"
                " %s --log URL",
                topic, error, topic, sets,
            )  # fmt: skip
        else:
            logger.info("topic %s now accepts every event time: set %s", topic, shown)


async def read_whole_topic(log: Log, topic: str) -> list[tuple[int, bytes]]:
    """Return offset and value of all committed records of partition 0; none without the topic.

    Raises:
        RequestTimedOut: the read has stalled.
    """
    if not any(each.name == topic for each in await log.admin().list_topics()):
        return []
    records = await log.read_range(TopicPartition(topic, 0))
    return [(record.offset, record.value or b"") for record in records]


DELETE_RETENTION_MS = 24 * 60 * 60 * 1000
"""`delete.retention.ms` of changelogs."""


BROKER_DEFAULT = -1
"""The number of partitions or replicas is the broker's default."""
CHANGELOG_BATCH_BYTES = 64 * 1024 * 1024
"""The largest batch of a changelog. A checkpoint may be one batch; tasks commit far below this."""
CHANGELOG_CONFIGS = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(CHANGELOG_BATCH_BYTES),
    "segment.bytes": str(2 * CHANGELOG_BATCH_BYTES),
    "min.compaction.lag.ms": str(10 * 60 * 1000),
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    **EVERY_TIMESTAMP,
}
"""Compaction skips the active segment, so segments are small. The compaction lag gives an owner
time to find late records of a former owner and to write their keys again (`restore`)."""
REPARTITION_CONFIGS = {
    "retention.ms": "-1",
    "max.message.bytes": str(CHANGELOG_BATCH_BYTES),
    **EVERY_TIMESTAMP,
}
"""Without retention by time, as records keep their event time: a cluster's default would remove
records of old events before they are read. The batch limit is larger than that of input topics, as
a record here has one more header."""
PUTS_CONFIGS = {"cleanup.policy": "compact", **EVERY_TIMESTAMP}
"""The topic of rows that are put into a table. The task needs only the newest value of a key."""
CLEANUP_POLICY = "cleanup.policy"
_ARGUMENTS = {
    CLEANUP_POLICY: "compact=True",
    "retention.ms": "retention=",
    "max.message.bytes": "its own limit",
}
"""The settings that an app declares, by the arguments of `app.topic`."""
SEEN_ATTEMPTS_MAX = 50
"""Attempts until a new topic is listed: the brokers of a cluster learn of it one after another."""
SEEN_RETRY_MS = 100


async def ensure_topics(
    log: Log,
    topology: Topology,
    declared: Mapping[str, TopicSpec],
    *,
    required: Collection[str],
) -> dict[str, int]:
    """Find or create all topics of an app; returns the partition count of each.

    Args:
        log: the log.
        topology: the app's topology, with its repartition and changelog topics.
        declared: the declared topics by name.
        required: declared topics that are created only if their number of partitions is declared.

    Raises:
        UnknownTopicOrPartition: a required topic is missing.
        TopologyError: partition counts contradict each other, or the existing state.
    """
    admin = log.admin()
    existing = await _counts(admin)
    # First, as the partition counts of all other topics follow from these.
    counts = await declare_topics(log, declared, required=required)
    await _warn_of_other_settings(admin, [s for s in declared.values() if s.name in existing])
    counts = await _with_lone_tables(admin, topology, counts)
    wanted = topology.partition_counts(counts)
    changelogs = topology.changelog_partitions(wanted)
    own = {name for name, spec in topology.topics.items() if spec.is_managed} | {*changelogs}
    own |= {name for name, spec in declared.items() if spec.takes_every_time}
    # New topics get these settings when they are created.
    await allow_every_timestamp(admin, own & existing.keys())
    missing = [
        NewTopic(name, wanted[name], replication_factor=BROKER_DEFAULT, configs=REPARTITION_CONFIGS)
        for name, spec in topology.topics.items()
        if spec.internal and name not in counts
    ]
    missing += [
        NewTopic(name, wanted[name], replication_factor=BROKER_DEFAULT, configs=PUTS_CONFIGS)
        for name, spec in topology.topics.items()
        if spec.is_own and name not in counts
    ]
    missing += [
        NewTopic(name, number, replication_factor=BROKER_DEFAULT, configs=CHANGELOG_CONFIGS)
        for name, number in changelogs.items()
        if name not in counts
    ]
    await _create(admin, missing)
    of_app = {*declared, *topology.topics, *changelogs}
    counts = await _await_topics(admin, of_app)
    _refuse_other_counts(changelogs, counts)
    # Only the app's topics: a cluster has others as well.
    return topology.partition_counts({name: counts[name] for name in of_app})


async def check_sources(
    log: Log, declared: Mapping[str, TopicSpec], *, required: Collection[str]
) -> None:
    """Check that no required topic is missing; create none.

    Raises:
        UnknownTopicOrPartition: a required topic is missing.
    """
    counts = await _counts(log.admin())
    _refuse_missing([spec for name, spec in declared.items() if name not in counts], required)


async def declare_topics(
    log: Log, declared: Mapping[str, TopicSpec], *, required: Collection[str] = ()
) -> dict[str, int]:
    """Find or create declared topics; returns the partition counts of all topics of the log.

    Raises:
        UnknownTopicOrPartition: a required topic is missing.
    """
    admin = log.admin()
    counts = await _counts(admin)
    missing = [spec for name, spec in sorted(declared.items()) if name not in counts]
    _refuse_missing(missing, required)
    await _create(admin, [_new(spec) for spec in missing])
    return await _await_topics(admin, declared)


async def _with_lone_tables(
    admin: Admin, topology: Topology, counts: dict[str, int]
) -> dict[str, int]:
    """Create the topics of writable tables that no other topic is read with.

    Such a table needs no partition count of its own: the broker's default decides. Returns the
    partition counts with the new topics.
    """
    lone = [
        spec.name
        for sub in topology.subtopologies
        for spec in sub.topics.values()
        if spec.is_own
        and spec.partitions is None
        and len(sub.topics) == 1
        and spec.name not in counts
    ]
    if not lone:
        return counts
    await _create(
        admin,
        [
            NewTopic(name, BROKER_DEFAULT, replication_factor=BROKER_DEFAULT, configs=PUTS_CONFIGS)
            for name in lone
        ],
    )
    return await _await_topics(admin, {*lone, *counts})


async def _warn_of_other_settings(admin: Admin, existing: Iterable[TopicSpec]) -> None:
    """Log the settings of existing topics that differ from the app's declaration.

    The declaration counts at the topic's creation only: an existing topic is not altered.
    """
    for spec in existing:
        wanted = _configs(spec)
        if not wanted:
            continue
        try:
            found = await admin.describe_configs(spec.name)
        except LogError as error:  # The user may lack the right to describe settings.
            logger.info("the settings of topic %s can't be compared: %s", spec.name, error)
            continue
        given = {name: entry.value for name, entry in found.items()}
        for line in other_settings(spec.name, wanted, given):
            logger.warning("%s", line)


def other_settings(
    topic: str, wanted: Mapping[str, str], given: Mapping[str, str | None]
) -> Iterator[str]:
    """Yield a line for each setting of a topic that differs from the app's declaration."""
    for name, value in wanted.items():
        there = given.get(name)
        parts = [part.strip() for part in (there or "").split(",")]
        # `compact,delete` compacts as well.
        if there is None or there == value or (name == CLEANUP_POLICY and value in parts):
            continue
        yield (
            f"topic {topic} has {name}={there}, but this app declares {_ARGUMENTS[name]} "
            f"({name}={value}), which counts only when the app creates the topic; to alter it, "
            f"run: streamlog configs alter --topic {topic} --set {name}={value} --log URL"
        )


def _configs(spec: TopicSpec) -> dict[str, str]:
    """Return the settings that an app declares for a topic."""
    configs = {CLEANUP_POLICY: "compact"} if spec.compact else {}
    if spec.retention_ms is not None:
        configs["retention.ms"] = str(spec.retention_ms)
    if spec.message_bytes_max is not None:
        configs["max.message.bytes"] = str(spec.message_bytes_max)
    return configs


def _new(spec: TopicSpec) -> NewTopic:
    return NewTopic(
        spec.name,
        spec.partitions or BROKER_DEFAULT,
        replication_factor=BROKER_DEFAULT,
        configs=_configs(spec) | (EVERY_TIMESTAMP if spec.takes_every_time else {}),
    )


def _refuse_missing(missing: Iterable[TopicSpec], required: Collection[str]) -> None:
    lacking = [each.name for each in missing if each.name in required and each.partitions is None]
    if not lacking:
        return
    # All at once: their user would otherwise start the worker once for each.
    names = ", ".join(map(repr, lacking))
    is_one = len(lacking) == 1
    what = f"topic {names}, which does not exist" if is_one else f"topics {names}: none exists"
    it = "it" if is_one else "each"
    raise UnknownTopicOrPartition(
        f"this app reads {what}; create {it} (streamlog topics create {lacking[0]} --partitions N "
        f"--log URL), or let the app create {it}: app.topic(..., partitions=N)"
    )


def _refuse_other_counts(wanted: Mapping[str, int], counts: Mapping[str, int]) -> None:
    for name, number in wanted.items():
        if counts.get(name, number) != number:
            raise TopologyError(
                f"changelog {name!r} has {quantity(counts[name], 'partition')}, but its inputs "
                f"need {number} now, and state can't be moved between partitions: give the inputs "
                "their former partition count, or delete this topic and the state directory to "
                "start over"
            )


async def _create(admin: Admin, topics: list[NewTopic]) -> None:
    for topic in topics:
        try:
            await _create_one(admin, topic)
        except TopicExists:
            continue  # Another worker has created it meanwhile.
        logger.info("created topic %s", topic.name)


async def _create_one(admin: Admin, topic: NewTopic) -> None:
    try:
        await admin.create_topics([topic])
    except LogError as error:
        unbounded = without_bounds(topic)
        if error.code != ErrorCode.INVALID_CONFIG or unbounded is None:
            raise
        # Kafka before 3.6 does not know the bounds, and has none by default.
        await admin.create_topics([unbounded])


async def _counts(admin: Admin) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in await admin.list_topics()}


async def _await_topics(admin: Admin, names: Collection[str]) -> dict[str, int]:
    for _ in range(SEEN_ATTEMPTS_MAX):
        counts = await _counts(admin)
        if counts.keys() >= {*names}:
            return counts
        await asyncio.sleep(SEEN_RETRY_MS / 1000)
    absent = ", ".join(sorted({*names} - counts.keys()))
    raise UnknownTopicOrPartition(
        f"the cluster has not listed new topics within {SEEN_ATTEMPTS_MAX * SEEN_RETRY_MS} ms: "
        f"{absent}"
    )
