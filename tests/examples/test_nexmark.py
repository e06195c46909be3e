"""Nexmark's queries on the test driver, compared with loops over all events."""

from __future__ import annotations

from typing import Any

import pytest

from examples.nexmark.answers import ANSWERS
from examples.nexmark.generator import STEP_MS, Auction, Bid, Person, events
from examples.nexmark.queries import QUERIES, Hottest, Query
from streamlog import Windowed
from streamlog.durations import when_ms

COUNT = 3_000
"""Half a minute of events."""
SLOWLY_MS = {"q11": 100}
"""Slower events, so that sessions end."""
CHANGING = {"q4", "q5", "q6"}
"""Queries with changing rows: the last row of a key counts."""


def plain(key: Any) -> Any:
    if not isinstance(key, Windowed):
        return key
    return key.key, when_ms(key.start), when_ms(key.end)


def in_order(value: Any) -> Any:
    return Hottest(value.bids, sorted(value.auctions)) if isinstance(value, Hottest) else value


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_equals_a_loop_over_all_events(name: str) -> None:
    happened = list(events(COUNT, step_ms=SLOWLY_MS.get(name, STEP_MS)))
    query = Query.of(name)
    with query.app.test() as t:
        for each in happened:
            topic, key = query.topic_of(each)
            if topic.name in query.app.topology().topics:
                t.input(topic).send(each, key=key, at=each.date_time)
        found = [(plain(r.key), in_order(r.value)) for r in t.output(query.output).records]
    if name in CHANGING:
        found = list(dict(found).items())
    expected = ANSWERS[name](happened)
    assert expected
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_generated_events_depend_only_on_the_seed() -> None:
    first, again = list(events(500)), list(events(500))
    assert first == again != list(events(500, seed=2))
    kinds = [sum(isinstance(each, kind) for each in first) for kind in (Person, Auction, Bid)]
    assert kinds == [10, 30, 460]
    assert [each.date_time for each in first] == sorted(each.date_time for each in first)
