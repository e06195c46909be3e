"""The generated parts of docs/architecture.md match the tree."""

from __future__ import annotations

import re

import pytest

from tools.journeys import JOURNEYS, PAGE, as_markdown, part_of, rooms, trace_apart

LINKED = re.compile(r"^\d+\. \[`[^`]+`\]\(\.\./([^)]+)\)", re.MULTILINE)


def test_the_rooms_are_the_layers_of_the_contracts() -> None:
    assert part_of(PAGE.read_text(), "rooms") == rooms(), "run `make architecture`"


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_calls_the_modules_on_its_page(name: str) -> None:
    """The trace may have calls that depend on timing, but must have those on the page."""
    page = part_of(PAGE.read_text(), "journeys")
    heading = f"### {JOURNEYS[name].title}\n"
    assert heading in page
    shown = LINKED.findall(page.partition(heading)[2].partition("### ")[0])
    traced = trace_apart(name)
    # The page lists the modules common to four runs; few of them depend on timing.
    missing = {*shown} - {*traced}
    assert len(missing) <= len(shown) // 10, f"run `make architecture`: not called: {missing}"
    fresh = {*traced} - {*shown}
    assert len(fresh) <= len(shown) // 10, f"run `make architecture`: not listed: {fresh}"
    assert as_markdown(name, shown) in page, "run `make architecture`: sentences have changed"
