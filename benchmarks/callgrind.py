"""Counts the instructions of paths: a program that runs them, and valgrind, which counts.

One process runs each path over few and over many batches; the difference counts, so what a batch
does not cause is left out: the start of Python, the making of the input, a first call. `getppid` marks the borders: valgrind writes down
what it has counted whenever that is called.

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
WARM, FEW, MANY = 1, 2, 12
"""Batches: the first one makes what is made once, such as the codec of a message."""


@dataclass(frozen=True, slots=True)
class CountedPath:
    """What is counted: a batch, and how many rows that has."""

    run: Callable[[], object]
    rows: int


def run_paths(paths: Mapping[str, CountedPath]) -> None:
    """Run each path over few and over many batches; `count` calls the program that calls this."""
    print(json.dumps({name: path.rows for name, path in paths.items()}), flush=True)
    # Else collections walk all that is imported, and a path would pay for its neighbours.
    gc.collect()
    gc.freeze()
    for path in paths.values():
        for batches in (WARM, FEW, MANY):
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
    # There are three dumps for each path; the one at the end of Python has another name.
    few, many = totals[1::3], totals[2::3]
    return {
        name: (most - least) / ((MANY - FEW) * rows[name])
        for name, least, most in zip(rows, few, many, strict=True)
    }


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
