"""The golden cases as a history in this process, compared with the driver row by row."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path

import pytest

from tests.history.golden import GoldenApp, content, golden_cases
from tests.history.test_local_run import run_history


@pytest.mark.skipif(not golden_cases(), reason="STREAMLOG_GOLDEN names no file of cases")
def test_a_history_of_the_golden_cases_equals_the_driver(tmp_path: Path) -> None:
    warnings.simplefilter("ignore", UserWarning)
    golden = GoldenApp(golden_cases())
    url = f"embedded:{tmp_path / 'log'}"
    asyncio.run(golden.fill(url))
    tasks = run_history(url, golden.program, tmp_path)
    found = golden.staged(tasks, golden.place(tmp_path))
    expected = golden.driven()
    for output, records, wanted in zip(golden.outputs, found, expected, strict=True):
        assert content(records) == content(wanted), output.case["id"]
    assert golden.passed(found) == golden.passed(expected)
