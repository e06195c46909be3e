"""Input and output facts of other stream processors, replayed on the test driver.

`STREAMLOG_GOLDEN` names a file of cases: neutral topologies, inputs, and expected rows.
`python -m tests.golden` runs them outside pytest, also on workers.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.golden.__main__ import run_without_log
from tests.golden.compare import Case


def cases() -> list[Case]:
    path = os.environ.get("STREAMLOG_GOLDEN")
    return json.loads(Path(path).read_text())["cases"] if path else []


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.skipif(not cases(), reason="STREAMLOG_GOLDEN names no file of cases")
@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_the_driver_passes_a_golden_case(case: Case) -> None:
    outcome = run_without_log(case)
    if not outcome.is_core and outcome.status == "failed":
        pytest.skip(str(outcome))
    assert outcome.status == "passed", str(outcome)
