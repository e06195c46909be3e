"""What the person at the terminal sees: a bar and a table while it works, then a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # No display is needed to write a picture.

import matplotlib.pyplot as plt
import pandas as pd
import plotext
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights.app import HourlyDelays

COLOURS = {"EWR": "tab:orange", "JFK": "tab:blue", "LGA": "tab:green"}
LATEST_ROWS = 6
LOOK: dict[str, Any] = {"title_justify": "left", "box": SIMPLE_HEAD, "pad_edge": False}


def progress_bars() -> Progress:
    """Bars for what went in and what came out."""
    return Progress(
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )


def running_table(rows: dict[tuple[str, str], HourlyDelays]) -> Table:
    """The newest final rows and, per airport, the figures of all rows so far."""
    table = Table(title="Final rows as they leave the stream (delays in minutes)", **LOOK)
    table.add_column("airport", no_wrap=True)
    table.add_column("hour (UTC)", min_width=11)
    for column in ("flights", "mean", "worst"):
        table.add_column(column, justify="right", min_width=7)
    table.add_column("worst airline", no_wrap=True)
    newest = sorted(rows.items(), key=lambda item: (item[0][1], item[0][0]))[-LATEST_ROWS:]
    for (origin, hour), row in newest:
        table.add_row(
            row.airport or origin,
            hour[5:16].replace("T", " "),
            str(row.departures),
            f"{row.mean_delay:.1f}",
            str(row.worst_delay),
            row.worst_airline,
        )
    return table


def live_view(bars: Progress, rows: dict[tuple[str, str], HourlyDelays]) -> Group:
    """Bars above the running table."""
    return Group(bars, running_table(rows))


def summary(console: Console, rows: dict[tuple[str, str], HourlyDelays]) -> None:
    """One line per airport: departures, mean and worst delay of the year."""
    table = Table(title="New York's departures in 2013", **LOOK)
    table.add_column("airport", no_wrap=True)
    for column in ("hours", "flights"):
        table.add_column(column, justify="right", min_width=7)
    table.add_column("mean", justify="right", min_width=7)
    table.add_column("worst", justify="right", min_width=7)
    table.add_column("with", no_wrap=True)
    for origin in sorted({origin for origin, _ in rows}):
        hours = {hour: row for (o, hour), row in rows.items() if o == origin}
        worst = max(hours.values(), key=lambda row: row.worst_delay)
        flown = sum(row.departures for row in hours.values())
        total = sum(row.departures * row.mean_delay for row in hours.values())
        table.add_row(
            worst.airport or origin,
            f"{len(hours):,}",
            f"{flown:,}",
            f"{total / flown:.1f} min",
            f"{worst.worst_delay // 60}:{worst.worst_delay % 60:02} h",
            worst.worst_airline,
        )
    console.print(table)


def draw_terminal(by_hour: pd.DataFrame) -> None:
    """Delay by hour of day per airport, in characters."""
    plotext.clear_figure()
    plotext.theme("clear")
    for airport in by_hour.columns:
        series = by_hour[airport].dropna()
        plotext.plot(list(series.index), list(series), label=airport, marker="braille")
    plotext.title("mean delay in minutes by hour of day (New York time)")
    plotext.xticks(list(range(5, 24, 2)))
    plotext.plotsize(80, 18)
    plotext.show()


def draw_png(by_hour: pd.DataFrame, path: Path) -> None:
    """The same as a picture."""
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for airport in by_hour.columns:
        series = by_hour[airport].dropna()
        axes.plot(series.index, series, marker="o", label=airport, color=COLOURS.get(airport))
    axes.set_title("New York, 2013: the later the hour, the longer the wait")
    axes.set_xlabel("hour of scheduled departure (New York time)")
    axes.set_ylabel("mean departure delay, minutes")
    axes.set_xticks(range(5, 24))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
