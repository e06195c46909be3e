"""Each difference from Kafka Streams refers to an existing heading of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.compare import Row
from tests.oracle.histories import KINDS
from tests.oracle.kafka.differences import DIFFERENCES, Difference, without_absent_tombstones

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda each: each.page)
def test_each_difference_names_an_existing_heading(difference: Difference) -> None:
    page, _, rest = difference.page.partition(", ")
    heading = rest.partition(":")[0]
    lines = (ROOT / page).read_text().splitlines()
    assert any(line.startswith("#") and line.lstrip("# ").startswith(heading) for line in lines)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda each: each.page)
def test_each_difference_names_existing_kinds_of_operators(difference: Difference) -> None:
    for kind in difference.kinds:
        assert any(each.startswith(kind) for each in KINDS), kind


def test_deletions_of_absent_rows_are_removed() -> None:
    values = [None, "a", None, None, "b", "b", None]
    rows = [Row("out", "k", None, value, at, at) for at, value in enumerate(values)]
    kept = [row.value for row in without_absent_tombstones(rows)]
    assert kept == ["a", None, "b", "b", None]
