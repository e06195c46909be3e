"""`make bench-instructions`: its paths run, and it finds what has become dearer."""

from __future__ import annotations

import json

import pytest

from benchmarks.hot_paths import HISTORY, PATHS, last_counts, losses, work
from tests.builds.sources import MISSING, REASON


@pytest.mark.skipif(bool(MISSING), reason=REASON)
def test_every_path_runs() -> None:
    work()


def test_the_history_counts_the_paths_of_today() -> None:
    entries = [*map(json.loads, HISTORY.read_text().splitlines())]
    counted = [each["instructions"] for each in entries if "instructions" in each]
    assert {*counted[-1]} == {*PATHS}


def test_an_entry_is_compared_with_its_own_kind_of_build() -> None:
    entries = [
        {"built": {"python": python}, "at": at} for at, python in enumerate(["3.11", "3.12"])
    ]
    lines = [*map(json.dumps, entries)]
    assert last_counts(lines, {"python": "3.11"}) == entries[0]
    assert last_counts(lines, {"python": "3.14"}) is None
    assert last_counts([*lines, lines[0]], {"python": "3.12"}) == entries[1]


def test_a_path_is_lost_beyond_five_percent_or_with_its_name() -> None:
    before = {"read": 100.0, "write": 100.0, "fold": 100.0}
    assert losses(before, {**before, "read": 104.9, "new": 9.0}) == []
    assert losses(before, {**before, "write": 105.1}) == ["write: 100.0 -> 105.1 (+5.1%)"]
    assert losses(before, {"read": 1.0, "write": 1.0}) == ["fold: no longer counted"]
