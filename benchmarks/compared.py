"""`make bench-compare`: the newest results beside the last ones of this machine in the history.

`benchmarks/history.jsonl` has a line for each release and machine, with the medians of its rows:
CPU seconds of a million records of client and broker, nanoseconds of a participant, readings. A row
is worse if its median lies more than `LOSS_MAX` beyond the one of before, and its best run does as
well; a row with a single run is worse by its only figure. Rates depend on what else the machine
does, so they are not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.hot_paths import HISTORY
from streamlog.metrics.build_info import release

RESULTS: Final = Path(__file__).parent / "results"
LOSS_MAX: Final = 0.03


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


def rows(figures: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the figures of all runs by row. Pure."""
    found: dict[str, list[float]] = defaultdict(list)
    for figure in figures:
        for name, value in _values(figure):
            found[name].append(value)
    return found


def _values(figure: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if "value" in figure:
        # More of what has a least is better: its inverse is kept, so that less is better.
        is_more_better = figure["least"] is not None
        yield figure["name"], 1 / figure["value"] if is_more_better else figure["value"]
    elif "participant" in figure:
        name = " ".join(filter(None, (figure["job"], figure["participant"], figure["variant"])))
        yield f"{name}, ns", figure["cpu_s"] * 1e9 / figure["records"]
    else:
        for side in ("client", "broker"):
            if cpu_s := figure[f"{side}_cpu_s"]:
                yield f"{figure['name']}, {side} s/M", cpu_s * 1e6 / figure["records"]


def worse(before: Mapping[str, float], now: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the rows that have become worse, with how much. Pure."""
    return [
        f"{name}: {before[name]:.4g} -> {median(runs):.4g} ({median(runs) / before[name] - 1:+.1%})"
        for name, runs in now.items()
        if name in before and min(runs) > before[name] * (1 + LOSS_MAX)
    ]


def last_figures(lines: Sequence[str], on: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the newest line with figures of this machine; None if there is none. Pure."""
    entries = [each for each in map(json.loads, lines) if each.get("on") == on]
    return entries[-1] if entries else None


def main() -> None:
    """Print every row beside the one of before.

    Raises:
        SystemExit: a row is worse, or there are no results.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compared", description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, help="files; the newest one")
    parser.add_argument("--record", action="store_true", help="add a line to the history")
    given = parser.parse_args()
    paths = given.results or sorted(RESULTS.glob("2*.json"))[-1:]
    if not paths:
        raise SystemExit(f"no results in {RESULTS}: `make bench` writes them")
    now = rows([each for path in paths for each in json.loads(path.read_text())["figures"]])
    on = machine()
    lines = HISTORY.read_text().splitlines() if HISTORY.exists() else []
    last = last_figures(lines, on)
    before: dict[str, float] = {} if last is None else last["figures"]
    for name, runs in now.items():
        change = f"{median(runs) / before[name] - 1:+7.1%}" if name in before else "    new"
        print(f"{median(runs):12.4g} {change}  {name}")
    if last is None:
        print(f"{HISTORY.name} has no figures of {on}: --record adds them")
    if given.record:
        date = datetime.now(UTC).date().isoformat()
        # What was not measured this time is still what it was.
        medians = before | {name: float(f"{median(runs):.4g}") for name, runs in now.items()}
        entry = {"date": date, "release": release(), "on": on, "figures": medians}
        HISTORY.write_text("\n".join([*lines, json.dumps(entry)]) + "\n")
    elif found := worse(before, now):
        raise SystemExit("\n".join(["worse than in the history:", *found]))


if __name__ == "__main__":
    main()
