"""The same question asked of a data frame: what the stream must have answered."""

from __future__ import annotations

import pandas as pd

from examples.flights import data
from examples.flights.app import HourlyDelays

Row = tuple[str, str, int, float, int, str, str]
"""origin, hour (ISO), departures, mean delay, worst delay, its airline, airport's name."""


def expected_rows(limit: int | None = None) -> list[Row]:
    """One row per origin and hour with a departure, from the data frame."""
    frame = data.flights() if limit is None else data.flights().head(limit)
    frame = frame[frame["dep_delay"].notna()].copy()
    frame["airline"] = frame["carrier"].map({code: a.name for code, a in data.airlines()})
    frame["hour_at"] = frame["scheduled_at"].dt.floor("h")
    frame["minutes"] = frame["dep_delay"].astype(int)
    airports = {code: airport.name for code, airport in data.airports()}
    # The worst delay; among equals the airline that comes last in the alphabet, as max() does.
    ordered = frame.sort_values(["minutes", "airline"])
    groups = ordered.groupby(["origin", "hour_at"], sort=True)
    table = groups.agg(
        departures=("minutes", "size"),
        mean_delay=("minutes", "mean"),
        worst_delay=("minutes", "last"),
        worst_airline=("airline", "last"),
    ).reset_index()
    return [
        (
            row.origin,
            row.hour_at.isoformat(),
            int(row.departures),
            float(row.mean_delay),
            int(row.worst_delay),
            row.worst_airline,
            airports.get(row.origin, ""),
        )
        for row in table.itertuples()
    ]


def stream_rows(rows: dict[tuple[str, str], HourlyDelays]) -> list[Row]:
    """What came out of the stream, in the same shape and order."""
    return sorted(
        (
            origin,
            hour,
            row.departures,
            row.mean_delay,
            row.worst_delay,
            row.worst_airline,
            row.airport,
        )
        for (origin, hour), row in rows.items()
    )


def differences(expected: list[Row], actual: list[Row], *, show: int = 5) -> list[str]:
    """Empty if the rows are equal one by one; else the first few that are not."""
    wanted, found = set(expected), set(actual)
    lines = [f"missing: {row}" for row in sorted(wanted - found)[:show]]
    lines += [f"unexpected: {row}" for row in sorted(found - wanted)[:show]]
    if not lines and len(expected) != len(actual):
        lines.append(f"{len(expected)} rows expected, {len(actual)} found")
    return lines


def by_hour_of_day(rows: dict[tuple[str, str], HourlyDelays]) -> pd.DataFrame:
    """Mean delay in minutes, one row per local hour of day, one column per airport."""
    frame = pd.DataFrame(
        {
            "airport": origin,
            "hour": pd.Timestamp(hour).tz_convert("America/New_York").hour,
            "departures": row.departures,
            "total": row.mean_delay * row.departures,
        }
        for (origin, hour), row in rows.items()
    )
    sums = frame.groupby(["hour", "airport"])[["departures", "total"]].sum()
    sums["mean"] = sums["total"] / sums["departures"]
    return sums.pivot_table(index="hour", columns="airport", values="mean")
