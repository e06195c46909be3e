"""Every kind of operator in a simulation: killed workers write the driver's output."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamlog.errors import RunsDiffer
from tests.golden.adapter import Adapter
from tests.golden.compare import Case
from tests.oracle.histories import KINDS

EXAMPLES = int(os.environ.get("STREAMLOG_ORACLE", "24")) // 8
"""Examples per kind of operator."""
RUNS = 2


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_simulated_failures_do_not_change_the_output(kind: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(KINDS[kind], st.integers(0, 1_000_000), st.integers(1, 3))
    def check_runs(case: Case, seed: int, partitions: int) -> None:
        adapter = Adapter(case, partitions=partitions)
        try:
            with adapter.app.simulate(seed=seed, runs=RUNS) as s:
                for fed in case["inputs"]:
                    if "topic" in fed:
                        topic = s.input(adapter.topics[fed["topic"]])
                        topic.send(fed["value"], key=fed["key"], at=fed["ts"])
        except RunsDiffer as error:
            pytest.fail(f"{error}\n{json.dumps(case)}")

    check_runs()
