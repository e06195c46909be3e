"""Lives of a cluster under its controller; missing rules are found."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from simulation.controller import simulate
from simulation.controller.world import OPERATED
from streamlog.broker.quorum.controller.leader_elections import ElectionRules
from streamlog.client.admin.cluster_descriptions import EvidenceRules as StatusRules

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS = 500 if THOROUGH else 6
OPERATED_SEEDS = range(OPERATED - 1, 4_000 if THOROUGH else 60, OPERATED)

PLANTED = {
    "elects_in_sync": (ElectionRules(elects_in_sync=False), 1),
    "clears_elr": (ElectionRules(clears_elr=False), 0),
    # A new disk also lacks the lives of its predecessor: each rule covers for the other.
    "loses_with_directory": (ElectionRules(loses_with_directory=False, compares_lives=False), 19),
    "compares_lives": (ElectionRules(compares_lives=False), 2351),
    "forgets_leavers": (ElectionRules(forgets_leavers=False), 705),
    "forgets_damaged": (ElectionRules(forgets_damaged=False), 1765),
    "compares_damage_epoch": (ElectionRules(compares_damage_epoch=False), 10309),
}
"""Faults, with a seed that finds each. The other rules have tests next to their modules."""


def test_nothing_is_lost_and_all_replicas_return_to_the_isr() -> None:
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


def test_an_operator_who_waits_for_the_status_loses_nothing() -> None:
    counts: Counter[str] = Counter()
    for seed in OPERATED_SEEDS:
        life = simulate(seed)
        assert not life.violations, f"seed {seed}: {life.violations}"
        counts.update(life.counts)
    assert counts["replaced after another"] > 0, "no second disk was ever replaced"


def test_an_operator_who_trusts_only_the_metadata_loses_records() -> None:
    # Until the next process registers, the metadata describes the old disk.
    assert simulate(23, status_rules=StatusRules(wants_reports=False)).violations


def test_a_seed_gives_one_life() -> None:
    assert simulate(3) == simulate(3)


@pytest.mark.parametrize("name", PLANTED)
def test_a_missing_rule_is_found(name: str) -> None:
    rules, seed = PLANTED[name]
    assert simulate(seed, rules).violations
