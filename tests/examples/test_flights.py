"""The flights example on the first flights of the year, also while its worker is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.flights import check, data

ROOT = Path(__file__).parent.parent.parent
FLIGHTS = 30_000


def run(directory: Path, *arguments: str, flights: int = FLIGHTS) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--limit", str(flights), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def rows() -> list[check.Row]:
    return check.expected_rows(FLIGHTS)


def test_rows_equal_the_data_frames(tmp_path: Path, rows: list[check.Row]) -> None:
    output = run(tmp_path)
    assert f"all {len(rows):,} rows equal the data frame's" in output
    assert (tmp_path / ".streamlog/flights/delays-by-hour.png").stat().st_size > 10_000


def test_rows_equal_the_data_frames_despite_three_kills(
    tmp_path: Path, rows: list[check.Row]
) -> None:
    output = run(tmp_path, "--chaos")
    assert "the worker was killed 3 times" in output
    assert f"all {len(rows):,} rows equal the data frame's" in output


def test_rows_equal_the_data_frames_with_three_killed_workers(tmp_path: Path) -> None:
    rows = check.expected_rows(FLIGHTS // 3)
    output = run(tmp_path, "--workers", "3", "--chaos", flights=FLIGHTS // 3)
    assert "workers were killed 3 times" in output
    assert f"all {len(rows):,} rows equal the data frame's" in output


def test_events_come_in_order_of_departure() -> None:
    events = list(data.events(2_000))
    scheduled = [event.scheduled_at for event in events]
    assert scheduled != sorted(scheduled)
    assert all(event.delay_min is None or event.delay_min > -60 for event in events)


def test_a_difference_is_shown(rows: list[check.Row]) -> None:
    wrong = [(*rows[0][:2], 99, *rows[0][3:]), *rows[1:]]
    assert check.differences(rows, rows) == []
    assert check.differences(rows, wrong) == [f"missing: {rows[0]}", f"unexpected: {wrong[0]}"]
    assert check.differences(rows, rows[1:]) == [f"missing: {rows[0]}"]
