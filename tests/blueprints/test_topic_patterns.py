"""Topics by pattern against the merge of the same topics, which needs no pattern."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Stream
from streamlog.errors import TopologyError, UsageError

NAMES = ("orders-a", "orders-b", "orders-c")
Sends = list[tuple[int, str, int | None, int]]
"""Topic, key, value and event time in seconds."""
sends = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["x", "y", ""]),
        st.none() | st.integers(-3, 3),
        st.integers(0, 9),
    ),
    max_size=12,
)


def summed(stream: Any, out: Any) -> None:
    stream.filter(lambda _, value: value is not None).group_by_key().count(name="s").changes().to(
        out
    )


def mapped(stream: Any, out: Any) -> None:
    stream.map_values(lambda value: value).to(out)


def tabled(stream: Any, out: Any) -> None:
    stream.to_table(name="t").changes().to(out)


@given(shape=st.sampled_from([summed, mapped, tabled]), sent=sends, partitions=st.integers(1, 3))
def test_a_stream_by_pattern_is_the_merge_of_its_topics(
    shape: Callable[[Any, Any], None], sent: Sends, partitions: int
) -> None:
    by_pattern, by_name = App("same"), App("same")
    outs = [app.topic("out", key=str, value=int) for app in (by_pattern, by_name)]
    orders = by_pattern.topic_pattern("orders", r"orders-[a-z]", key=str, value=int)
    topics = [by_name.topic(name, key=str, value=int) for name in NAMES]
    shape(by_pattern.stream(orders), outs[0])
    shape(by_name.stream(*topics), outs[1])
    with (
        by_pattern.test(topics=[*NAMES, "returns"], partitions=partitions) as driver,
        by_name.test(partitions=partitions) as other,
    ):
        for topic, key, value, second in sent:
            at = f"2025-01-01T00:00:0{second}Z"
            driver.input(orders.topic(NAMES[topic])).send(value, key=key, at=at)
            other.input(topics[topic]).send(value, key=key, at=at)
        got, wanted = driver.output(outs[0]).records, other.output(outs[1]).records
        assert got == wanted


def test_a_topic_that_appears_continues_the_state_and_one_that_goes_leaves_its_rows() -> None:
    app = App("later")
    orders = app.topic_pattern("orders", re.compile("orders-.+"), key=str, value=int)
    out = app.topic("out", key=str, value=int)
    summed(app.stream(orders), out)
    with app.test(topics=["orders-a"]) as first:
        first.input(orders.topic("orders-a")).send(5, key="x")
        with app.test(topics=["orders-a", "orders-b"], after=first) as second:
            second.input(orders.topic("orders-b")).send(2, key="x")
            with app.test(topics=["orders-b"], after=second) as third:
                third.input(orders.topic("orders-b")).send(1, key="x")
                assert third.output(out).values == [1, 2, 3]


def test_an_agent_reads_all_topics_and_knows_which() -> None:
    app, seen = App("agents"), list[tuple[str, int]]()
    orders = app.topic_pattern("orders", "orders-.+", key=str, value=int)

    @app.agent(orders)
    async def audit(stream: Stream[str, int]) -> None:
        async for record in stream.records():
            seen.append((record.topic, record.value))

    with app.test(topics=NAMES) as driver:
        for number, name in enumerate(NAMES):
            driver.input(orders.topic(name)).send(number, key="x")
    assert seen == [*zip(NAMES, range(3), strict=True)]


def test_what_is_not_possible_is_refused_with_a_way_out() -> None:
    app = App("refused")
    orders = app.topic_pattern("orders", "orders-.+", key=str, value=int)
    with pytest.raises(TopologyError, match=r"\(\?i\)orders"):
        app.topic_pattern("flags", re.compile("a", re.IGNORECASE), key=str, value=int)
    with pytest.raises(TopologyError, match="no regular expression"):
        app.topic_pattern("broken", "(", key=str, value=int)
    with pytest.raises(TopologyError, match="takes one topic"):
        app.global_table(orders)
    with pytest.raises(TopologyError, match="history="):
        app.table(orders, history="1h")
    with pytest.raises(TopologyError, match="does not match"):
        orders.topic("returns")
    with pytest.raises(UsageError, match=r"orders\.topic\('NAME'\)"):
        asyncio.run(orders.send(1))
    with pytest.raises(TopologyError, match=r"orders\.topic\('NAME'\)"):
        app.stream(orders).to(orders)
    with pytest.raises(UsageError, match="pass their names"), app.test():
        pass
    app.topic("orders-total", key=str, value=int)
    with pytest.raises(TopologyError, match="would read it twice"):
        app.topology()


def test_two_patterns_share_no_topic() -> None:
    app = App("two")
    out = app.topic("out", key=str, value=int)
    for name, pattern in (("a", "orders-.+"), ("b", ".+-eu")):
        app.stream(app.topic_pattern(name, pattern, key=str, value=int)).to(out)
    with pytest.raises(TopologyError, match="'orders-eu' matches the patterns of 'a' and 'b'"):
        app.test(topics=["orders-eu"])
    with app.test(topics=["orders-us", "returns-eu"]):
        pass


def test_the_description_names_the_pattern() -> None:
    app = App("told")
    app.stream(app.topic_pattern("a", "orders-.+", key=str, value=int)).map_values(str)
    assert "Source a-source from topics that match orders-.+" in app.topology().describe()
