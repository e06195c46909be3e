"""The topology: the worst hours so far, carriers, planes, the weather, and planes turned around.

With the two questions of `examples.flights.app` (delays per hour, names of airlines and airports)
these are seven. All read the same departures, in the order in which planes really left; event time
is the scheduled departure. Run it on its own with `streamlog -A examples.flights.questions.app
worker`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

from examples.flights.app import PARTITIONS, Departure
from streamlog import App, JoinWindow, Windowed, agg, hopping, session, sliding

GRACE = "24h"
"""Nobody left later than that."""
NIGHT = "8h"
"""Between two working days of a plane."""
TURNAROUND = "3h"
FOG_MILES = 3
"""Less can be seen in fog."""
WINDY_MPH = 20


@dataclass
class Delays:
    """Of departures that took place."""

    departures: int
    mean_delay: float


@dataclass
class Worst:
    """The three hours with the largest mean delay so far."""

    start: datetime
    departures: int
    mean_delay: float


@dataclass
class Day:
    """What a plane did between two nights, of what New York has seen of it."""

    departures: int
    minutes_late: int


@dataclass
class Weather:
    """What it was like at an airport in an hour."""

    rain_inches: float
    wind_mph: float
    visible_miles: float

    @property
    def sky(self) -> str:
        """In a word."""
        if self.visible_miles < FOG_MILES:
            return "fog"
        if self.rain_inches > 0:
            return "rain"
        return "wind" if self.wind_mph > WINDY_MPH else "fair"


@dataclass
class Arrival:
    """A plane that left New York has landed."""

    airport: str
    landed_at: datetime


@dataclass
class Turnaround:
    """A plane that landed somewhere and left New York again soon after."""

    landed_in: str
    landed_at: datetime
    left_from: str
    flight: int


app = App(
    "flight-questions",
    log=os.environ.get("FLIGHTS_LOG", "embedded:./.streamlog/questions/log"),
    state_dir=os.environ.get("FLIGHTS_STATE", "./.streamlog/questions/state"),
)

departures = app.topic(
    "departures",
    key=str,
    value=Departure,
    partitions=PARTITIONS,
    timestamp=lambda d: d.scheduled_at,
)
arrivals = app.topic(
    "arrivals", key=str, value=Arrival, partitions=PARTITIONS, timestamp=lambda a: a.landed_at
)
weather = app.topic("weather", key=str, value=Weather, partitions=PARTITIONS)

worst_hours = app.topic("worst-hours", key=str, value=Worst, partitions=PARTITIONS)
carrier_delays = app.topic("carrier-delays", key=Windowed[str], value=Delays, partitions=PARTITIONS)
plane_days = app.topic("plane-days", key=Windowed[str], value=Day, partitions=PARTITIONS)
sky_delays = app.topic("sky-delays", key=str, value=Delays, partitions=PARTITIONS)
turnarounds = app.topic("turnarounds", key=str, value=Turnaround, partitions=PARTITIONS)

flown = app.stream(departures).filter(lambda _, d: d.delay_min is not None, name="flown")


def minutes(departure: Departure) -> int:
    """How late it was; one that was flown has a delay."""
    return departure.delay_min or 0


def as_worst(window: Windowed[str], delays: Delays) -> tuple[str, Worst]:
    """A window's row, keyed by the airport."""
    return window.key, Worst(window.start, delays.departures, delays.mean_delay)


def worse(so_far: Worst, now: Worst) -> Worst:
    """Of equal ones the earlier."""
    return now if now.mean_delay > so_far.mean_delay else so_far


(
    flown.group_by(lambda _, d: d.origin, name="by-origin")
    .windowed(hopping("3h", "1h", grace=GRACE))
    .agg(Delays, name="delays-3h", departures=agg.count(), mean_delay=agg.mean(minutes))
    .changes()
    .map(as_worst, name="by-airport")
    .group_by_key()
    .reduce(worse, name="worst")
    .changes()
    .to(worst_hours)
)

(
    flown.group_by(lambda _, d: d.carrier, name="by-carrier")
    .windowed(sliding("2h", grace=GRACE))
    .agg(
        Delays,
        name="carrier-2h",
        departures=agg.count(),
        mean_delay=agg.mean(minutes),
    )
    .changes()
    .to(carrier_delays)
)

(
    flown.filter(lambda tail, _: tail != "", name="known")
    .group_by_key()
    .windowed(session(NIGHT, grace=GRACE))
    .agg(Day, name="plane-day", departures=agg.count(), minutes_late=agg.sum(minutes))
    .changes()
    .to(plane_days)
)


def with_sky(departure: Departure, hour: Weather) -> tuple[str, int]:
    """What the sky was like, and the delay."""
    return hour.sky, minutes(departure)


(
    flown.rekey(lambda _, d: d.origin, name="at-origin")
    .join(
        app.table(weather, name="weather", history="7d"), with_sky, as_of=True, name="with-weather"
    )
    .group_by(lambda _, found: found[0], name="by-sky")
    .agg(Delays, name="by-weather", departures=agg.count(), mean_delay=agg.mean(lambda f: f[1]))
    .changes()
    .to(sky_delays)
)


def turned(arrival: Arrival, departure: Departure) -> Turnaround:
    """Both ends of it."""
    return Turnaround(arrival.airport, arrival.landed_at, departure.origin, departure.flight)


(
    app.stream(arrivals)
    .join(
        flown,
        turned,
        within=JoinWindow.of(TURNAROUND, before="0s", grace=GRACE),
        name="turnarounds",
    )
    .to(turnarounds)
)

if __name__ == "__main__":
    app.main()
