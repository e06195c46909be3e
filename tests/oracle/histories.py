"""Random cases, by kind of operator: small topologies, and histories that are out of order.

Times, sizes and keys are few, so that records hit borders, collide, come late, and insert deleted
keys again. Any case may restart anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from hypothesis import strategies as st

from tests.golden.compare import Case

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Nodes: TypeAlias = list[dict[str, Any]]

KEYS = ("a", "b", "c")
VALUES = ("x", "y", "zz")
RECORDS_MAX = 24
CONCAT = {"fn": "concat", "sep": "+"}
LESS = {"fn": "concat", "sep": "-"}


def times(draw: Draw) -> st.SearchStrategy[int]:
    """Draw the times of a history: dense or spread."""
    return st.integers(0, draw(st.sampled_from([9, 30, 80])))


def records(
    draw: Draw,
    topics: dict[str, float],
    values: st.SearchStrategy[Any] | None = None,
    *,
    null_keys: bool = True,
) -> list[dict[str, Any]]:
    """Draw a history of topics, given with the probability that a value is null."""
    at = times(draw)
    keys = st.sampled_from([*KEYS, *KEYS, *KEYS, None] if null_keys else KEYS)
    one = st.tuples(
        st.sampled_from(sorted(topics)),
        keys,
        st.sampled_from(VALUES) if values is None else values,
        at,
        st.floats(0, 1),
    )
    found = [
        {"topic": topic, "key": key, "value": None if chance < topics[topic] else value, "ts": ts}
        for topic, key, value, ts, chance in draw(st.lists(one, max_size=RECORDS_MAX))
    ]
    if draw(st.booleans()):
        found.insert(draw(st.integers(0, len(found))), {"control": "restart"})
    return found


def case(name: str, nodes: Nodes, inputs: list[dict[str, Any]], order: str = "per_key") -> Case:
    return {
        "id": name,
        "category": name,
        "strictness": "core",
        "topology": [*nodes, {"id": "sink", "op": "sink", "of": nodes[-1]["id"], "topic": "out"}],
        "inputs": inputs,
        "expect": {"min_order": order},
    }


def _source(name: str, **more: Any) -> Nodes:
    return [{"id": name, "op": "stream", "topic": name, **more}]


def _table(draw: Draw, name: str, *, versioned: bool = False) -> Nodes:
    node: dict[str, Any] = {"id": name, "op": "table", "topic": name}
    if versioned:
        node["versioned"] = {"history": draw(st.sampled_from([5, 20, 100]))}
    return [node]


def _windows(draw: Draw, kind: str) -> dict[str, Any]:
    grace = draw(st.sampled_from([0, 0, 3, 20]))
    size = draw(st.sampled_from([1, 5, 10]))
    found: dict[str, Any] = {"id": "w", "op": "window", "type": kind, "grace": grace}
    match kind:
        case "sliding":
            return {**found, "difference": size}
        case "session":
            return {**found, "gap": size}
        case "hopping":
            return {**found, "size": size, "advance": draw(st.integers(1, size))}
        case _:
            return {**found, "size": size}


def _aggregation(draw: Draw, *, merges: bool = False) -> dict[str, Any]:
    merge = {"merge": {"fn": "append"}} if merges else {}
    return draw(
        st.sampled_from(
            [
                {"op": "count"},
                {"op": "reduce", "by": CONCAT},
                {"op": "aggregate", "init": "0", "add": CONCAT, **merge},
            ]
        )
    )


def windowed(kind: str, emit: str) -> st.SearchStrategy[Case]:
    @st.composite
    def build_case(draw: Draw) -> Case:
        nodes = [
            *_source("in"),
            {"id": "g", "op": "group_by_key", "of": "in"},
            {**_windows(draw, kind), "of": "g"},
            {"id": "agg", "of": "w", "emit": emit, **_aggregation(draw, merges=kind == "session")},
        ]
        return case(f"{kind} {emit}", nodes, records(draw, {"in": 0}))

    return build_case()


@st.composite
def grouped(draw: Draw) -> Case:
    by = draw(st.sampled_from([None, {"fn": "value_as_key"}]))
    group = {"op": "group_by_key"} if by is None else {"op": "group_by", "by": by}
    nodes = [
        *_source("in"),
        {"id": "g", "of": "in", **group},
        {"id": "agg", "of": "g", **_aggregation(draw)},
    ]
    return case("aggregate", nodes, records(draw, {"in": 0.0 if by else 0.2}))


def cogrouped(kind: str | None) -> st.SearchStrategy[Case]:
    @st.composite
    def build_case(draw: Draw) -> Case:
        adds = {"adds": [CONCAT, LESS], "init": "0"}
        agg = {"id": "agg", "op": "cogroup", "of": ["g1", "g2"], **adds}
        nodes = [
            *_source("one"),
            *_source("two"),
            {"id": "g1", "op": "group_by_key", "of": "one"},
            {"id": "g2", "op": "group_by_key", "of": "two"},
        ]
        if kind is not None:
            nodes.append({**_windows(draw, kind), "of": "g1"})
            agg |= {"window": "w", "emit": draw(st.sampled_from(["on_update", "on_close"]))}
            agg |= {"merge": {"fn": "append"}} if kind == "session" else {}
        return case(f"cogroup {kind}", [*nodes, agg], records(draw, {"one": 0, "two": 0}))

    return build_case()


@st.composite
def table(draw: Draw) -> Case:
    by = {"by": {"fn": "value_mod", "n": 2}}
    view = draw(st.sampled_from(["table_filter", "table_filter_not", "to_stream"]))
    nodes = [*_table(draw, "in"), {"id": "v", "op": view, "of": "in", **by}]
    if view == "to_stream":
        del nodes[-1]["by"]
    return case("table", nodes, records(draw, {"in": 0.3}, st.integers(0, 3)))


def table_grouped(*, versioned: bool) -> st.SearchStrategy[Case]:
    @st.composite
    def build_case(draw: Draw) -> Case:
        by = draw(st.sampled_from(["swap", "identity", "value_as_key", "value_as_key_with_nulls"]))
        numbers = by == "identity" and draw(st.booleans())
        summing = {"op": "reduce", "add": {"fn": "sum"}, "sub": {"fn": "sub"}}
        texts = {"op": "aggregate", "init": "0", "add": CONCAT, "sub": LESS}
        agg = summing if numbers else draw(st.sampled_from([texts, {"op": "count"}]))
        nodes = [
            *_table(draw, "in", versioned=versioned),
            {"id": "g", "op": "group_by", "of": "in", "by": {"fn": by}},
            {"id": "agg", "of": "g", **agg},
        ]
        values = st.integers(0, 3) if numbers else None
        # Engines differ on whether rows without a key advance a versioned table's time.
        inputs = records(draw, {"in": 0.3}, values, null_keys=not versioned)
        return case(f"table grouped {versioned}", nodes, inputs)

    return build_case()


def table_joined(how: str, *, versioned: bool = False) -> st.SearchStrategy[Case]:
    @st.composite
    def build_case(draw: Draw) -> Case:
        join = {"kind": "table_table", "how": how, "joiner": CONCAT}
        nodes = [
            *_table(draw, "left", versioned=versioned),
            *_table(draw, "right", versioned=versioned and draw(st.booleans())),
            {"id": "j", "op": "join", "of": ["left", "right"], **join},
        ]
        inputs = records(draw, {"left": 0.3, "right": 0.3}, null_keys=not versioned)
        return case(f"table join {how}", nodes, inputs)

    return build_case()


def table_two_paths(how: str) -> st.SearchStrategy[Case]:
    """A table that reaches a join along two paths: through a filter, and through another join."""

    @st.composite
    def build_case(draw: Draw) -> Case:
        join = {"op": "join", "kind": "table_table", "joiner": CONCAT}
        hows = st.sampled_from(["inner", "left", "outer"])
        nodes = [
            *_table(draw, "t"),
            *_table(draw, "u"),
            {"id": "f", "op": "table_filter", "of": "t", "by": {"fn": "value_mod", "n": 2}},
            {"id": "j", "of": draw(st.permutations(["f", "u"])), "how": draw(hows), **join},
            {"id": "k", "of": draw(st.permutations(["t", "j"])), "how": how, **join},
        ]
        return case(f"meeting {how}", nodes, records(draw, {"t": 0.3, "u": 0.3}, st.integers(0, 3)))

    return build_case()


def foreign_joined(how: str) -> st.SearchStrategy[Case]:
    @st.composite
    def build_case(draw: Draw) -> Case:
        nodes = [
            *_table(draw, "left"),
            *_table(draw, "right"),
            {
                "id": "j",
                "op": "join",
                "kind": "table_table_fk",
                "how": how,
                "of": ["left", "right"],
                "foreign_key": {"fn": "value_after_bar"},
                "joiner": {"fn": "pair"},
            },
        ]
        values = st.sampled_from(["1|a", "2|a", "1|b", "3|c", "4"])
        return case(f"fk {how}", nodes, records(draw, {"left": 0.3, "right": 0.3}, values))

    return build_case()


def enriched(how: str, table: str) -> st.SearchStrategy[Case]:
    """Join a stream with a table: "plain", "versioned", with "grace", or "global"."""

    @st.composite
    def build_case(draw: Draw) -> Case:
        join: dict[str, Any] = {"kind": "stream_table", "how": how, "joiner": CONCAT}
        rows = _table(draw, "right", versioned=table in {"versioned", "grace"})
        if table == "grace":
            join["grace"] = draw(st.integers(0, rows[0]["versioned"]["history"]))
        if table == "global":
            rows[0]["op"] = "global_table"
            lookup = {"fn": "lookup_value", "map": {"x": "a", "y": "b"}}
            join |= {"kind": "stream_global_table", "lookup": lookup}
        node = {"id": "j", "op": "join", "of": ["left", "right"], **join}
        # The oracle leaves open whether records without a value advance the time of waiting ones.
        nulls = 0.0 if table in {"global", "grace"} else 0.1
        has_null_keys = how == "inner" and table in {"plain", "global"}
        inputs = records(draw, {"left": nulls, "right": 0.3}, null_keys=has_null_keys)
        return case(f"stream {table} table {how}", [*_source("left"), *rows, node], inputs)

    return build_case()


def stream_joined(how: str) -> st.SearchStrategy[Case]:
    @st.composite
    def build_case(draw: Draw) -> Case:
        before, after = draw(st.tuples(st.integers(-3, 10), st.integers(-3, 10)))
        if before + after < 0:
            before, after = -before, -after
        grace = draw(st.sampled_from([0, 3, 100]))
        join = {"before": before, "after": after, "grace": grace, "joiner": CONCAT}
        nodes = [
            *_source("left"),
            *_source("right"),
            {"id": "j", "op": "join", "kind": "stream_stream", "how": how, **join},
        ]
        nodes[-1]["of"] = ["left", "right"]
        inputs = records(draw, {"left": 0.1, "right": 0.1})
        over = draw(st.sampled_from([60, 150, 300]))
        inputs.append({"topic": "right", "key": "last", "value": "end", "ts": over})
        return case(f"near {how}", nodes, inputs)

    return build_case()


@st.composite
def suppressed_windows(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["tumbling", "hopping", "session"]))
    nodes = [
        *_source("in"),
        {"id": "g", "op": "group_by_key", "of": "in"},
        {**_windows(draw, kind), "of": "g"},
        {"id": "agg", "op": "count", "of": "w", "emit": "on_update"},
        {"id": "s", "op": "suppress", "of": "agg", "until": "window_closes"},
    ]
    return case("suppress windows", nodes, records(draw, {"in": 0}))


@st.composite
def suppressed(draw: Draw) -> Case:
    limits = draw(
        st.sampled_from(
            [{"ms": 10}, {"ms": 3}, {"ms": None, "max_records": 1}, {"ms": 5, "max_records": 2}]
        )
    )
    nodes = [
        *_table(draw, "in"),
        {"id": "s", "op": "suppress", "of": "in", "until": "time_limit", **limits},
    ]
    return case("suppress", nodes, records(draw, {"in": 0.2}))


@st.composite
def stateless(draw: Draw) -> Case:
    """Draw a chain of a few operators."""
    mod = {"fn": "value_mod", "n": 2}
    choices = [
        {"op": "filter", "by": mod},
        {"op": "filter_not", "by": {"fn": "value_mod", "n": 3}},
        {"op": "map", "by": {"fn": "value_as_key"}},
        {"op": "map", "by": {"fn": "int_value"}},
        {"op": "select_key", "by": {"fn": "lookup_value", "map": {"1": "ONE", "2": "TWO"}}},
        {"op": "repartition"},
        {"op": "branch"},
        {"op": "merge"},
    ]
    nodes = _source("in")
    for number, chosen in enumerate(draw(st.lists(st.sampled_from(choices), max_size=4))):
        last, name = nodes[-1]["id"], f"n{number}"
        if chosen["op"] == "branch":
            nodes.append(
                {
                    "id": f"{name}-all",
                    "op": "branch",
                    "of": last,
                    "branches": [mod, {"fn": "always"}],
                }
            )
            nodes.append(
                {
                    "id": name,
                    "op": "branch_out",
                    "of": f"{name}-all",
                    "branch": draw(st.integers(0, 1)),
                }
            )
        elif chosen["op"] == "merge":
            nodes.append({"id": name, "op": "merge", "of": [last, "in"]})
        else:
            nodes.append({"id": name, "of": last, **chosen})
    return case("stateless", nodes, records(draw, {"in": 0}, st.integers(0, 6)))


KINDS: dict[str, st.SearchStrategy[Case]] = {
    **{
        f"{kind} {emit}": windowed(kind, emit)
        for kind in ("tumbling", "hopping", "sliding", "session")
        for emit in ("on_update", "on_close")
    },
    "aggregate": grouped(),
    **{f"cogroup {kind}": cogrouped(kind) for kind in (None, "tumbling", "sliding", "session")},
    "table": table(),
    "table aggregate": table_grouped(versioned=False),
    "versioned table aggregate": table_grouped(versioned=True),
    **{f"table join {how}": table_joined(how) for how in ("inner", "left", "outer")},
    **{
        f"versioned table join {how}": table_joined(how, versioned=True)
        for how in ("inner", "left", "outer")
    },
    **{f"table meeting {how}": table_two_paths(how) for how in ("inner", "left", "outer")},
    **{f"foreign key join {how}": foreign_joined(how) for how in ("inner", "left")},
    **{
        f"stream with {table} table {how}": enriched(how, table)
        for table in ("plain", "versioned", "grace", "global")
        for how in ("inner", "left")
    },
    **{f"stream with stream {how}": stream_joined(how) for how in ("inner", "left", "outer")},
    "suppress windows": suppressed_windows(),
    "suppress": suppressed(),
    "stateless": stateless(),
}
"""Strategies of cases by kind of operator."""
