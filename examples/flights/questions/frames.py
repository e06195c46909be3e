"""The same questions asked of data frames: what the streams must have answered."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pandas as pd

from examples.flights import data
from examples.flights.questions.app import Arrival, Delays, Weather

HOUR_MS = 3_600_000
NIGHT_MS = 8 * HOUR_MS

Window = tuple[str, int, int]
"""Key, start and end in milliseconds."""


def departures(limit: int | None) -> pd.DataFrame:
    """Those that took place, with times in milliseconds, in the order of event time."""
    frame = data.flights() if limit is None else data.flights().head(limit)
    frame = frame[frame["dep_delay"].notna()].copy()
    frame["minutes"] = frame["dep_delay"].astype(int)
    frame["at_ms"] = _ms(frame["scheduled_at"])
    return frame.sort_values("at_ms", kind="stable")


def _ms(column: pd.Series[datetime]) -> pd.Series[int]:
    return (column - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)


def worst_hours(limit: int | None) -> dict[str, tuple[int, int, float]]:
    """Per airport the three hours with the largest mean delay: start, departures, mean."""
    found: dict[str, tuple[int, int, float]] = {}
    for origin, frame in departures(limit).groupby("origin"):
        windows: defaultdict[int, list[int]] = defaultdict(list)
        for at_ms, minutes in zip(frame["at_ms"], frame["minutes"], strict=True):
            hour = at_ms - at_ms % HOUR_MS
            for start in (hour - 2 * HOUR_MS, hour - HOUR_MS, hour):
                windows[start].append(minutes)
        means = {start: sum(all_) / len(all_) for start, all_ in windows.items()}
        worst = max(sorted(means), key=lambda start: means[start])
        found[str(origin)] = (worst, len(windows[worst]), means[worst])
    return found


def carrier_delays(limit: int | None) -> dict[Window, Delays]:
    """Per carrier all windows of two hours that end at a departure or begin right behind one."""
    size_ms = 2 * HOUR_MS
    found: dict[Window, Delays] = {}
    for carrier, frame in departures(limit).groupby("carrier"):
        times, minutes = frame["at_ms"].to_list(), frame["minutes"].to_list()
        sums = [0]
        for each in minutes:
            sums.append(sums[-1] + each)
        starts = {at_ms - size_ms for at_ms in times} | {at_ms + 1 for at_ms in times}
        for start in starts:
            first, last = bisect_left(times, start), bisect_right(times, start + size_ms)
            if first < last:
                mean = (sums[last] - sums[first]) / (last - first)
                found[str(carrier), start, start + size_ms] = Delays(last - first, mean)
    return found


def plane_days(limit: int | None) -> dict[Window, tuple[int, int]]:
    """Per plane its departures without eight hours between them, and their minutes of delay."""
    frame = departures(limit)
    frame = frame[frame["tailnum"] != ""].sort_values(["tailnum", "at_ms"], kind="stable")
    is_first = frame["tailnum"] != frame["tailnum"].shift()
    day = (is_first | (frame["at_ms"].diff() > NIGHT_MS)).cumsum()
    days = frame.groupby(day).agg(
        tail=("tailnum", "first"),
        start=("at_ms", "first"),
        end=("at_ms", "last"),
        departures=("at_ms", "size"),
        minutes=("minutes", "sum"),
    )
    rows = days.itertuples(index=False, name=None)
    return {(tail, start, end): (left, minutes) for tail, start, end, left, minutes in rows}


def sky_delays(limit: int | None) -> dict[str, tuple[int, float]]:
    """Per weather, as of each departure, how many there were and their mean delay."""
    hours = pd.DataFrame(
        ((at, origin, row.sky) for at, origin, row in weather()), columns=["at", "origin", "sky"]
    ).sort_values("at")
    joined = pd.merge_asof(
        departures(limit), hours, left_on="scheduled_at", right_on="at", by="origin"
    )
    groups = joined[joined["sky"].notna()].groupby("sky")["minutes"]
    return {str(sky): (len(each), float(each.mean())) for sky, each in groups}


def turnarounds(limit: int | None) -> set[tuple[str, int, int]]:
    """Planes that left New York within three hours of landing: tail, landed and left in ms."""
    left: dict[str, list[int]] = {
        str(tail): one["at_ms"].to_list() for tail, one in departures(limit).groupby("tailnum")
    }
    found: set[tuple[str, int, int]] = set()
    for tail, arrival in arrivals(limit):
        landed_ms = round(arrival.landed_at.timestamp() * 1_000)
        times = left.get(tail, [])
        soon = slice(bisect_left(times, landed_ms), bisect_right(times, landed_ms + 3 * HOUR_MS))
        found |= {(tail, landed_ms, left_ms) for left_ms in times[soon]}
    return found


def weather() -> Iterator[tuple[datetime, str, Weather]]:
    """Hours by airport, in the order of time."""
    frame = data.table("weather.csv")
    frame["at"] = pd.to_datetime(frame["time_hour"], utc=True)
    frame = frame.sort_values("at", kind="stable").fillna({"wind_speed": 0.0, "precip": 0.0})
    for row in frame.itertuples():
        hour = Weather(float(row.precip), float(row.wind_speed), float(row.visib))
        yield row.at.to_pydatetime(), str(row.origin), hour


def arrivals(limit: int | None) -> Iterator[tuple[str, Arrival]]:
    """Tail and landing of planes that are known, in the order in which they left."""
    frame = data.flights() if limit is None else data.flights().head(limit)
    frame = frame[frame["air_time"].notna() & (frame["tailnum"] != "")]
    landed = frame["left_at"] + pd.to_timedelta(frame["air_time"], unit="min")
    for tail, dest, at in zip(frame["tailnum"], frame["dest"], landed, strict=True):
        yield str(tail), Arrival(str(dest), at.to_pydatetime())


@dataclass
class Expected:
    """All answers."""

    worst_hours: dict[str, tuple[int, int, float]]
    carrier_delays: dict[Window, Delays]
    plane_days: dict[Window, tuple[int, int]]
    sky_delays: dict[str, tuple[int, float]]
    turnarounds: set[tuple[str, int, int]]

    @classmethod
    def of(cls, limit: int | None) -> Expected:
        """Of the first flights, or of all."""
        return cls(
            worst_hours(limit),
            carrier_delays(limit),
            plane_days(limit),
            sky_delays(limit),
            turnarounds(limit),
        )
