"""The quorum's state machine survives faults, and every planted fault is found."""

from __future__ import annotations

import os
from functools import cache

import msgspec
import pytest

from simulation.raft import simulate
from streamlog.broker.quorum.raft.raft_state import RaftRules

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
LIVES = 500 if THOROUGH else 12
BUDGET = 12_000 if THOROUGH else 300
FOUND = {
    "vote_not_persisted": (9, "Q4"),
    "no_log_check": (0, "Q2"),
    "count_unflushed": (2, "Q6"),
    "fetch_before_flush": (0, "Q6"),
    "no_divergence_check": (0, "Q6"),
    "accept_any_answer": (0, "Q5"),
    "rejoin_at_once": (11, "Q2"),
}
"""The first seed that finds each fault, searched from seed 0, and the check that finds it."""
RARE = {"commit_old_epoch", "no_begin_fence", "trust_leader_hint"}
"""Too rare, or too slow, for a short search; each also has a directed test."""
COVERED = {"no_flush_generation"}
"""Another rule covers for it: see its directed test."""
AGREED = {"lets_anybody_in"}
"""All members of a life know equal voters: see its directed test, and the ones of `growth`."""


live = cache(simulate)


@pytest.mark.parametrize("seed", range(LIVES))
def test_a_quorum_survives_all_faults(seed: int) -> None:
    life = live(seed)
    assert life.violations == (), life.story
    assert life.counts["acknowledged"] > 0


def test_the_planned_faults_occur() -> None:
    counts: dict[str, int] = {}
    for seed in range(LIVES):
        for what, often in live(seed).counts.items():
            counts[what] = counts.get(what, 0) + often
    for what in ("crashes", "elections", "partitions", "pauses", "truncations", "snapshots",
                 "snapshots installed", "wipes"):  # fmt: skip
        assert counts.get(what, 0) > 2, f"{what}: {counts}"


def test_a_seed_gives_one_life() -> None:
    assert simulate(3).trace == live(3).trace != live(4).trace


@pytest.mark.parametrize("bug", FOUND)
def test_a_planted_fault_is_found(bug: str) -> None:
    first, check = FOUND[bug]
    rules = RaftRules(**{bug: True})
    violations = simulate(first, rules).violations
    assert violations[0].startswith(check), violations
    assert not THOROUGH or first == next(
        seed for seed in range(BUDGET) if simulate(seed, rules).violations
    )


@pytest.mark.skipif(not THOROUGH, reason="a search of minutes")
@pytest.mark.parametrize("bug", sorted(RARE))
def test_a_rare_fault_is_found(bug: str) -> None:
    rules = RaftRules(**{bug: True})
    found = next((each for each in range(BUDGET) if simulate(each, rules).violations), None)
    assert found is not None


def test_every_fault_has_its_test() -> None:
    assert {each.name for each in msgspec.structs.fields(RaftRules)} == {
        *FOUND,
        *RARE,
        *COVERED,
        *AGREED,
    }
