"""A history of the first flights of the year: the rows of the data frame, without a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(directory: Path, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "examples.flights.history", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_history_of_the_flights_equals_the_data_frame(tmp_path: Path) -> None:
    output = run(tmp_path, "--limit", "5000")
    assert "rows equal the data frame's" in output
    assert "equality S" in output


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough",
    reason="starts a JVM: needs STREAMLOG_PROFILE=thorough",
)
def test_a_history_in_spark_equals_the_data_frame(tmp_path: Path) -> None:
    assert "rows equal the data frame's" in run(tmp_path, "--engine", "spark", "--limit", "5000")
