"""The tables of planted faults are complete, and their seeds and tests exist."""

from __future__ import annotations

import ast
from dataclasses import fields
from functools import cache
from pathlib import Path

import msgspec
import pytest

from simulation.isr.plan import Plan
from simulation.isr.planted import PLANTED
from simulation.mirror.plan import FOUND, MirrorPlan
from simulation.planted import SHORT_CUTS, SWITCHES, tables
from streamlog.broker.coordinator import pending_requests
from streamlog.broker.coordinator.transaction import transaction_coordinator
from streamlog.broker.quorum.controller import leader_elections
from streamlog.broker.quorum.raft import raft_state
from streamlog.broker.replication import replica_state
from streamlog.client.admin import cluster_descriptions
from tests.simulation import test_controller, test_raft

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reliability.md"
NO_FAULTS = {"rules", "violent", "duration_ms"}
"""Fields of a plan that are not faults."""
FLAGS = {
    "isr": {each.name for each in msgspec.structs.fields(replica_state.ReplicaRules)}
    | {each.name for each in fields(Plan)} - NO_FAULTS,
    "mirror": {each.name for each in fields(MirrorPlan)},
    "raft": {each.name for each in msgspec.structs.fields(raft_state.RaftRules)},
    "controller": {each.name for each in msgspec.structs.fields(leader_elections.ElectionRules)},
    "status": {each.name for each in msgspec.structs.fields(cluster_descriptions.EvidenceRules)},
    "transactions": {
        each.name for each in msgspec.structs.fields(transaction_coordinator.TransactionRules)
    },
    "coordinator": {
        each.name for each in msgspec.structs.fields(pending_requests.CoordinatorRules)
    },
}
TESTS = sorted(
    {switch.test for switch in SWITCHES if switch.test}
    | {test for _, tests in SHORT_CUTS for test in tests}
)


@cache
def functions(path: str) -> frozenset[str]:
    parsed = ast.parse((ROOT / path).read_text())
    return frozenset(
        each.name
        for each in ast.walk(parsed)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("level", FLAGS)
def test_every_flag_is_in_the_table(level: str) -> None:
    planted = {name for switch in SWITCHES if switch.level == level for name in switch.names}
    assert planted == FLAGS[level]


def test_every_fault_has_a_seed_or_a_test_that_finds_it() -> None:
    assert [switch for switch in SWITCHES if switch.seed is None and not switch.test] == []


@pytest.mark.parametrize("test", TESTS)
def test_the_tests_in_the_table_exist(test: str) -> None:
    path, _, name = test.partition("::")
    assert name in functions(path)


def seeds(level: str) -> dict[frozenset[str], int | None]:
    return {frozenset(each.names): each.seed for each in SWITCHES if each.level == level}


def test_isr_seeds_match_the_ones_that_are_tried() -> None:
    plain = Plan()
    tried = {
        frozenset(
            {each.name for each in fields(Plan)
             if each.name not in NO_FAULTS
             and getattr(planted.plan, each.name) != getattr(plain, each.name)}
            | {each.name for each in msgspec.structs.fields(replica_state.ReplicaRules)
               if getattr(planted.plan.rules, each.name)}
        ): planted.first_seed
        for planted in PLANTED.values()
    }  # fmt: skip
    assert tried == seeds("isr")


def test_mirror_seeds_match_the_ones_that_are_tried() -> None:
    found = {names: seed for names, seed in seeds("mirror").items() if seed is not None}
    assert found == {frozenset({name}): seed for name, seed in FOUND.items()}


def test_raft_and_controller_seeds_match_the_ones_that_are_tried() -> None:
    raft = {frozenset({name}): first for name, (first, _) in test_raft.FOUND.items()}
    found = {names: seed for names, seed in seeds("raft").items() if seed is not None}
    assert raft == found
    controller = {frozenset({name}): seed for name, (_, seed) in test_controller.PLANTED.items()}
    found = {names: seed for names, seed in seeds("controller").items() if seed is not None}
    assert controller == found


def test_the_table_is_in_the_documentation() -> None:
    assert "\n".join(tables()) in DOCS.read_text(), "python -m simulation.planted prints it"
