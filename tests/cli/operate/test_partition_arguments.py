"""Partitions as people type them."""

from __future__ import annotations

import pytest

from streamlog.cli.operate.partition_arguments import parse_partition, partition_name
from streamlog.errors import UsageError
from streamlog.record import TopicPartition


@pytest.mark.parametrize("partition", [TopicPartition("a-b", 3), TopicPartition("a-7", 12)])
def test_a_name_is_parsed_to_its_partition(partition: TopicPartition) -> None:
    assert parse_partition(partition_name(partition)) == partition


@pytest.mark.parametrize("text", ["orders", "-1", "orders-x", "orders-"])
def test_a_malformed_partition_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="TOPIC-PARTITION"):
        parse_partition(text)
