"""Lives of one partition and its replicas; every planted fault is found."""

from __future__ import annotations

import os

import pytest

from simulation.isr import simulate
from simulation.isr.planted import PLANTED

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS = 500 if THOROUGH else 25

FOUND = {name: planted for name, planted in PLANTED.items() if planted.first_seed is not None}


def test_no_acknowledged_record_is_lost() -> None:
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        life = simulate(seed)
        assert not life.violations, f"seed {seed}: {life.violations}"
        assert life.counts["acknowledged"] > 0
        for name, count in life.counts.items():
            counts[name] = counts.get(name, 0) + count
    for name in ("truncations", "one in sync", "leaderless", "power cuts", "deletions", "fences"):
        assert counts[name] > 0, f"{name} never happened"


def test_a_seed_gives_one_life() -> None:
    assert simulate(3) == simulate(3)


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_fault_is_found(name: str) -> None:
    planted = FOUND[name]
    assert planted.first_seed is not None
    assert simulate(planted.first_seed, planted.plan).violations
