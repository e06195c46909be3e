"""What an installation from source costs: `pip install .`, which compiles the hot modules.

In a fresh clone of the commit that is checked out, and a fresh environment, with pip's cache as it
is. The CPU time is that of pip and of all that it starts: compilers, and those of other packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter
from typing import Final

from benchmarks.harness import Reading

ROOT: Final = Path(__file__).parent.parent
NAME: Final = "install from source"
CPU_BAR_S: Final = 45
TELL_COMPILED: Final = (
    "from importlib.util import find_spec; from streamlog.metrics.build_info import HOT_MODULES; "
    "print([each for each in HOT_MODULES if find_spec(each).origin.endswith('.py')])"
)


async def figures(directory: Path, _: int) -> AsyncIterator[Reading]:
    """CPU and wall time.

    Raises:
        RuntimeError: modules were not compiled; they would have cost nothing.
    """
    clone, python = directory / "clone", directory / "venv" / "bin" / "python"
    _run(directory, "git", "clone", "--quiet", str(ROOT), str(clone))
    _run(directory, sys.executable, "-m", "venv", str(directory / "venv"))
    before_s, began_s = _children_cpu_s(), perf_counter()
    _run(clone, str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", ".")
    took_s, cpu_s = perf_counter() - began_s, _children_cpu_s() - before_s
    interpreted = _run(directory, str(python), "-c", TELL_COMPILED).strip()
    if interpreted != "[]":
        raise RuntimeError(f"not compiled: {interpreted}")
    yield Reading(f"{NAME}: CPU", cpu_s, "s", bar=CPU_BAR_S)
    yield Reading(NAME, took_s, "s")


def _run(directory: Path, *command: str) -> str:
    # With this checkout on its path, Python would find the modules here.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=directory, env=own, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _children_cpu_s() -> float:
    """CPU seconds of all children that have ended, and of theirs."""
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
