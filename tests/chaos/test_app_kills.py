"""An app whose source is lost, and whose promotion is interrupted by a kill."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from chaos.app_kills import BLOWS, STEPS, VICTIMS, campaign, fault
from chaos.mirror_kills import MOMENTS, Blow
from tests.cluster.cluster import AT_LENGTH


def test_every_step_has_a_blow_for_both() -> None:
    assert len({*BLOWS}) == len(STEPS) * len(MOMENTS) * len(VICTIMS)


@pytest.mark.parametrize(
    ("numbers", "position", "says"),
    [
        ([[0, 1], [0, 1], [0, 1]], 2, ""),
        ([[], [], []], 0, ""),
        ([[0, 1], [0, 1], [0]], 2, "the records are"),
        ([[0, 2], [0, 2], [0, 2]], 2, "the records are"),
        ([[0, 1, 1], [0, 1, 1], [0, 1, 1]], 3, "the records are"),
        ([[0, 1], [0, 1], [0, 1]], 1, "the position is 1"),
        ([[0, 1], [0, 1], [0, 1]], 3, "the position is 3"),
    ],
)
def test_a_transaction_that_is_torn_missing_or_twice_is_a_fault(
    numbers: list[list[int]], position: int, says: str
) -> None:
    found = fault(numbers, position)
    assert says in found
    assert bool(found) == bool(says)


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc"
)
@AT_LENGTH
def test_an_app_is_promoted_once_although_its_promotion_is_interrupted(tmp_path: Path) -> None:
    few = [
        Blow("set its positions", "after", "operator"),
        Blow("cut and promote", "during", "target"),
    ]
    outcome = asyncio.run(campaign(tmp_path, few, seed=1))
    assert outcome.violations == []
    assert (outcome.rounds, outcome.struck) == (2, 2)
