"""Members with their files and controllers survive kills, power cuts and partitions."""

from __future__ import annotations

import os

import pytest

from simulation.quorum import simulate

LIVES = 200 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 2


@pytest.mark.parametrize("seed", range(LIVES))
def test_acknowledged_metadata_survives(seed: int) -> None:
    life = simulate(seed)
    assert life.violations == (), life.story
    assert life.counts["acknowledged"] > 20


def test_a_sync_that_ends_while_its_member_is_cancelled_is_ignored() -> None:
    life = simulate(4590)
    assert life.violations == (), life.story
