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
"""Seeds by commit number: programs with repartitions, windows, timers, and long histories."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("equality") / "log", flush="os") as broker:
        yield broker.address


@pytest.mark.parametrize("seed", range(SEEDS))
def test_driver_one_worker_and_three_killed_workers_write_equal_records(
    address: str, tmp_path: Path, seed: int
) -> None:
    compare(seed, address, tmp_path)


@pytest.mark.parametrize("number", KILLED)
def test_kills_at_every_step_of_a_commit_lose_and_double_nothing(
    address: str, tmp_path: Path, number: int
) -> None:
    compare_killed_in_commits(KILLED[number], f"kafka://{address}", tmp_path, number)


@pytest.mark.skipif(not IS_THOROUGH, reason="an embedded log: with STREAMLOG_PROFILE=thorough")
@pytest.mark.parametrize("number", KILLED)
def test_kills_with_an_embedded_log_lose_and_double_nothing(tmp_path: Path, number: int) -> None:
    log = f"embedded:{tmp_path / 'log'}"
    compare_killed_in_commits(KILLED[number], log, tmp_path / "work", number)
