"""The report of docs/serdes.md."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from streamlog import App, Windowed, tumbling

app = App("report")
hourly = app.topic("hourly", key=Windowed[str], value=int, windows=tumbling("1h"))
lines = app.topic("lines", key=str, value=str)


def report_line(key: Windowed[str], count: int) -> tuple[str, str]:
    return key.key, f"{count} from {key.start:%H:%M} to {key.end:%H:%M}"


app.stream(hourly).map(report_line).to(lines)


def main() -> None:
    nine = datetime(2025, 1, 1, 9, tzinfo=UTC)
    with app.test() as t:
        t.input(hourly).send(4, key=Windowed("till", nine, nine + timedelta(hours=1)))
        assert t.output(lines).values == ["4 from 09:00 to 10:00"]
