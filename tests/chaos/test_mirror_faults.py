"""What goes wrong between two clusters that mirror each other, tried once each."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import world
from chaos.mirror_faults import FAULTS, NEEDS_NETWORK, campaign
from tests.cluster.cluster import AT_LENGTH

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc"
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lost-cluster", pytest.param("clocks-apart", marks=AT_LENGTH)])
def test_no_acknowledged_record_is_lost_between_clusters(kind: str, tmp_path: Path) -> None:
    outcome = asyncio.run(campaign(tmp_path, kind, rounds=1, seed=1))
    assert outcome.violations == []
    assert outcome.rounds == 1
    assert outcome.acknowledged > 0


@AT_LENGTH
def test_no_acknowledged_record_is_lost_when_the_link_is_cut() -> None:
    if world.command() is None:
        pytest.skip("this system gives no network of its own to break")
    done = subprocess.run(
        [sys.executable, "-m", "chaos.mirror_faults", NEEDS_NETWORK, "--rounds", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"rounds": 2' in done.stdout
    assert NEEDS_NETWORK in FAULTS
