"""The topology: departures in, one final row per origin airport and hour out.

Event time is the scheduled departure. A flight enters the log when it really left, so a
flight that left 21 hours late arrives 21 hours out of order: `grace` is what makes the
rows right. Run a worker of its own with `streamlog -A examples.flights.app worker`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

from streamlog import App, Emit, Late, Windowed, agg, tumbling

PARTITIONS = 4


@dataclass
class Departure:
    """One flight on the day it was to leave; `delay_min` is None if it was cancelled."""

    carrier: str
    flight: int
    tail: str
    origin: str
    dest: str
    scheduled_at: datetime
    delay_min: int | None


@dataclass
class Name:
    """What a code of an airline or an airport stands for."""

    name: str


@dataclass
class Flown:
    """A departure that took place, with the airline's name."""

    origin: str
    airline: str
    delay_min: int
    scheduled_at: datetime


@dataclass
class Delays:
    """What one hour at one airport comes to; `worst` is (delay in minutes, airline)."""

    departures: int
    mean_delay: float
    worst: tuple[int, str]


@dataclass
class HourlyDelays:
    """The same with the hour in the value, so that it can be keyed by airport alone."""

    hour: datetime
    departures: int
    mean_delay: float
    worst_delay: int
    worst_airline: str
    airport: str = ""


app = App(
    "flights",
    log=os.environ.get("FLIGHTS_LOG", "embedded:./.streamlog/flights/log"),
    state_dir=os.environ.get("FLIGHTS_STATE", "./.streamlog/flights/state"),
)

departures = app.topic(
    "departures",
    key=str,
    value=Departure,
    partitions=PARTITIONS,
    timestamp=lambda d: d.scheduled_at,
)
airlines = app.topic("airlines", key=str, value=Name, partitions=PARTITIONS, compact=True)
airports = app.topic("airports", key=str, value=Name, partitions=PARTITIONS, compact=True)
too_late = app.topic("departures-late", key=str, value=Late[Flown], partitions=PARTITIONS)
hourly_delays = app.topic("hourly-delays", key=str, value=HourlyDelays, partitions=PARTITIONS)

airline_names = app.table(airlines, name="airlines")
airport_names = app.table(airports, name="airports")


def with_airline(departure: Departure, airline: Name | None) -> Flown:
    """The flight as it is reported; an unknown carrier keeps its code."""
    return Flown(
        origin=departure.origin,
        airline=airline.name if airline else departure.carrier,
        delay_min=departure.delay_min or 0,
        scheduled_at=departure.scheduled_at,
    )


def as_hour(window: Windowed[str], delays: Delays) -> tuple[str, HourlyDelays]:
    """One final row, keyed by the airport."""
    worst_delay, worst_airline = delays.worst
    row = HourlyDelays(
        hour=window.start,
        departures=delays.departures,
        mean_delay=delays.mean_delay,
        worst_delay=worst_delay,
        worst_airline=worst_airline,
    )
    return window.key, row


def with_airport(row: HourlyDelays, airport: Name | None) -> HourlyDelays:
    """The row with the airport's name."""
    row.airport = airport.name if airport else ""
    return row


per_hour = (
    app.stream(departures)
    .filter(lambda _, d: d.delay_min is not None)
    .rekey(lambda _, d: d.carrier, name="by-carrier")
    .left_join(airline_names, with_airline, name="with-airline")
    .group_by(lambda _, d: d.origin, name="by-origin")
    .windowed(tumbling("1h", grace="24h"))
    .late(too_late)
    .emit(Emit.CLOSE)
    .agg(
        Delays,
        name="delays-1h",
        departures=agg.count(),
        mean_delay=agg.mean(lambda d: d.delay_min),
        worst=agg.max(lambda d: (d.delay_min, d.airline)),
    )
)
(
    per_hour.changes()
    .map(as_hour, name="by-airport")
    .left_join(airport_names, with_airport, name="with-airport")
    .to(hourly_delays)
)

if __name__ == "__main__":
    app.main()
