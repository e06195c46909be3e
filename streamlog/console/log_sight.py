"""LogSight: what the console knows of the log at one moment, and the lag of groups over time.

Rule of the module: history has a bound in groups and in points, and each point costs 24 bytes; the
lags of a thousand groups in the last hour take 9 MB.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from streamlog.adviser import Diagnosis, LogView
from streamlog.adviser.log_view import GroupView, TopicView

N = TypeVar("N", int, float)

POINT_MS: Final = 10_000
"""Looks within one such interval become one point."""
POINTS_MAX: Final = 360
GROUPS_MAX: Final = 1_000
"""Groups with a history; further ones have none."""


class LogSight(msgspec.Struct, frozen=True, kw_only=True):
    """The log as it was at the last look."""

    view: LogView | None = None
    """None: there was no look yet."""
    findings: tuple[Diagnosis, ...] = ()
    at_ms: int = 0
    """When the look ended, in milliseconds since 1970."""
    took_ms: int = 0
    error: str = ""
    """Why the last look failed; the view is of an earlier one."""
    cluster_id: str = ""


class LagSum(msgspec.Struct, frozen=True):
    """How far a group is behind, over all its partitions."""

    records: int | None
    """None: it is not known of any partition."""
    age_ms: int | None
    """The largest age of a next record; None if it is not known of any partition."""
    lost: int
    """Records that were deleted before the group read them."""
    consume_rate: float | None
    produce_rate: float | None


def lag_of(group: GroupView) -> LagSum:
    """Return a group's lag over all its partitions."""
    readings = group.readings.values()
    return LagSum(
        records=_sum(each.lag for each in readings),
        age_ms=max((each.lag_ms for each in readings if each.lag_ms is not None), default=None),
        lost=sum(each.lost or 0 for each in readings),
        consume_rate=_sum(each.consume_rate for each in readings),
        produce_rate=_sum(each.produce_rate for each in readings),
    )


class TopicFigures(msgspec.Struct, frozen=True):
    """A topic in figures."""

    records: int
    bytes: int
    rate: float | None
    """Records per second; None if it is not known yet."""
    replicas: int
    lacking: int
    """Partitions with fewer replicas in sync than they have."""
    leaderless: int


def figures_of(topic: TopicView) -> TopicFigures:
    """Return a topic in figures."""
    parts = topic.partitions
    return TopicFigures(
        records=sum(topic.records.values()),
        bytes=sum(topic.sizes.values()),
        rate=sum(topic.rates.values()) if topic.rates else None,
        replicas=max((len(each.replicas) for each in parts), default=0),
        lacking=sum(len(each.in_sync) < len(each.replicas) for each in parts),
        leaderless=sum(each.leader < 0 for each in parts),
    )


class LagSeries(msgspec.Struct, frozen=True):
    """A group's lag over time, in columns; None where it was not known."""

    times_s: list[float]
    """Seconds since 1970."""
    records: list[float | None]
    ages_ms: list[float | None]


class LagHistory:
    """The lags of groups in the last hour or longer: looks are rarer while no page is open."""

    def __init__(self) -> None:
        self._points: dict[str, array[float]] = {}

    def add(self, groups: Mapping[str, GroupView], at_ms: int) -> None:
        """Add a look; groups that are gone lose their history."""
        for name, points in self._noted(groups, at_ms):
            lag = lag_of(groups[name])
            points.extend((at_ms, _or_nan(lag.records), _or_nan(lag.age_ms)))

    def add_lags(self, lags: Mapping[str, tuple[int | None, int | None]], at_ms: int) -> None:
        """Add a look at lags in records and in milliseconds, by name; see `add`."""
        for name, points in self._noted(lags, at_ms):
            records, age_ms = lags[name]
            points.extend((at_ms, _or_nan(records), _or_nan(age_ms)))

    def _noted(self, names: Iterable[str], at_ms: int) -> Iterator[tuple[str, array[float]]]:
        """Yield the points of each name that has a history, with room for one more."""
        given = [*names]
        for gone in self._points.keys() - {*given}:
            # Names of groups come from clients: without this, new ones would add up for ever.
            del self._points[gone]
        for name in given:
            points = self._points.get(name)
            if points is None:
                # The first ones keep theirs: gaps would be worse than no history.
                if len(self._points) >= GROUPS_MAX:
                    continue
                points = self._points[name] = array("d")
            # The last look of an interval counts, so that the newest point is never old.
            if points and points[-3] // POINT_MS == at_ms // POINT_MS:
                del points[-3:]
            # From the front, three numbers for each point that is too old.
            del points[: max(0, len(points) - 3 * (POINTS_MAX - 1))]
            yield name, points

    def series(self, group: str) -> LagSeries:
        """Return the history of a group, oldest first; empty if it has none."""
        points = self._points.get(group, array("d"))
        return LagSeries(
            [at_ms / 1_000 for at_ms in points[0::3]],
            [*map(_or_none, points[1::3])],
            [*map(_or_none, points[2::3])],
        )


def _sum(values: Iterable[N | None]) -> N | None:
    known = [each for each in values if each is not None]
    # Not from 0: a group whose lag is not known is not a group without lag.
    return sum(known[1:], start=known[0]) if known else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
