from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.equality.runs import compare, compare_killed_in_commits

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS = 30 if IS_THOROUGH else 2
"""`make equality` runs 500."""
KILLED = {1: 580, 2: 59} if IS_THOROUGH else {1: 580}
"""By the number of the commit: programs with repartitions, windows, timers, and long histories."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("equality") / "log", flush="os") as broker:
        yield broker.address


@pytest.mark.parametrize("seed", range(SEEDS))
def test_driver_one_worker_and_three_that_are_killed_write_the_same(
    address: str, tmp_path: Path, seed: int
) -> None:
    compare(seed, address, tmp_path)


@pytest.mark.parametrize("number", KILLED)
def test_a_worker_that_is_killed_at_every_step_of_a_commit_doubles_and_loses_nothing(
    address: str, tmp_path: Path, number: int
) -> None:
    compare_killed_in_commits(KILLED[number], f"kafka://{address}", tmp_path, number)


@pytest.mark.skipif(not IS_THOROUGH, reason="the same with the log inside: STREAMLOG_PROFILE")
@pytest.mark.parametrize("number", KILLED)
def test_and_so_does_one_that_takes_the_log_with_it(tmp_path: Path, number: int) -> None:
    log = f"embedded:{tmp_path / 'log'}"
    compare_killed_in_commits(KILLED[number], log, tmp_path / "work", number)
