"""The generated parts of docs/architecture.md match the tree."""

from __future__ import annotations

import pytest

from tools.journeys import (
    JOURNEYS,
    PAGE,
    as_markdown,
    is_alike,
    part_of,
    rooms,
    shown_on,
    trace_apart,
)


def test_the_rooms_are_the_layers_of_the_contracts() -> None:
    assert part_of(PAGE.read_text(), "rooms") == rooms(), "run `make architecture`"


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_calls_the_modules_on_its_page(name: str) -> None:
    """The trace may have calls that depend on timing, but must have those on the page."""
    page = PAGE.read_text()
    shown, traced = shown_on(page, name), trace_apart(name)
    differing = {*shown} ^ {*traced}
    assert is_alike(shown, traced), f"run `make architecture`: on one side alone: {differing}"
    assert as_markdown(name, shown) in page, "run `make architecture`: sentences have changed"
