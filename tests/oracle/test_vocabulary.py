"""Every word of the vocabulary, also words that no golden case uses: driver and oracle agree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.compare import differing
from tests.golden.runners import run_on_driver
from tests.oracle.histories import Nodes, case
from tests.oracle.program import run_on_oracle

TEXTS = ["one", "2|b", "12", "1,a", "x", "12", "a|NULL"]
NUMBERS = [3, 8, 3, 0, 12, 7]


def history(keys: list[Any], values: list[Any]) -> list[dict[str, Any]]:
    return [
        {"topic": "in", "key": keys[at % len(keys)], "value": value, "ts": at * 4 % 19}
        for at, value in enumerate([*values, *values])
    ]


def on_stream(*nodes: dict[str, Any]) -> Nodes:
    return _chain({"op": "stream", "topic": "in"}, nodes)


def on_table(*nodes: dict[str, Any]) -> Nodes:
    return _chain({"op": "table", "topic": "in"}, nodes)


def _chain(source: dict[str, Any], nodes: tuple[dict[str, Any], ...]) -> Nodes:
    found: Nodes = [{"id": "n0", **source}]
    for number, node in enumerate(nodes, 1):
        found.append({"id": f"n{number}", "of": f"n{number - 1}", **node})
    return found


def by(op: str, fn: str, **more: Any) -> dict[str, Any]:
    return {"op": op, "by": {"fn": fn, **more}}


GROUP = {"op": "group_by_key"}
SESSIONS = {"op": "window", "type": "session", "gap": 3, "grace": 5}


def aggregate_by(fn: str, init: Any, **more: Any) -> dict[str, Any]:
    return {"op": "aggregate", "init": init, "add": {"fn": fn, **more}}


STREAMS = [
    *((by("map", fn), ["ab", "cd"], TEXTS) for fn in ("identity", "swap", "value_as_key")),
    *((by("map", fn), ["ab", "cd"], TEXTS) for fn in ("split_key", "region_and_length")),
    (by("map", "int_value"), ["a"], ["3", "12"]),
    *((by("map_values", fn), [1, 2], TEXTS) for fn in ("length", "length_plus_key")),
    (by("map_values", "first_digit"), [1, 2], TEXTS),
    (by("flat_map", "repeat_by_key"), [0, 1, 3], TEXTS),
    *((by("flat_map_values", f"prefix_v_{fn}"), [1, 2], TEXTS) for fn in "Vk"),
    (by("select_key", "lookup_value", map={"x": "X", "12": "Y"}), [1], TEXTS),
    (by("select_key", "split_value", sep=",", index=1), [1], TEXTS),
    (by("select_key", "value_after_bar"), [1], TEXTS),
    (by("select_key", "value_after_bar", null_word="NULL"), [1], TEXTS),
    (by("select_key", "null"), [1], TEXTS),
    *((by(op, "key_mod", n=2), [1, 2, 4], TEXTS) for op in ("filter", "filter_not")),
    *((by(op, "value_mod", n=4), [1], NUMBERS) for op in ("filter", "filter_not")),
    (by("filter", "key_negative"), [-1, 2], TEXTS),
    (by("filter", "always"), [1], TEXTS),
    ({"op": "repartition"}, [1, None], TEXTS),
]
TABLES = [
    *((by("table_map_values", fn), [1, 2], TEXTS) for fn in ("length", "length_plus_key")),
    *((by(op, "key_negative"), [-1, 2], TEXTS) for op in ("table_filter", "table_filter_not")),
    (by("to_stream", "value_as_key"), [1, 2], TEXTS),
    ({"op": "to_stream"}, [1, 2], [*TEXTS, None]),
]
FOLDS = [
    *((aggregate_by(fn, 10), NUMBERS) for fn in ("sum", "sub", "count")),
    (aggregate_by("sum_int", 0), ["1", "12"]),
    *((aggregate_by(fn, "12|"), TEXTS) for fn in ("append", "remove_all", "sorted_append")),
    (aggregate_by("concat", "", sep="/"), TEXTS),
    (aggregate_by("collect", []), TEXTS),
    *((by("reduce", fn), NUMBERS) for fn in ("sum", "sub", "max", "min")),
    (by("reduce", "concat", sep="/"), TEXTS),
]
MERGES = [
    *(({**aggregate_by("sum", 0), "merge": {"fn": fn}}, NUMBERS) for fn in ("sum", "max", "min")),
    ({**aggregate_by("append", "", sep="/"), "merge": {"fn": "concat", "sep": "/"}}, TEXTS),
    (by("reduce", "max"), NUMBERS),
    ({"op": "count"}, TEXTS),
]
SUBTRACTED = [
    ({"op": "count"}, TEXTS),
    ({"op": "reduce", "add": {"fn": "sum"}, "sub": {"fn": "sub"}}, NUMBERS),
    ({**aggregate_by("append", ""), "sub": {"fn": "remove_all"}}, ["x", "y", "xy"]),
    ({**aggregate_by("sum", 0), "sub": {"fn": "sub"}}, NUMBERS),
]
PROGRAMS = [
    *((on_stream(node), history(keys, values)) for node, keys, values in STREAMS),
    *((on_table(node), history(keys, values)) for node, keys, values in TABLES),
    *((on_stream(GROUP, node), history(["a", "b"], values)) for node, values in FOLDS),
    *((on_stream(GROUP, SESSIONS, node), history(["a", "b"], values)) for node, values in MERGES),
    *(
        (on_table(by("group_by", fn), node), history(["ab", "cd", "null", "NULL"], values))
        for node, values in SUBTRACTED
        for fn in ("identity", "value_as_key", "value_as_key_with_nulls")
    ),
    (
        on_table(
            by("group_by", "swap"),
            {**aggregate_by("sorted_append", ""), "sub": {"fn": "remove_all"}},
        ),
        history(["a", "b", "c"], ["x", "y", None]),
    ),
    (
        on_table(
            by("group_by", "region_and_length"), {**aggregate_by("sum", 0), "sub": {"fn": "sub"}}
        ),
        history(["a", "bc", "def"], ["x", "y", None]),
    ),
    (
        on_table(by("group_by", "split_key"), {"op": "count"}),
        history(["ax", "bx", "ay"], ["x", "y", None]),
    ),
]


def _named(program: tuple[Nodes, Any]) -> str:
    return "-".join(
        str(node.get("by", node.get("add", {})).get("fn", node["op"])) for node in program[0][1:]
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=_named)
def test_driver_and_oracle_agree_on_each_word(program: tuple[Nodes, list[dict[str, Any]]]) -> None:
    nodes, inputs = program
    word_case = {**case("word", nodes, inputs), "emit": "on_update"}
    found = run_on_driver(word_case)
    assert differing("per_key", run_on_oracle(word_case), found) is None, json.dumps(word_case)
