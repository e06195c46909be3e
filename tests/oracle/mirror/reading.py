"""What librdkafka sees of a cluster: records, offsets, positions of groups, settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import admin as admin_side

_ADMIN: Any = admin_side  # It does not say which of its names are for others.

WITHIN_S: Final = 90.0
POLL_S: Final = 10.0
DYNAMIC_TOPIC_SETTING: Final = 1
"""The source of a setting that the topic has itself."""

QUIET: Final[Mapping[str, Any]] = {"log_level": 0}
"""librdkafka tells of each connection that a struck broker has closed."""

Record: TypeAlias = tuple[int, bytes | None, bytes | None, int, tuple[tuple[str, Any], ...]]
"""Offset, key, value, timestamp, headers."""


def read(
    address: str, topic: str, partition: int, *, isolation: str = "read_committed"
) -> list[Record]:
    """Return all records of a partition. Raises KafkaException, or TimeoutError."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            **QUIET,
            "group.id": "oracle",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: list[Record] = []
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while (message := consumer.poll(POLL_S)) is not None:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return found
            if error is not None:
                raise KafkaException(error)
            headers = tuple(message.headers() or ())
            stamp = message.timestamp()[1]
            found.append((message.offset(), message.key(), message.value(), stamp, headers))
    finally:
        consumer.close()
    raise TimeoutError(f"{topic}-{partition} at {address} comes to no end")


def _looking(address: str) -> Consumer:
    """Return a consumer whose watermarks are those of all records, those in open transactions too.

    By default librdkafka reads what is committed, and its high watermark is the last stable offset.
    """
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "oracle",
            "isolation.level": "read_uncommitted",
            **QUIET,
        }
    )


def bounds(address: str, topic: str, partition: int) -> tuple[int, int]:
    """Return where a partition starts and ends."""
    consumer = _looking(address)
    try:
        found: tuple[int, int] = consumer.get_watermark_offsets(
            TopicPartition(topic, partition), WITHIN_S
        )
        return found
    finally:
        consumer.close()


def ends(
    address: str, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return `bounds` of some partitions; without those that have no leader now."""
    consumer = _looking(address)
    found = {}
    try:
        for each in partitions:
            try:
                found[each] = consumer.get_watermark_offsets(TopicPartition(*each), 5)
            except KafkaException:
                continue
        return found
    finally:
        consumer.close()


def stable_ends(address: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return up to where readers of committed records can read."""
    admin = _ADMIN.AdminClient({"bootstrap.servers": address, **QUIET})
    asked = {TopicPartition(*each): _ADMIN.OffsetSpec.latest() for each in partitions}
    futures = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
    return {
        (where.topic, where.partition): done.result(WITHIN_S).offset
        for where, done in futures.items()
    }


def topics(address: str) -> dict[str, int]:
    """Return how many partitions each topic has, without internal ones."""
    admin = _ADMIN.AdminClient({"bootstrap.servers": address, **QUIET})
    found = admin.list_topics(timeout=WITHIN_S).topics
    return {name: len(each.partitions) for name, each in found.items() if not name.startswith("__")}


def groups(address: str) -> list[str]:
    """Return the ids of all groups."""
    admin = _ADMIN.AdminClient({"bootstrap.servers": address, **QUIET})
    return sorted(each.group_id for each in admin.list_consumer_groups().result(WITHIN_S).valid)


def positions(address: str, group: str) -> dict[tuple[str, int], int]:
    """Return what a group has committed."""
    admin = _ADMIN.AdminClient({"bootstrap.servers": address, **QUIET})
    asked = [ConsumerGroupTopicPartitions(group)]
    (done,) = admin.list_consumer_group_offsets(asked).values()
    return {
        (each.topic, each.partition): each.offset
        for each in done.result(WITHIN_S).topic_partitions
        if each.offset >= 0
    }


def settings(address: str, topic: str) -> dict[str, str]:
    """Return the settings that a topic has itself."""
    admin = _ADMIN.AdminClient({"bootstrap.servers": address, **QUIET})
    resource = _ADMIN.ConfigResource(_ADMIN.ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(WITHIN_S)
    return {
        name: each.value for name, each in found.items() if each.source == DYNAMIC_TOPIC_SETTING
    }
