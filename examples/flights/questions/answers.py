"""What came out of the streams, in the shape of the data frames, and where the two differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from examples.flights.questions.app import (
    carrier_delays,
    plane_days,
    sky_delays,
    turnarounds,
    worst_hours,
)
from examples.flights.questions.frames import Expected, Window
from streamlog import Record, Topic, Windowed

SHOWN = 3
"""Differences that are shown of each question."""


def ms(at: datetime) -> int:
    """Milliseconds since 1970."""
    return round(at.timestamp() * 1_000)


def window(key: Windowed[str]) -> Window:
    """A window as the frames have it."""
    return key.key, ms(key.start), ms(key.end)


@dataclass
class Answers:
    """The rows of all questions so far."""

    worst_hours: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    carrier_delays: dict[Window, Any] = field(default_factory=dict)
    plane_days: dict[Window, tuple[int, int]] = field(default_factory=dict)
    sky_delays: dict[str, tuple[int, float]] = field(default_factory=dict)
    turnarounds: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """How often each has come: once."""

    def add(self, topic: str, record: Record[Any, Any]) -> None:
        """Take in a row."""
        _TAKERS[topic](self, record)

    def are_fewer(self, expected: Expected) -> bool:
        """Whether rows are missing for sure: told by their number alone."""
        return any(len(found) < len(wanted) for wanted, found in self._pairs(expected).values())

    def differences(self, expected: Expected) -> list[str]:
        """What is wrong with them, a few lines for each question; none if all are right."""
        return [
            f"{question}: {line}"
            for question, (wanted, found) in self._pairs(expected).items()
            for line in _different(wanted, found)
        ]

    def _pairs(self, expected: Expected) -> dict[str, tuple[Mapping[Any, Any], Mapping[Any, Any]]]:
        return {
            "worst hours": (expected.worst_hours, self.worst_hours),
            "carriers": (expected.carrier_delays, self.carrier_delays),
            "planes": (expected.plane_days, self.plane_days),
            "weather": (expected.sky_delays, self.sky_delays),
            "turned around": (dict.fromkeys(expected.turnarounds, 1), self.turnarounds),
        }


def _different(wanted: Mapping[Any, Any], found: Mapping[Any, Any]) -> list[str]:
    keys = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
    lines = [f"{key}: {wanted.get(key)} wanted, {found.get(key)} found" for key in keys[:SHOWN]]
    return [*lines, f"{len(keys)} of {len(wanted)} differ"] if keys else []


def _worst(answers: Answers, record: Record[Any, Any]) -> None:
    row = record.value
    answers.worst_hours[record.key] = (ms(row.start), row.departures, row.mean_delay)


def _carrier(answers: Answers, record: Record[Any, Any]) -> None:
    answers.carrier_delays[window(record.key)] = record.value


def _plane(answers: Answers, record: Record[Any, Any]) -> None:
    row = record.value
    answers.plane_days[window(record.key)] = (row.departures, row.minutes_late)


def _sky(answers: Answers, record: Record[Any, Any]) -> None:
    answers.sky_delays[record.key] = (record.value.departures, record.value.mean_delay)


def _turned(answers: Answers, record: Record[Any, Any]) -> None:
    # Its time is the later one of the two: the departure.
    found = (record.key, ms(record.value.landed_at), ms(record.timestamp))
    answers.turnarounds[found] = answers.turnarounds.get(found, 0) + 1


_TAKERS: dict[str, Callable[[Answers, Record[Any, Any]], None]] = {
    worst_hours.name: _worst,
    carrier_delays.name: _carrier,
    plane_days.name: _plane,
    sky_delays.name: _sky,
    turnarounds.name: _turned,
}
TOPICS: tuple[Topic[Any, Any], ...] = (
    worst_hours,
    carrier_delays,
    plane_days,
    sky_delays,
    turnarounds,
)
"""Where the answers are."""
