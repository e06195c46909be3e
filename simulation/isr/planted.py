"""Planted faults of one partition's replication: each must be found, by whom it concerns.

`first_seed` is the first one of a search from 0 that finds it, as measured; tests look there again.
Faults without one are rare, or masked by another rule: they have directed tests (`test_leader`,
`test_follower`, `test_replica`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulation.isr.plan import Plan
from streamlog.broker.replication.replica_state import ReplicaRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One fault: the plan that has it, and where it shows."""

    plan: Plan = field(default_factory=Plan)
    first_seed: int | None = None
    """None: random search does not find it."""


def _rules(first_seed: int | None, **rules: bool) -> Planted:
    return Planted(plan=Plan(rules=ReplicaRules(**rules)), first_seed=first_seed)


def _around(first_seed: int | None, plan: Plan) -> Planted:
    return Planted(plan=plan, first_seed=first_seed)


PLANTED: Mapping[str, Planted] = {
    "acks on append": _rules(0, commits_on_append=True),
    "truncate to high watermark": _rules(23, truncates_to_high_watermark=True),
    "compare ends only": _rules(2, compares_ends_only=True),
    "no divergence check": _rules(2, skips_divergence_check=True),
    "fetch before flush": _rules(0, fetches_before_flush=True),
    "shrink at once": _rules(0, shrinks_at_once=True),
    "forget pending isr": _rules(16, forgets_pending_isr=True),
    "join before epoch start": _rules(None, joins_before_epoch_start=True),
    "fetch ids repeat": _rules(63, repeats_fetch_ids=True),
    "old metadata": _rules(None, takes_old_metadata=True),
    "min.insync ignored": _rules(
        0, ignores_min_insync_in_commits=True, ignores_min_insync_in_answers=True
    ),
    "elect anybody": _around(1, Plan(elects_anybody=True)),
    "no partition epoch": _around(16, Plan(accepts_old_partition_epochs=True)),
    "late proposal": _around(931, Plan(accepts_late_proposals=True)),
    "duplicates appended": _around(0, Plan(appends_duplicates=True)),
    "producers forgotten": _around(1, Plan(forgets_producers=True)),
    "duplicates answered at once": _around(0, Plan(answers_duplicates_at_once=True)),
    "unsynced counts": _around(197, Plan(strict=False)),
    "unsynced counts, no broker epochs": Planted(
        plan=Plan(
            strict=False,
            rules=ReplicaRules(ignores_broker_epochs=True),
            accepts_old_broker_epochs=True,
        ),
        first_seed=197,
    ),
    "leader epochs ignored": _rules(None, ignores_leader_epochs=True),
    "generations ignored": _rules(None, ignores_generations=True),
    "min.insync ignored in commits": _rules(None, ignores_min_insync_in_commits=True),
    "min.insync ignored in answers": _rules(None, ignores_min_insync_in_answers=True),
    "unclean kept in sync": _around(None, Plan(keeps_unclean_in_sync=True)),
    "broker epochs ignored": Planted(
        plan=Plan(rules=ReplicaRules(ignores_broker_epochs=True), accepts_old_broker_epochs=True)
    ),
}
