"""Whole lives of three brokers; faults planted in their replication are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from simulation import cluster
from simulation.faults import Fault, Plan
from simulation.history import Outcome
from simulation.story import lived
from streamlog.broker.replication.replica_state import ReplicaRules
from streamlog.broker.replication.replicas import Replicas
from streamlog.replace import replace

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
LIVES = 20 if THOROUGH else 1
SHORT = replace(cluster.SETTING, trouble_s=10.0, calm_s=8.0, life_s=250.0)
LOSSES = {"P2", "P3", "P4", "P6", "lost-write", "unseen", "inconsistent-offsets"}
ROLLING: Plan = tuple(
    Fault(at_s, kind, 0.5, draw)
    for at_s, kind, draw in ((3.0, "kill", 0.1), (5.0, "power", 0.4), (7.0, "kill", 0.7))
)
TRACE = """
from tests.simulation.test_cluster import ROLLING, SHORT, replace
from simulation.story import lived
life, violations = lived(5, ROLLING[:1], replace(SHORT, trouble_s=4.0, calm_s=2.0))
print(life.trace, violations)
"""


def kinds(seed: int) -> set[str]:
    return {each.partition(":")[0] for each in lived(seed, ROLLING, SHORT)[1]}


@pytest.mark.parametrize("seed", range(LIVES))
def test_three_brokers_lose_nothing_and_end_with_equal_logs(seed: int) -> None:
    life, violations = lived(seed, ROLLING, SHORT)
    assert violations == []
    assert life is not None
    counts = life.result.counted()
    assert counts["acknowledged"] > 200
    assert counts["start"] == 6
    assert counts["bytes read of followers"] > 0


def test_without_faults_no_transaction_ends_but_as_planned() -> None:
    life, violations = lived(3, (), replace(SHORT, trouble_s=5.0, calm_s=1.0))
    assert violations == []
    assert life is not None
    assert life.result.counted()["transform ok"] > 5
    ended = life.result.room.history.transactions
    # Some lives have two clients of one transactional id, which shut each other out.
    clients = {each.name.partition("#")[0] for each in ended}
    shared = Counter(client.partition("/")[0] for client in clients)
    ends = [
        each for each in ended if not each.is_planned and shared[each.name.partition("/")[0]] == 1
    ]
    assert {each.outcome for each in ends} == {Outcome.OK}


def test_a_broker_that_is_down_before_the_first_topic_is_tolerated() -> None:
    """The topics have three replicas, and the broker has never registered: they wait for it."""
    early: Plan = (Fault(0.7666, "refused sync", 0.19, 0.9007),)
    life, violations = lived(91, early, replace(SHORT, trouble_s=4.0, calm_s=2.0, life_s=100.0))
    assert violations == []
    assert life is not None
    assert life.result.counted()["start"] > 3


def test_an_acknowledgement_before_replication_is_found() -> None:
    def planted(self: Replicas, *given: Any, **more: Any) -> None:
        real(self, *given, **more)
        self.node.rules = ReplicaRules(commits_on_append=True)

    real = Replicas.__init__
    with patch.object(Replicas, "__init__", planted):
        # Not each life has something to lose at the moment of its kills.
        assert any(kinds(seed) & LOSSES for seed in range(1, 6))


@pytest.mark.skipif(not THOROUGH, reason="two more lives: `make properties` runs them")
def test_a_seed_gives_one_life_in_every_process() -> None:
    traces = {
        subprocess.run(
            [sys.executable, "-c", TRACE],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(traces) == 1
