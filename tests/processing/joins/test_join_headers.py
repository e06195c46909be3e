"""Headers of joins: what both records have, whichever came first, after restarts as before."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, JoinWindow, on_error
from streamlog.processing.joins.join_buffer import agreed_headers
from streamlog.record import Headers
from tests.processing.test_with_headers import app_of

VALUES = st.sampled_from([None, b"", b"\xff", b"1", b"2"])
HEADERS = st.lists(st.tuples(st.sampled_from("abc"), VALUES), max_size=6).map(tuple)
TRACES = [
    {"traceparent": f"00-{n:032x}-{n:016x}-01".encode(), "tracestate": b"x=%d" % n} for n in (1, 2)
]


def by_definition(left: Headers, right: Headers) -> Headers:
    """A name is kept if both records have the same values of it, in the same order."""

    def values(headers: Headers, name: str) -> list[bytes | None]:
        return [value for each, value in headers if each == name]

    return tuple(each for each in left if values(left, each[0]) == values(right, each[0]))


@given(HEADERS, HEADERS)
def test_the_headers_of_a_pair_are_those_that_both_records_have(
    left: Headers, right: Headers
) -> None:
    assert agreed_headers(left, right) == by_definition(left, right)
    assert Counter(agreed_headers(left, right)) == Counter(agreed_headers(right, left))
    assert agreed_headers(left, left) == left


def at_ms(time_ms: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + time_ms / 1000, UTC)


def drawn(random: Random) -> dict[str, bytes]:
    return {random.choice("abc"): random.choice([b"", b"1"]) for _ in range(random.randint(0, 3))}


@pytest.mark.parametrize("seed", range(12))
def test_pairs_do_not_depend_on_which_record_came_last_nor_on_restarts(seed: int) -> None:
    random = Random(seed)
    app = App("pairs")
    left = app.topic("left", key=str, value=int)
    right = app.topic("right", key=str, value=int)
    out = app.topic("out", key=str, value=tuple[int | None, int | None])
    app.stream(left).outer_join(
        app.stream(right), lambda a, b: (a, b), within=JoinWindow.of("10s", grace="5s"), name="j"
    ).to(out)
    given_headers: tuple[list[dict[str, bytes]], list[dict[str, bytes]]] = ([], [])
    pairs: Counter[tuple[Any, Headers]] = Counter()
    alone: Counter[tuple[Any, Headers]] = Counter()
    with app.test() as t:
        for number in range(60):
            side = random.randint(0, 1)
            given_headers[side].append(drawn(random))
            value = len(given_headers[side]) - 1
            t.input((left, right)[side]).send(
                value,
                key=random.choice("xy"),
                at=at_ms(number * 500 + random.randint(-4_000, 4_000)),
                headers=given_headers[side][-1],
            )
            if random.random() < 0.1:
                t.restart()
        for topic in left, right:
            t.input(topic).send(0, key="z", at=at_ms(90_000_000))
        for record in t.output(out).records:
            if record.key != "z":
                found = pairs if None not in record.value else alone
                found[record.value, record.headers] += 1
    assert len(pairs) > 20
    lefts, rights = ([tuple(each.items()) for each in side] for side in given_headers)
    for (a, b), headers in pairs:
        assert headers == by_definition(lefts[a], rights[b])
    for (a, b), headers in alone:
        assert headers == (lefts[a] if b is None else rights[b])


@pytest.mark.parametrize("is_left_last", [False, True])
def test_a_pair_continues_the_trace_of_the_record_that_caused_it(is_left_last: bool) -> None:
    app = App("pairs")
    topics = [app.topic(name, key=str, value=int) for name in ("left", "right")]
    out = app.topic("out", key=str, value=int)
    left, right = map(app.stream, topics)
    left.join(right, lambda a, b: a + b, within="10s", name="j").to(out)
    order = [1, 0] if is_left_last else [0, 1]
    with app.test() as t:
        for side in order:
            t.input(topics[side]).send(1, key="k", headers={"own": b"%d" % side, **TRACES[side]})
        assert dict(t.output(out).pop().headers) == TRACES[order[-1]]


def test_the_dead_letter_of_a_pair_has_the_headers_as_they_were_read() -> None:
    app = App("pairs", on_error=on_error.dlq())
    topics = [app.topic(name, key=str, value=int) for name in ("left", "right")]
    out = app.topic("out", key=str, value=float)
    left, right = map(app.stream, topics)
    left.join(right, lambda a, b: a / b, within="10s", name="j").to(out)
    with app.test() as t:
        t.input(topics[1]).send(0, key="k", headers={"side": b"right", "both": b"1"})
        t.input(topics[1]).send(2, key="k", headers={"both": b"1"})
        t.input(topics[0]).send(8, key="k", headers={"side": b"left", "both": b"1"})
        record = t.output(out).pop()
        assert (record.value, record.headers) == (4.0, (("both", b"1"),))
        (letter,) = t.dead_letters()
        assert letter.headers[:2] == (("side", b"left"), ("both", b"1"))


def test_a_join_with_a_table_has_the_headers_of_the_streams_record() -> None:
    """A row of a table has no headers that could agree or not."""
    app, entry, out = app_of()
    rows = app.topic("rows", key=str, value=int, partitions=2, compact=True)
    table = app.table(rows, history="1d")
    app.stream(entry).join(table, lambda a, b: a + b, name="now").to(out)
    app.stream(entry).left_join(table, lambda a, _: a, as_of=True, name="then").to(out)
    copies = app.global_table(app.topic("copies", key=str, value=int, compact=True))
    app.stream(entry).lookup(copies, lambda key, _: key, lambda a, _: a).to(out)
    with app.test() as t:
        t.input(rows).send(1, key="k", headers={"of": b"row"})
        t.input(entry).send(2, key="k", headers={"of": b"record"})
        assert [record.headers for record in t.output(out).records] == 3 * [(("of", b"record"),)]
