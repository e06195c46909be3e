"""Counts the instructions of paths: a program that runs them, and valgrind, which counts.

One process runs each path for some batches that don't count, which make what is made once, and then
for some rounds. The least of these counts, so neither the start of Python nor what happens now and
then does. `getppid` marks the borders: valgrind writes down what it has counted whenever that is
called.

Compare a path only with itself: a vector instruction counts as one, and a wait for memory as none.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOSS_MAX: Final = 0.05
"""Two runs of one build differ by less than 1 %."""
WARM: Final = 2
"""Batches that don't count."""
ROUNDS: Final = 4
BATCHES: Final = 3
"""In a round."""


@dataclass(frozen=True, slots=True)
class CountedPath:
    """What is counted: a batch, and how many rows that has."""

    run: Callable[[], object]
    rows: int


def run_paths(paths: Mapping[str, CountedPath]) -> None:
    """Run each path in rounds; `count` calls the program that calls this."""
    print(json.dumps({name: path.rows for name, path in paths.items()}), flush=True)
    # Else collections walk all that is imported, and a path would pay for its neighbours.
    gc.collect()
    gc.freeze()
    for path in paths.values():
        for batches in (WARM, *[BATCHES] * ROUNDS):
            for _ in range(batches):
                path.run()
            os.getppid()


def count(program: Sequence[str], checkout: Path) -> dict[str, float]:
    """Return the instructions of each path of a program for one row.

    Args:
        program: the arguments of Python.
        checkout: whose modules it imports, and whose interpreter it takes, if there is one.

    Raises:
        SystemExit: the program failed; its output is the message.
    """
    python = checkout / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *("valgrind", "--tool=callgrind", "--dump-before=getppid"),
            f"--callgrind-out-file={directory}/counts",
            *(str(python if python.exists() else sys.executable), *program),
        ]
        environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"}
        run = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        if run.returncode or not run.stdout:
            raise SystemExit(f"{' '.join(command)} failed:\n{run.stdout}{run.stderr}")
        dumps = sorted(Path(directory).glob("counts.*"), key=lambda path: int(path.suffix[1:]))
        totals = [_total(path) for path in dumps]
    rows: dict[str, int] = json.loads(run.stdout.splitlines()[0])
    # Each path has a dump of its first batches, and one for each round; that at the end of Python
    # has another name.
    rounds = [min(totals[at + 1 : at + 1 + ROUNDS]) for at in range(0, len(totals), 1 + ROUNDS)]
    return {name: least / (BATCHES * rows[name]) for name, least in zip(rows, rounds, strict=True)}


def _total(dump: Path) -> int:
    found = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"valgrind has written no total into {dump}")
    return int(found[1])


def losses(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return the paths that take over `LOSS_MAX` more instructions, and those that are gone."""
    gone = [f"{name}: no longer counted" for name in before if name not in now]
    return gone + [
        f"{name}: {before[name]:.1f} -> {counted:.1f} ({counted / before[name] - 1:+.1%})"
        for name, counted in now.items()
        if name in before and counted > before[name] * (1 + LOSS_MAX)
    ]
