"""Random programs on tasks alone: batches, orders, restarts and lost commits change no record."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from random import Random

import pytest

from tests.equality.programs import build, history
from tests.equality.runs import Results, driven, text, whole
from tests.processing.inputs.test_merged_input import AtomicCluster
from tests.processing.test_exactness import SinkRecord

SEEDS = 1_000 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 40


def run_interleaved(seed: int, crashes: int) -> Results:
    program = build(seed, "driver")
    app = program.app
    counts = {name: spec.partitions or 1 for name, spec in app.topics.items()}
    cluster = AtomicCluster(app.topology(), counts, Random(seed))
    for each in history(seed, program):
        key = None if each.key is None else text.dumps(each.key)
        value = None if each.value is None else whole.dumps(each.value)
        record = SinkRecord(each.topic, each.partition, each.timestamp_ms, key, value)
        cluster.append(each.topic, each.partition, record)
    cluster.run(crashes=crashes)
    return {
        at: Counter(
            (partition, r.key, r.value, r.timestamp_ms, tuple(r.headers))
            for (name, partition), log in cluster.logs.items()
            if name == topic.name
            for r in log
        )
        for at, topic in enumerate(program.outputs)
    }


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_tasks_in_any_order_equal_the_driver(first: int) -> None:
    warnings.simplefilter("ignore", UserWarning)
    for seed in range(first, first + 10):
        driver = build(seed, "driver")
        expected = driven(driver, history(seed, driver))
        for crashes in (0, 10):
            found = run_interleaved(seed, crashes)
            assert found == expected, f"seed {seed}, {crashes} crashes: {driver.operators}"
