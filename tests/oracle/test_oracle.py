"""The engine against the oracle, on random histories; `make oracle` runs many more of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.golden.compare import Case, difference, differing
from tests.golden.runners import run_on_driver
from tests.oracle.histories import KINDS
from tests.oracle.program import run_on_oracle

EXAMPLES = int(os.environ.get("STREAMLOG_ORACLE", "12"))
"""Examples per kind of operator."""


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_driver_equals_the_oracle(kind: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(KINDS[kind])
    def agrees(case: Case) -> None:
        found = run_on_driver(case)
        wrong = differing(case["expect"]["min_order"], run_on_oracle(case), found)
        assert wrong is None, f"{wrong}\n{json.dumps(case)}"

    agrees()


def golden_cases() -> list[Case]:
    path = os.environ.get("STREAMLOG_GOLDEN")
    cases = json.loads(Path(path).read_text())["cases"] if path else []
    return [case for case in cases if "fact" not in case]


@pytest.mark.skipif(not golden_cases(), reason="STREAMLOG_GOLDEN names no file of cases")
@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case["id"])
def test_the_oracle_agrees_with_other_stream_processors(case: Case) -> None:
    assert difference(case, run_on_oracle(case)) is None
