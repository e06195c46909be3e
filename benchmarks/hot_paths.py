"""What hot paths cost, in instructions of the processor for each row.

`python -m benchmarks.hot_paths` needs valgrind (`callgrind` says how it counts). Its paths are
those of single compiled modules (`record_paths`) and those of whole parts (`whole_paths`). Each
module that `setup.py` compiles lies on one of them, or is in `UNCOUNTED` with the reason.

`benchmarks/history.jsonl` has a line for each release and kind of build. A path that takes 5 % more
instructions than in the newest line for this kind fails; `--record` writes the line. Where the
history has no line for this kind, or for the change alone, `--beside` counts another checkout.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import record_paths
from benchmarks.callgrind import count, losses, run_paths
from benchmarks.compared import HISTORY, history, newest_line, record
from benchmarks.whole_paths import open_whole_paths
from streamlog.metrics.build_info import interpreted_modules, release

PROGRAM: Final = ("-m", "benchmarks.hot_paths", "--work")
UNCOUNTED: Final = {
    "streamlog.worker.process.arenas": "is called once, when a worker starts",
}
"""Compiled modules that no path calls, and why."""


async def work() -> None:
    """Run all paths; the counting program runs this."""
    async with open_whole_paths() as whole:
        run_paths({**record_paths.PATHS, **whole})


def builder() -> dict[str, str]:
    """Return what decides on the number of instructions, besides the sources."""
    compiler = shutil.which("cc") or "cc"
    asked = [compiler, "-dumpfullversion"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True)
    return {
        "machine": platform.machine(),
        "python": f"{platform.python_version()} ({platform.python_compiler()})",
        "cc": version.stdout.strip(),
    }


def main() -> None:
    """Print the instructions of each path beside those in the history, or in another checkout.

    Raises:
        SystemExit: a path has become dearer, or the counting program failed.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hot_paths", description=__doc__)
    parser.add_argument("--beside", type=Path, help="another checkout, with a venv and built")
    parser.add_argument("--record", action="store_true", help="write this release's line")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        asyncio.run(work())
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind counts the instructions: apt install valgrind")
    interpreted = interpreted_modules()
    if interpreted:
        raise SystemExit(f"{', '.join(interpreted)} not compiled: `make compile` does it")
    built, counted = builder(), count(PROGRAM, Path.cwd())
    before = _before(given.beside, built)
    for name, instructions in counted.items():
        change = f"{instructions / before[name] - 1:+7.1%}" if name in before else "    new"
        print(f"{instructions:10.1f} {change}  {name}")
    if given.record:
        rounded = {name: round(instructions, 1) for name, instructions in counted.items()}
        date = datetime.now(UTC).date().isoformat()
        entry = {"date": date, "release": release(), "built": built, "instructions": rounded}
        record(entry, "built")
    elif found := losses(before, counted):
        where = HISTORY.name if given.beside is None else str(given.beside)
        raise SystemExit("\n".join([f"dearer than in {where}:", *found]))


def _before(beside: Path | None, built: Mapping[str, str]) -> dict[str, float]:
    """Return what to compare with: another checkout, or the history; empty if that has no line."""
    if beside is not None:
        return count(PROGRAM, beside.resolve())
    last = newest_line(history(), "built", built)
    if last is None:
        print(f"{HISTORY.name} has no line for {built}: --record adds one")
        return {}
    instructions: dict[str, float] = last["instructions"]
    return instructions


if __name__ == "__main__":
    main()
