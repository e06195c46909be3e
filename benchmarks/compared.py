"""`make bench-compare`: the newest results beside the last ones of this machine in the history.

`benchmarks/history.jsonl` has a line for each release and machine, with each row's median, least,
most, and unit: CPU microseconds a record of client and broker, nanoseconds of a participant,
latencies, readings. A row is worse if even its best run lies more than `LOSS_MAX` beyond the median
of before. Rates are kept, but not held against those of before: they depend on what else the
machine does.
`make bench-page` writes the tables of docs/benchmarks.md from the newest line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from streamlog.metrics.build_info import release

HISTORY: Final = Path(__file__).parent / "history.jsonl"
RESULTS: Final = Path(__file__).parent / "results"
LOSS_MAX: Final = 0.03
LATENCIES: Final = {"p50", "p99"}
Kept: TypeAlias = list[Any]
"""Median, least, most, number of runs, and unit of a row."""


def machine() -> dict[str, str]:
    """Return what figures depend on."""
    path = Path("/proc/cpuinfo")
    said = path.read_text() if path.exists() else ""
    model = re.search(r"model name\s*: (.*)", said)
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }


@dataclass(frozen=True, slots=True)
class Measured:
    """What the runs of one row gave."""

    unit: str
    values: list[float] = field(default_factory=list)
    is_more_better: bool = False
    is_rate: bool = False

    @property
    def kept(self) -> Kept:
        """What a line of the history says about it."""
        median_, *ends = (
            float(f"{each:.4g}")
            for each in (median(self.values), min(self.values), max(self.values))
        )
        return [median_, *ends, len(self.values), self.unit]

    def loss(self, before: float) -> float:
        """Return by how much the best run is worse than that: 0.03 is 3 %."""
        if self.is_more_better:
            return before / max(self.values) - 1
        return min(self.values) / before - 1


def rows(figures: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    """Return the figures of all runs by row. Pure."""
    found: dict[str, Measured] = {}
    for figure in figures:
        for name, value, row in _values(figure):
            found.setdefault(name, row).values.append(value)
    return found


def _values(figure: Mapping[str, Any]) -> Iterator[tuple[str, float, Measured]]:
    name = figure.get("name", "")
    if "value" in figure:
        is_more_better = figure["least"] is not None
        yield name, figure["value"], Measured(figure["unit"], is_more_better=is_more_better)
    elif "participant" in figure:
        name = " ".join(filter(None, (figure["job"], figure["participant"], figure["variant"])))
        yield name, figure["cpu_s"] * 1e9 / figure["records"], Measured("ns")
    else:
        for side in ("client", "broker"):
            if cpu_s := figure[f"{side}_cpu_s"]:
                yield f"{name}, {side}", cpu_s * 1e6 / figure["records"], Measured("us")
        for share in LATENCIES & {*figure["latency_ms"]}:
            yield f"{name}, {share}", figure["latency_ms"][share], Measured("ms")
        rate = figure["records"] / figure["wall_s"]
        yield f"{name}, rate", rate, Measured("records/s", is_more_better=True, is_rate=True)


def worse(before: Mapping[str, Kept], now: Mapping[str, Measured]) -> list[str]:
    """Return the rows that have become worse, with how much. Pure."""
    return [
        f"{name}: {before[name][0]:.4g} -> {median(row.values):.4g} {row.unit}"
        for name, row in now.items()
        if name in before and not row.is_rate and row.loss(before[name][0]) > LOSS_MAX
    ]


def newest_line(lines: Sequence[str], key: str, value: object) -> dict[str, Any] | None:
    """Return the newest line of the history whose `key` is this; None if there is none. Pure."""
    entries = [each for each in map(json.loads, lines) if each.get(key) == value]
    return entries[-1] if entries else None


def last_figures() -> Mapping[str, Kept]:
    """Return the last figures of this machine, by row; empty if there are none."""
    last = newest_line(history(), "on", machine())
    return {} if last is None else last["figures"]


def history() -> list[str]:
    """Return the lines of the history, the oldest first."""
    return HISTORY.read_text().splitlines() if HISTORY.exists() else []


def record(entry: Mapping[str, Any], key: str) -> None:
    """Write a line of the history, instead of the last one with this `key`, if of this release."""
    lines = history()
    last = newest_line(lines, key, entry[key])
    if last is not None and last["release"] == entry["release"]:
        lines.remove(json.dumps(last))
    HISTORY.write_text("\n".join([*lines, json.dumps(entry)]) + "\n")


def main() -> None:
    """Print every row beside the one of before.

    Raises:
        SystemExit: a row is worse, or there are no results.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compared", description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, help="files; the newest one")
    parser.add_argument(
        "--record", action="store_true", help="write this release's line of the history"
    )
    given = parser.parse_args()
    paths = given.results or sorted(RESULTS.glob("2*.json"))[-1:]
    if not paths:
        raise SystemExit(f"no results in {RESULTS}: `make bench` writes them")
    now = rows([each for path in paths for each in json.loads(path.read_text())["figures"]])
    on = machine()
    last = newest_line(history(), "on", on)
    before: dict[str, Kept] = {} if last is None else last["figures"]
    for name, row in now.items():
        middle = median(row.values)
        change = f"{middle / before[name][0] - 1:+7.1%}" if name in before else "    new"
        print(f"{middle:12.4g} {row.unit:12} {change}  {name}")
    if last is None:
        print(f"{HISTORY.name} has no figures of {on}: --record adds them")
    if given.record:
        date = datetime.now(UTC).date().isoformat()
        # What was not measured this time is still what it was.
        figures = before | {name: row.kept for name, row in now.items()}
        record({"date": date, "release": release(), "on": on, "figures": figures}, "on")
    elif found := worse(before, now):
        raise SystemExit("\n".join(["worse than in the history:", *found]))


if __name__ == "__main__":
    main()
