"""Shares: what one Spark task reads."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from spark_bridge.offsets import OffsetRange, split
from spark_bridge.options import ReadOptions


class RangePartition(InputPartition):
    """One Spark task's share."""

    def __init__(self, offsets: OffsetRange) -> None:
        self.offsets = offsets


def parts(options: ReadOptions, ranges: Sequence[OffsetRange]) -> list[RangePartition]:
    """The shares of Spark's tasks: one per range, or per part of one."""
    found = split(
        ranges, min_partitions=options.min_partitions, records_max=options.records_per_partition_max
    )
    return [RangePartition(offsets) for offsets in found]
