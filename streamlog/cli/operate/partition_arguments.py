"""Partitions as people type them: TOPIC-PARTITION, such as `orders-3`."""

from __future__ import annotations

from streamlog.errors import UsageError
from streamlog.record import TopicPartition


def parse_partition(text: str) -> TopicPartition:
    """Return the partition that a text names.

    Raises:
        UsageError: the text is not TOPIC-PARTITION.
    """
    # From the right: a topic's name may have a hyphen, or end with a number.
    topic, _, number = text.rpartition("-")
    if not topic or not number.isdecimal():
        raise UsageError(f"{text!r} is not a partition: write TOPIC-PARTITION, such as orders-3")
    return TopicPartition(topic, int(number))


def partition_name(partition: TopicPartition) -> str:
    """Return a partition as `parse_partition` takes it."""
    return f"{partition.topic}-{partition.partition}"
