"""What goes into the log, in the order in which it happened."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from heapq import merge
from itertools import takewhile
from typing import Any, NamedTuple

from examples.flights import data
from examples.flights.app import PARTITIONS
from examples.flights.questions import frames
from examples.flights.questions.app import Arrival, arrivals, departures, weather
from streamlog import Topic


class Event(NamedTuple):
    """A record to be, and when it happened."""

    happened_at: datetime
    topic: Topic[Any, Any]
    key: str
    value: Any
    at: datetime
    """Event time."""
    partition: int | None = None


def events(limit: int | None) -> Iterator[Event]:
    """Planes leave and land, and the weather changes; at the end the clocks of all go on."""
    flown = (_left(each) for each in zip(data.events(limit), data.left_at(limit), strict=True))
    landed = sorted(
        (Event(a.landed_at, arrivals, tail, a, a.landed_at) for tail, a in frames.arrivals(limit)),
        key=_time,
    )
    hours = (Event(at, weather, origin, row, at) for at, origin, row in frames.weather())
    last = max(data.left_at(limit))
    yield from merge(flown, landed, takewhile(lambda hour: hour.at <= last, hours), key=_time)
    over = data.END_OF_FEED
    for partition in range(PARTITIONS):
        # With a key, as a record that every question counts: one that is left out moves no time.
        yield Event(over, departures, "end of feed", data.end_of_feed(), over, partition)
        yield Event(over, arrivals, "", Arrival("", over), over, partition)


def _left(each: tuple[Any, datetime]) -> Event:
    departure, left_at = each
    return Event(left_at, departures, departure.tail, departure, departure.scheduled_at)


def _time(event: Event) -> datetime:
    return event.happened_at
