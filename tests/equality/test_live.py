"""Some of the programs of `make equality-live`, whose inputs grow while they run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.broker.process import BrokerProcess
from tests.equality.feeding import Feeding, Quiet
from tests.equality.live import (
    arrival_order,
    closing_records,
    compare_fed,
    compare_live,
    counts_of,
    difference_of,
    flows_of,
)
from tests.equality.programs import LIVE, Fed, build, history

SEEDS = range(30) if os.environ.get("STREAMLOG_PROFILE") == "thorough" else [6, 19, 40]
"""By default: windows behind a repartition, several of them in a row, and timers of kept keys.
`make equality-live` runs 200."""
PART = ("eq12-in1", 1)
FED = 1_000 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 10


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("live") / "log", flush="os") as broker:
        yield broker.address


@pytest.mark.parametrize("seed", SEEDS)
def test_live_workers_keep_the_equality_that_explain_names(
    address: str, tmp_path: Path, seed: int
) -> None:
    compare_live(seed, address, tmp_path)


@pytest.mark.parametrize("first", range(0, FED, 10))
def test_tasks_in_any_order_keep_the_equality_that_explain_names(
    tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + 10):
        compare_fed(seed, "", tmp_path)


def test_each_equality_class_is_compared_by_its_rule() -> None:
    a1, a2, b1 = ("a", 1, 10, ()), ("a", 2, 11, ()), ("b", 1, 12, ())
    rows = [a1, b1, a2]
    for equality, equal_rows, unequal_rows in (
        ("S", [a1, b1, a2], [b1, a1, a2]),
        ("K", [b1, a1, a2], [a2, b1, a1]),
        ("M", [a2, b1, a1], [a2, b1, a1, a1]),
        ("T", [b1, a2], [a2, b1, a1]),
        ("A", [], None),
    ):
        assert not difference_of(equality, {0: rows}, {0: equal_rows})  # type: ignore[arg-type]
        if unequal_rows is not None:
            assert difference_of(equality, {0: rows}, {0: unequal_rows})  # type: ignore[arg-type]


def test_a_mark_after_a_dropped_record_counts_among_the_conditions() -> None:
    """`dedupe` drops the record before the mark, and the next record is older than the mark."""
    program, rng = build(12, LIVE), Random(12)
    fed = arrival_order(rng, program, history(12, program))
    closing = closing_records(rng, program)
    last = max(at for at, each in enumerate(fed) if (each.topic, each.partition) == PART)
    provided = {}
    for elapsed_ms in (0, 1_000):
        reference = Feeding(program.app.topology(), counts_of(program))
        mark: list[Fed | Quiet] = [Quiet(*PART, elapsed_ms)] if elapsed_ms else []
        reference.history(fed[:last], mark, fed[last:], *closing)
        flow = flows_of(program)["eq12-live-out2"]
        provided[elapsed_ms] = reference.is_provided(flow)
    assert provided == {0: True, 1_000: False}
