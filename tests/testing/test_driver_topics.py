"""A value that a worker could not store or read fails a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from streamlog import App, Stream, Topic, agg, tumbling
from streamlog.errors import ProcessingError, TopologyError, UsageError


@dataclass
class Page:
    url: str
    clicks: int


@dataclass
class Top:
    pages: list[Page]


@dataclass
class Wrong:
    clicks: int


def worst(_: Page, later: Page) -> Page:
    """JSON checks the outer class when it writes: only a reader finds this."""
    return Page(later.url, "many")  # type: ignore[arg-type]


def kept(state: list[Any], page: Page) -> list[Any]:
    return [*state, object()]


def wrong(page: Page) -> Wrong:
    return Wrong(page.url)  # type: ignore[arg-type]


PROGRAMS: dict[str, Callable[[App, Stream[str, Page]], object]] = {
    "a state that can't be stored": lambda app, s: (
        s.group_by_key().windowed(tumbling("1h")).aggregate(list, kept, name="it")
    ),
    "a state that can't be read": lambda app, s: (
        s.group_by_key().windowed(tumbling("1h")).reduce(worst, name="it")
    ),
    "a table that can't be read": lambda app, s: s.map_values(worse).to_table(name="it"),
    "a record that can't be read": lambda app, s: s.map_values(wrong).to(
        app.topic("it", key=str, value=Wrong)
    ),
}


def worse(page: Page) -> Page:
    return worst(page, page)


def send(app: App, topic: Topic[str, Page]) -> None:
    with app.test() as t:
        for number in range(2):
            t.input(topic).send(Page("/a", number), key="k", at=0)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_value_that_a_worker_refuses_fails_the_test_at_its_end(program: str) -> None:
    app = App("t")
    topic = app.topic("in", key=str, value=Page, partitions=1)
    PROGRAMS[program](app, app.stream(topic))
    with pytest.raises(ProcessingError, match=r"'?it"):
        send(app, topic)
    # An error inside the block is raised unchanged.
    with pytest.raises(UsageError, match="no topic 'other'"), app.test() as t:
        t.topic("other")


def test_valid_values_pass_without_calling_functions_again() -> None:
    app = App("t")
    topic = app.topic("in", key=str, value=Page, partitions=1)
    tops = app.topic("tops", key=str, value=Top)
    calls = 0

    def clicks(page: Page) -> int:
        nonlocal calls
        calls += 1
        return page.clicks

    top = agg.top(3, lambda p: p, by=lambda p: p.clicks)
    table = app.stream(topic).group_by_key().agg(Top, name="top", pages=top)
    table.changes().to(tops)
    table.map_values(lambda row: clicks(row.pages[0]), name="seen")
    with app.test() as t:
        t.input(topic).send(Page("/a", 3), key="k")
        assert t.output(tops).values == [Top([Page("/a", 3)])]
        before = calls
    assert calls == before


def test_names_in_place_of_topics_and_tables_are_refused() -> None:
    app = App("shop")
    topic = app.topic("sales", key=str, value=int)
    app.stream(topic).group_by_key().count(name="sold")
    name: Any = "sales"
    with app.test() as t:
        for side in (t.input, t.output):
            with pytest.raises(TopologyError, match="'sales' is not a topic: declare it with its"):
                side(name)
        for wrong in (name, cast("Any", topic)):
            with pytest.raises(UsageError, match="is not a table: pass what"):
                t.table(wrong)
    with app.simulate(seed=1) as s, pytest.raises(TopologyError, match="'sales' is not a topic"):
        s.input(name)
