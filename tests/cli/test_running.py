"""What a command does to its own process; in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

TELL = """
import gc
from streamlog.cli.running import collect_rarely
{before}
collect_rarely()
print(gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() > 1_000)
"""


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("", "(100000, 20, 50) True True"),
        ("gc.set_threshold(100, 5, 5)", "(100, 5, 5) True True"),
        ("gc.disable()", "(100000, 20, 50) False True"),
    ],
)
def test_a_workers_collector_looks_less_often_unless_the_app_says_otherwise(
    before: str, told: str
) -> None:
    code = TELL.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == told
