"""Lives of two clusters and a link; every planted fault is found."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from simulation.mirror import MirrorPlan, simulate
from simulation.mirror.plan import FOUND

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS = 200 if THOROUGH else 4


def test_mirrors_become_their_sources_and_promotions_lose_nothing() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        life = simulate(seed)
        assert not life.violations, f"seed {seed}: {life.violations}"
        assert life.counts["acknowledged"] > 0
        counts.update(life.counts)
    assert counts["records compared"] > 0
    if THOROUGH:
        for name in (
            *("promotions", "promotions without loss", "fail backs", "asked cuts", "asked stops"),
            *("unclean losses", "deletions", "lost clusters", "cut links", "power cuts", "pauses"),
            *("partitions added", "topics created again", "mirrors compared"),
        ):
            assert counts[name] > 0, f"{name} never happened"


@pytest.mark.parametrize("seed", [10, 201, 753, 1310, 2168, 2225, 2270, 6040])
def test_lives_that_found_a_fault_end_well(seed: int) -> None:
    assert not simulate(seed).violations


def test_a_leader_that_begins_anew_asks_to_lead_alone_once() -> None:
    # The request is repeated once, without an answer. Before leaders waited for their source's
    # answer, followers joined first, and the leader asked for 30 epochs.
    assert simulate(753).counts["asked to lead alone"] <= 2


def test_a_seed_gives_one_life_of_two_clusters() -> None:
    assert simulate(3) == simulate(3)


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_fault_of_mirroring_is_found(name: str) -> None:
    assert simulate(FOUND[name], MirrorPlan(**{name: True})).violations
