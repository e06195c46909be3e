"""Histories on a standalone cluster equal local ones, despite killed and slow executors."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_bridge.cluster import ROOT, SETTINGS, cluster
from tests.spark_bridge.on_cluster import END, content, shop, unchanged
from tests.spark_bridge.test_spark_run import Shop

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.environ.get("STREAMLOG_PROFILE") != "thorough",
        reason="six processes of Java: with STREAMLOG_PROFILE=thorough (`make spark`)",
    ),
]


def test_a_cluster_gives_the_results_of_this_process(tmp_path: Path) -> None:
    """Without a broker, on files alone; one executor is killed, and one task runs twice."""
    asyncio.run(Shop(tmp_path).fill())
    job = shop(tmp_path, unchanged).backfill(until=END, outputs="stage")
    expected = content(job, job.run())
    with cluster(tmp_path / "cluster") as url:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark_bridge.on_cluster", url, str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | SETTINGS,
            timeout=800,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-5_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("read") == 2_000
    assert found == {"calm": expected, "killed": expected, "lagging": expected}
    assert (tmp_path / "killed").exists()
    assert (tmp_path / "overtaken").exists()
