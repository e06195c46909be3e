"""Whole lives of the shipped broker and client; planted faults are found."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from unittest.mock import patch

import pytest

from simulation import broker
from simulation.broker import simulate
from simulation.disk import SimulatedFile
from simulation.faults import Fault, Plan, drawn, shrunk
from simulation.story import lived
from simulation.trouble import OF_ONE
from streamlog.broker.replication.group_flush import Callback, GroupFlush
from streamlog.broker.storage.log.producer_states import ProducerStates
from streamlog.errors import LogError
from streamlog.records.batch import RecordBatch
from streamlog.replace import replace

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
LIVES = 60 if THOROUGH else 1
CUTS: Plan = (
    Fault(1.0, "slow disk", 12.0, 0.15),
    *(Fault(at_s, "power", 0.3, 0.5) for at_s in (3.0, 5.0, 7.0, 9.0)),
)
LOSSES = {"lost-write", "unseen"}
RESETS: Plan = tuple(Fault(at_s / 2, "reset", 0.1, 0.99) for at_s in range(4, 22))


@pytest.mark.parametrize("seed", range(LIVES))
def test_nothing_is_lost_doubled_torn_or_reordered(seed: int) -> None:
    life = simulate(seed)
    assert life.violations == ()
    assert life.counts["acknowledged"] > 500


SHORT = replace(broker.SETTING, trouble_s=11.0, calm_s=6.0)


def kinds(plan: Plan, seed: int = 1) -> set[str]:
    return {each.partition(":")[0] for each in lived(seed, plan, SHORT)[1]}


def test_an_acknowledgement_before_the_sync_is_found() -> None:
    def then(self: GroupFlush, callback: Callback) -> None:
        real(self, lambda _: None)
        asyncio.get_running_loop().call_soon(callback, None)

    real = GroupFlush.then
    with patch.object(GroupFlush, "then", then):
        # Not each life has something to lose at the moment of its cuts.
        assert any(kinds(CUTS, seed) & LOSSES for seed in range(1, 6))


@pytest.mark.skipif(not THOROUGH, reason="two more lives: `make properties` runs them")
def test_a_sync_without_effect_is_found() -> None:
    with patch.object(SimulatedFile, "sync", lambda _: None):
        assert kinds(CUTS) & {*LOSSES, "damage"}


@pytest.mark.skipif(not THOROUGH, reason="two more lives: `make properties` runs them")
def test_a_broker_that_accepts_duplicates_is_found() -> None:
    def check(self: ProducerStates, batch: RecordBatch, **given: bool) -> None:
        with suppress(LogError):
            real(self, batch, **given)

    real = ProducerStates.check
    with patch.object(ProducerStates, "check", check):
        assert "duplicate" in kinds(RESETS) | kinds(RESETS, 2)


def test_a_failing_plan_is_shrunk() -> None:
    plan = drawn(3, OF_ONE, until_s=10)
    assert plan == drawn(3, OF_ONE, until_s=10)
    needed = {plan[1], plan[-1]}
    assert set(shrunk(plan, lambda shorter: needed <= set(shorter))) == needed
