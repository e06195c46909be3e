"""Every kind of operator in a simulation: workers that are killed write what the driver writes."""

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
"""Per kind."""
RUNS = 2


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_trouble_changes_nothing(kind: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(KINDS[kind], st.integers(0, 1_000_000), st.integers(1, 3))
    def is_the_same(case: Case, seed: int, partitions: int) -> None:
        adapter = Adapter(case, partitions=partitions)
        try:
            with adapter.app.simulate(seed=seed, runs=RUNS) as s:
                for fed in case["inputs"]:
                    if "topic" in fed:
                        topic = s.input(adapter.topics[fed["topic"]])
                        topic.send(fed["value"], key=fed["key"], at=fed["ts"])
        except RunsDiffer as error:
            pytest.fail(f"{error}\n{json.dumps(case)}")

    is_the_same()
