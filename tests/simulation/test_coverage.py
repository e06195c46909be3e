"""Simulated lives run the shipped state machines, and nearly all of their lines."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from simulation.coverage import MACHINES, names

SIMULATION = Path(__file__).parents[2] / "simulation"
LEVELS = "import simulation.levels, sys; print(*sorted(sys.modules))"


def classes(path: Path) -> set[str]:
    parsed = ast.parse(path.read_text())
    return {each.name for each in parsed.body if isinstance(each, ast.ClassDef)}


def test_lives_run_the_shipped_machines() -> None:
    """By the import graph: all machines are imported, and no simulated class replaces one."""
    run = subprocess.run([sys.executable, "-c", LEVELS], capture_output=True, check=True, text=True)
    assert set(names()) <= set(run.stdout.split())
    shipped = {
        name
        for module in names()
        for name in classes(SIMULATION.parent / f"{module.replace('.', '/')}.py")
        if not name.startswith("_")
    }
    # The outcomes of clients and the actions of brokers have equal names, and lie in one module.
    paths = [path for path in SIMULATION.rglob("*.py") if path.name != "history.py"]
    own = {name for path in paths for name in classes(path)}
    assert own & shipped == set()


def test_every_package_with_machines_is_measured() -> None:
    assert {package.split(".")[2] for package in MACHINES} == {
        "mirroring",
        "quorum",
        "replication",
        "coordinator",
    }


def test_too_little_coverage_is_reported() -> None:
    command = [sys.executable, "-m", "simulation.coverage", "--seeds", "0"]
    run = subprocess.run(command, capture_output=True, check=False, text=True)
    assert run.returncode == 1
    assert "all state machines" in run.stdout
