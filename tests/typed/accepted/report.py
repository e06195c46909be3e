"""What docs/serdes.md shows."""

from __future__ import annotations

from streamlog import App, Windowed, tumbling

app = App("report")
hourly = app.topic("hourly", key=Windowed[str], value=int, windows=tumbling("1h"))
lines = app.topic("lines", key=str, value=str)


def told(key: Windowed[str], count: int) -> tuple[str, str]:
    return key.key, f"{count} from {key.start:%H:%M} to {key.end:%H:%M}"


app.stream(hourly).map(told).to(lines)
