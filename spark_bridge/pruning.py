"""Filters on partition, topic and offset cut the ranges that are read; Spark filters again.

Nothing is claimed: every filter goes back to Spark, which trusts a claim blindly. So a filter that
is not understood here costs time, not rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from spark_bridge.offsets import OffsetRange


def pruned(ranges: Iterable[OffsetRange], filters: Iterable[Filter]) -> list[OffsetRange]:
    """What is left of the ranges if every filter holds."""
    left = list(ranges)
    for each in filters:
        left = [part for whole in left if (part := _cut(whole, each)) is not None]
    return left


def _cut(whole: OffsetRange, wanted: Filter) -> OffsetRange | None:
    attribute = getattr(wanted, "attribute", None)
    if attribute in {("topic",), ("partition",)}:
        own = whole.topic if attribute == ("topic",) else whole.partition
        return whole if _holds(own, wanted) else None
    if attribute != ("offset",):
        return whole
    match wanted:
        case EqualTo(value=int(value)):
            first, end = value, value + 1
        case GreaterThan(value=int(value)):
            first, end = value + 1, whole.end
        case GreaterThanOrEqual(value=int(value)):
            first, end = value, whole.end
        case LessThan(value=int(value)):
            first, end = whole.start, value
        case LessThanOrEqual(value=int(value)):
            first, end = whole.start, value + 1
        case _:
            return whole
    cut = replace(whole, start=max(whole.start, first), end=min(whole.end, end))
    return cut if cut.start < cut.end else None


def _holds(own: str | int, wanted: Filter) -> bool:
    """Whether a filter lets records of a partition through, as far as that can be told."""
    match wanted, own:
        case EqualTo(value=value), _ if type(value) is type(own):
            return bool(own == value)
        case In(value=values), _ if all(type(each) is type(own) for each in values):
            return own in values
        case GreaterThan(value=int(value)), int(number):
            return number > value
        case GreaterThanOrEqual(value=int(value)), int(number):
            return number >= value
        case LessThan(value=int(value)), int(number):
            return number < value
    return True
