"""The generated parts of docs/architecture.md are those of the tree as it is."""

from __future__ import annotations

import re

import pytest

from tools.journeys import JOURNEYS, PAGE, as_markdown, part_of, rooms, trace_apart

LINKED = re.compile(r"^\d+\. \[`[^`]+`\]\(\.\./([^)]+)\)", re.MULTILINE)


def test_the_rooms_are_the_layers_of_the_contracts() -> None:
    assert part_of(PAGE.read_text(), "rooms") == rooms(), "run `make architecture`"


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_calls_the_modules_that_the_page_lists(name: str) -> None:
    """What depends on timing may be missing from the page, and nothing on it from the trace."""
    page = part_of(PAGE.read_text(), "journeys")
    heading = f"### {JOURNEYS[name].title}\n"
    assert heading in page
    shown = LINKED.findall(page.partition(heading)[2].partition("### ")[0])
    traced = trace_apart(name)
    # Four runs have these modules in common, there and here; few of them depend on timing.
    missing = {*shown} - {*traced}
    assert len(missing) <= len(shown) // 10, f"run `make architecture`: not called: {missing}"
    fresh = {*traced} - {*shown}
    assert len(fresh) <= len(shown) // 10, f"run `make architecture`: not listed: {fresh}"
    assert as_markdown(name, shown) in page, "run `make architecture`: sentences have changed"
