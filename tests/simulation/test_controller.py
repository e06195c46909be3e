"""Lives of a cluster under its controller; and rules that are missing are found by them."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from simulation.controller import simulate
from streamlog.broker.quorum.elections import Rules

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS = 500 if THOROUGH else 6

PLANTED = {
    "elects_in_sync": (Rules(elects_in_sync=False), 1),
    "clears_elr": (Rules(clears_elr=False), 0),
    "loses_with_directory": (Rules(loses_with_directory=False), 19),
    "forgets_leavers": (Rules(forgets_leavers=False), 705),
    "forgets_damaged": (Rules(forgets_damaged=False), 1765),
    "compares_damage_epoch": (Rules(compares_damage_epoch=False), 10309),
}
"""Bugs, and a seed that finds each. The other rules have tests of their own beside their parts."""


def test_nothing_is_lost_and_everybody_is_in_sync_again() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        life = simulate(seed)
        assert not life.violations, f"seed {seed}: {life.violations}"
        assert life.counts["acknowledged"] > 0
        counts.update(life.counts)
    for name in (
        "elections",
        "eligible",
        "alone in sync",
        "disks lost",
        "damage",
        "moved",
        "late copies",
    ):
        assert counts[name] > 0, f"{name} never happened"


def test_a_seed_is_one_life() -> None:
    assert simulate(3) == simulate(3)


@pytest.mark.parametrize("name", PLANTED)
def test_a_rule_that_is_missing_is_found(name: str) -> None:
    rules, seed = PLANTED[name]
    assert simulate(seed, rules).violations
