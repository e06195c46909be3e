"""A promotion without loss and a fail back between real processes, with a kill in the midst."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from chaos.mirror_kills import BLOWS, MOMENTS, STEPS, VICTIMS, Blow, campaign, cut_off

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"


def test_every_step_has_a_blow_for_everyone() -> None:
    assert len({*BLOWS}) == len(STEPS) * len(MOMENTS) * len(VICTIMS)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_when_a_side_is_killed(tmp_path: Path) -> None:
    few = [Blow("promote", "during", "target"), Blow("seal the source", "after", "operator")]
    outcome = asyncio.run(campaign(tmp_path, BLOWS if THOROUGH else few))
    assert outcome.violations == []
    assert outcome.rounds == len(BLOWS if THOROUGH else few)
    assert cut_off(tmp_path) == []
