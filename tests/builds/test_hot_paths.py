"""`make bench-instructions`: its paths run, call each compiled module, and show what is dearer."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys

import pytest

from benchmarks.callgrind import LOSS_MAX, count, losses
from benchmarks.compared import history
from benchmarks.hot_paths import UNCOUNTED, work
from streamlog.metrics.build_info import HOT_MODULES
from tests.builds.sources import MISSING, REASON, ROOT

SLOWED = """
from functools import partial
from benchmarks.callgrind import CountedPath, run_paths
from streamlog.records.varint import append_varint

def write(numbers):
    out = bytearray()
    for number in range(numbers):
        append_varint(out, number)

paths = {"plain": 1_000, "again": 1_000, "hardly dearer": 1_030, "dearer": 1_070}
run_paths({name: CountedPath(partial(write, numbers), 1) for name, numbers in paths.items()})
"""
"""A path of a compiled module, and that path with a slowdown of 3 and of 7 %."""


@pytest.mark.skipif(bool(MISSING), reason=REASON)
def test_every_path_runs_and_is_in_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(work())
    rows: dict[str, int] = json.loads(capsys.readouterr().out)
    assert all(rows.values())
    entries = [*map(json.loads, history())]
    counted = [each["instructions"] for each in entries if "instructions" in each]
    assert rows.keys() == counted[-1].keys()


def test_each_compiled_module_lies_on_a_path_or_has_a_reason() -> None:
    program = [sys.executable, "-m", "tests.builds.walked_modules"]
    done = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    walked: dict[str, list[str]] = json.loads(done.stdout)
    assert [name for name, modules in walked.items() if not modules] == []
    called = {module for modules in walked.values() for module in modules}
    assert called.isdisjoint(UNCOUNTED)
    assert {*HOT_MODULES} - called == {*UNCOUNTED}


@pytest.mark.skipif(bool(MISSING), reason=REASON)
def test_a_slowdown_of_a_compiled_path_shows() -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed: apt-get install valgrind")
    counted = count(["-c", SLOWED], ROOT)
    before, dearer = {"write": counted["plain"]}, {"write": counted["dearer"]}
    assert losses(before, {"write": counted["again"]}) == []
    assert losses(before, {"write": counted["hardly dearer"]}) == []
    (loss,) = losses(before, dearer)
    assert loss.startswith(f"write: {counted['plain']:.1f} -> {counted['dearer']:.1f} (+")
    assert 1 + LOSS_MAX < counted["dearer"] / counted["plain"] < 1.1


def test_a_path_is_lost_beyond_five_percent_or_with_its_name() -> None:
    before = {"read": 100.0, "write": 100.0, "fold": 100.0}
    assert losses(before, {**before, "read": 104.9, "new": 9.0}) == []
    assert losses(before, {**before, "write": 105.1}) == ["write: 100.0 -> 105.1 (+5.1%)"]
    assert losses(before, {"read": 1.0, "write": 1.0}) == ["fold: no longer counted"]
