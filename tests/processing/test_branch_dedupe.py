from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Stream, on_error
from streamlog.dsl.topic import Topic
from streamlog.errors import ProcessingError, TopologyError


def app_of(
    program: Callable[[Stream[str, int]], Mapping[str, Stream[str, int]]], **settings: Any
) -> tuple[App, Topic[str, int], dict[str, Topic[str, int]]]:
    app = App("routes", **settings)
    source = app.topic("in", key=str, value=int)
    streams = program(app.stream(source))
    outs = {name: app.topic(f"out-{name}", key=str, value=int) for name in streams}
    for name, stream in streams.items():
        stream.to(outs[name])
    return app, source, outs


@given(st.lists(st.integers(-9, 9), max_size=12))
def test_each_record_goes_to_the_first_matching_branch(values: list[int]) -> None:
    app, source, outs = app_of(
        lambda s: s.split(
            negative=lambda _, v: v < 0, even=lambda _, v: v % 2 == 0, large=lambda _, v: v > 5
        )
    )
    with app.test() as t:
        for value in values:
            t.input(source).send(value, key="k")
        found = {name: t.output(out).values for name, out in outs.items()}
    assert found == {
        "negative": [v for v in values if v < 0],
        "even": [v for v in values if v >= 0 and v % 2 == 0],
        "large": [v for v in values if v > 5 and v % 2],
    }


def test_a_predicate_is_called_once_and_never_after_a_match() -> None:
    calls_seen: list[str] = []

    def predicate(name: str, *, answer: bool) -> Callable[[str, int], bool]:
        return lambda _, __: calls_seen.append(name) or answer  # type: ignore[func-returns-value]

    app, source, outs = app_of(
        lambda s: s.split(
            a=predicate("a", answer=False),
            b=predicate("b", answer=True),
            c=predicate("c", answer=True),
        )
    )
    with app.test() as t:
        t.input(source).send(1, key="k")
        assert t.output(outs["b"]).values == [1]
    assert calls_seen == ["a", "b"]


def test_merged_branches_keep_the_order_of_the_records() -> None:
    def program(stream: Stream[str, int]) -> Mapping[str, Stream[str, int]]:
        split = stream.split(odd=lambda _, v: v % 2 == 1, rest=lambda *_: True)
        return {"all": split["odd"].map_values(lambda v: -v).merge(split["rest"])}

    app, source, outs = app_of(program)
    with app.test() as t:
        for value in range(5):
            t.input(source).send(value, key="k")
        assert t.output(outs["all"]).values == [0, -1, 2, -3, 4]


def test_a_failing_predicate_is_subject_to_the_error_policy() -> None:
    app, source, outs = app_of(
        lambda s: s.split(big=lambda _, v: 10 // v > 5), on_error=on_error.skip()
    )
    with app.test() as t:
        for value in (1, 0, 2):
            t.input(source).send(value, key="k")
        assert t.output(outs["big"]).values == [1]


def test_a_split_needs_branches() -> None:
    with pytest.raises(TopologyError, match="split needs a branch"):
        app_of(lambda s: s.split())


def test_flat_map_and_filter_not_keep_timestamps_and_order() -> None:
    app = App("flat")
    source = app.topic("in", key=str, value=int)
    out = app.topic("out", key=int, value=str)

    def spread(key: str, value: int) -> list[tuple[int, str]]:
        return [(n, key) for n in range(value)]

    app.stream(source).filter_not(lambda _, v: v == 2).flat_map(spread, name="spread").to(out)
    with app.test() as t:
        for at, (key, value) in enumerate([("a", 1), ("b", 2), ("c", 0), ("d", 3)]):
            t.input(source).send(value, key=key, at=at)
        found = [(r.key, r.value, r.timestamp.microsecond) for r in t.output(out).records]
    assert found == [(0, "a", 0), (0, "d", 3000), (1, "d", 3000), (2, "d", 3000)]


def test_flat_map_results_can_be_grouped_by_their_new_keys() -> None:
    app = App("words")
    lines = app.topic("lines", key=str, value=str)
    words = app.stream(lines).flat_map(lambda _, v: [(w, 1) for w in v.split()], name="words")
    counts = words.group_by_key().count(name="counts")
    with app.test(partitions=3) as t:
        for line in ("a b a", "c", "b"):
            t.input(lines).send(line, key="x")
        assert t.table(counts) == {"a": 2, "b": 2, "c": 1}


def test_flat_map_must_return_pairs() -> None:
    wrong: Any = lambda _, v: [v]  # noqa: E731 - as a user writes it
    app, source, _ = app_of(lambda s: {"a": s.flat_map(wrong)})
    with app.test() as t, pytest.raises(ProcessingError, match="must return pairs"):
        t.input(source).send(1, key="k")


records = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 3), st.integers(0, 40)), max_size=20
)


@given(records, st.data())
def test_dedupe_drops_duplicates_within_the_given_time(
    inputs: list[tuple[str | None, int, int]], data: st.DataObject
) -> None:
    app, source, outs = app_of(lambda s: {"all": s.dedupe(lambda v: v, within="10ms", name="once")})
    passed: dict[tuple[str | None, int], int] = {}
    wanted: list[tuple[str | None, int]] = []
    now = 0
    with app.test() as t:
        for key, value, at in inputs:
            t.input(source).send(value, key=key, at=at)
            now = max(now, at)
            if now - passed.get((key, value), -99) >= 10:
                passed[key, value] = now
                wanted.append((key, value))
            if data.draw(st.booleans()):
                t.restart()
        assert [(r.key, r.value) for r in t.output(outs["all"]).records] == wanted


def test_dedupe_distinguishes_identities_by_type_and_value() -> None:
    app = App("identities")
    source = app.topic("in", key=str, value=list[Any])
    out = app.topic("out", key=str, value=list[Any])
    app.stream(source).dedupe(lambda v: v[0], within="1h", name="once").to(out)
    values = [[1], ["1"], [1.5], [None], [""], [[1]], [1], [None], [""]]
    with app.test() as t:
        for value in values:
            t.input(source).send(value, key="k", at=1)
        assert t.output(out).values == values[:6]


def test_headers_are_kept_by_every_operator() -> None:
    app = App("headers")
    source = app.topic("in", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    seen: list[Any] = []
    once = (
        app.stream(source).peek(lambda r: seen.append(r.headers)).dedupe(str, within="1h", name="d")
    )
    retimed = once.set_timestamp(lambda v: v)
    flat = retimed.flat_map(lambda k, v: [(f"{k}{n}", v) for n in range(2)], name="flat")
    flat.split(all=lambda *_: True)["all"].repartition(name="again").filter_not(
        lambda *_: False
    ).to(out)
    headers = (("trace", b"7"),)
    with app.test() as t:
        t.input(source).send(1, key="k", headers=dict(headers))
        t.input(source).send(2, key="k")
        found = [(r.key, tuple(r.headers or ())) for r in t.output(out).records]
    assert seen == [headers, ()]
    assert found == [("k0", headers), ("k1", headers), ("k0", ()), ("k1", ())]
