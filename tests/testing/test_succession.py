"""A newer version of an app continues where the driver of an older one stopped."""

from __future__ import annotations

import pytest

from streamlog import App, Stream, Topic
from streamlog.errors import StateLost, UsageError


def counting(name: str = "counted") -> tuple[App, Topic[str, int], Topic[str, int]]:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    counts = app.topic("counts", key=str, value=int)
    app.stream(sales).group_by_key().count(name=name).changes().to(counts)
    return app, sales, counts


def test_state_and_positions_are_kept() -> None:
    old, sales, _ = counting()
    new, _, counts = counting()
    with old.test(partitions=2) as before:
        for key in "ab":
            before.input(sales).send(1, key=key)
        before.advance("1h")
        with new.test(partitions=2, after=before) as t:
            assert t.now_ms == before.now_ms
            t.input(sales).send(1, key="a")
            assert [(row.key, row.value) for row in t.output(counts).records] == [
                ("a", 1),
                ("b", 1),
                ("a", 2),
            ]
            t.restart()
            t.input(sales).send(1, key="b")
            assert t.output(counts).values[-1] == 2
        with pytest.raises(UsageError, match="inside"):
            before.input(sales).send(1, key="a")


def test_a_version_that_would_lose_state_is_refused() -> None:
    old, sales, counts = counting()
    new, _, _ = counting("renamed")
    with old.test() as before:
        before.input(sales).send(1, key="a")
        with pytest.raises(StateLost, match="counted"):
            new.test(after=before)
        before.input(sales).send(1, key="a")
        assert before.output(counts).values == [1, 2]


def test_topics_keep_their_partition_counts() -> None:
    old, _, _ = counting()
    new, _, _ = counting()
    with old.test(partitions=2) as before, pytest.raises(UsageError, match="2 partitions"):
        new.test(partitions=3, after=before)


def test_agents_do_not_get_handled_records_again() -> None:
    notes: list[str] = []

    def telling(word: str) -> tuple[App, Topic[str, str]]:
        app = App("shop")
        names = app.topic("names", key=str, value=str)

        @app.agent(names)
        async def tell(stream: Stream[str, str]) -> None:
            async for name in stream:
                note = f"{word} {name}"
                notes.append(note)

        return app, names

    (old, names), (new, _) = telling("hello"), telling("welcome")
    with old.test() as before:
        before.input(names).send("ann")
        with new.test(after=before) as t:
            t.input(names).send("bob")
    assert notes == ["hello ann", "welcome bob"]
