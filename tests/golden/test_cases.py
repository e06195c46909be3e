"""Input and output facts of other stream processors, replayed on the test driver.

`STREAMLOG_GOLDEN` names a file of cases: neutral topologies, inputs, and what must come out.
Cases with operators that streamlog does not have are skipped by name, the others must hold.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamlog import App, Emit, Windowed, tumbling
from streamlog.durations import when_ms
from streamlog.errors import StreamlogError
from streamlog.serdes import WindowedSerde, serde_for

ANYTHING = serde_for(Any)

Case = dict[str, Any]


def cases() -> list[Case]:
    path = os.environ.get("STREAMLOG_GOLDEN")
    return json.loads(Path(path).read_text())["cases"] if path else []


class Unsupported(Exception):
    """The case needs an operator that is not there."""


def text(value: object) -> str:
    return "null" if value is None else str(value)


def mapper(spec: Case) -> Callable[[Any, Any], tuple[Any, Any]]:
    match spec["fn"]:
        case "identity":
            return lambda k, v: (k, v)
        case "swap":
            return lambda k, v: (v, k)
        case "value_as_key":
            return lambda _, v: (v, v)
        case "int_value":
            return lambda k, v: (k, int(v))
        case name:
            raise Unsupported(name)


def value_mapper(spec: Case) -> Callable[[Any], Any]:
    match spec["fn"]:
        case "length":
            return len
        case "first_digit":
            return lambda v: ord(v[0]) - 48
        case name:
            raise Unsupported(name)


def key_of(spec: Case) -> Callable[[Any, Any], Any]:
    match spec["fn"]:
        case "lookup_value":
            return lambda _, v: spec["map"].get(text(v))
        case "split_value":
            return lambda _, v: dict(enumerate(v.split(spec["sep"]))).get(spec["index"])
        case name:
            return lambda k, v: mapper({"fn": name})(k, v)[0]


def predicate(spec: Case, *, negated: bool) -> Callable[[Any, Any], bool]:
    match spec["fn"]:
        case "key_mod":
            return lambda k, _: (k % spec["n"] == 0) is not negated
        case "value_mod":
            return lambda _, v: (v % spec["n"] == 0) is not negated
        case "key_negative":
            return lambda k, _: (k < 0) is not negated
        case "always":
            return lambda _k, _v: not negated
        case name:
            raise Unsupported(name)


def adder(spec: Case) -> Callable[[Any, Any], Any]:
    adders: dict[str, Callable[[Any, Any], Any]] = {
        "concat": lambda state, v: text(state) + spec["sep"] + text(v),
        "append": lambda state, v: state + text(v),
        "sum": lambda state, v: state + v,
        "sum_int": lambda state, v: state + int(v),
        "sub": lambda state, v: state - v,
        "max": max,
        "min": min,
        "collect": lambda state, v: [*state, v],
    }
    if spec["fn"] not in adders:
        raise Unsupported(spec["fn"])
    return adders[spec["fn"]]


def joiner(spec: Case) -> Callable[[Any, Any], Any]:
    match spec["fn"]:
        case "concat":
            return lambda left, right: text(left) + spec["sep"] + text(right)
        case "pair":
            return lambda left, right: f"({text(left)},{text(right)})"
        case "sum":
            return lambda left, right: left + right
        case name:
            raise Unsupported(name)


class Adapter:
    """A case's topology as an app."""

    def __init__(self, case: Case) -> None:
        self.app = App("golden")
        self.case = case
        self.made: dict[str, Any] = {}
        self.topics: dict[str, Any] = {}
        for node in case["topology"]:
            self.made[node["id"]] = getattr(self, f"op_{node['op']}", self.unsupported)(node)

    def unsupported(self, node: Case) -> None:
        raise Unsupported(node["op"])

    def topic(self, name: str, *, windowed: bool = False) -> Any:
        if name not in self.topics:
            key = WindowedSerde(ANYTHING) if windowed else ANYTHING
            self.topics[name] = self.app.topic(
                name, key=object, value=object, key_serde=key, value_serde=ANYTHING
            )
        return self.topics[name]

    def of(self, node: Case) -> Any:
        return self.made[node["of"]]

    def op_stream(self, node: Case) -> Any:
        return self.app.stream(self.topic(node["topic"]))

    def op_table(self, node: Case) -> Any:
        if "versioned" in node:
            raise Unsupported("versioned")
        return self.app.table(self.topic(node["topic"]), name=node["id"])

    def op_map(self, node: Case) -> Any:
        return self.of(node).map(mapper(node["by"]), name=node["id"])

    def op_map_values(self, node: Case) -> Any:
        return self.of(node).map_values(value_mapper(node["by"]))

    def op_flat_map_values(self, node: Case) -> Any:
        if node["by"]["fn"] != "prefix_v_V":
            raise Unsupported(node["by"]["fn"])
        return self.of(node).flat_map_values(lambda v: ["v" + v, "V" + v])

    def op_filter(self, node: Case) -> Any:
        return self.of(node).filter(predicate(node["by"], negated=False))

    def op_filter_not(self, node: Case) -> Any:
        return self.of(node).filter(predicate(node["by"], negated=True))

    op_table_filter = op_filter
    op_table_filter_not = op_filter_not
    op_table_map_values = op_map_values

    def op_select_key(self, node: Case) -> Any:
        return self.of(node).rekey(key_of(node["by"]), name=node["id"])

    def op_merge(self, node: Case) -> Any:
        first, *others = (self.made[each] for each in node["of"])
        return first.merge(*others)

    def op_repartition(self, node: Case) -> Any:
        return self.of(node).repartition(name=node["id"])

    def op_to_stream(self, node: Case) -> Any:
        if "by" in node:
            raise Unsupported("to_stream with a new key")
        return self.of(node).changes()

    def op_group_by_key(self, node: Case) -> Any:
        return self.of(node).group_by_key()

    def op_group_by(self, node: Case) -> Any:
        if not hasattr(self.of(node), "group_by"):
            raise Unsupported("group_by of a table")
        return self.of(node).group_by(key_of(node["by"]), name=node["id"])

    def op_window(self, node: Case) -> Any:
        if node["type"] != "tumbling":
            raise Unsupported(node["type"])
        spec = tumbling(f"{node['size']}ms", grace=f"{node['grace']}ms")
        return self.of(node).windowed(spec)

    def aggregated(self, node: Case) -> Any:
        grouped = self.of(node)
        if hasattr(grouped, "emit"):
            close = node.get("emit", self.case["emit"]) == "on_close"
            return grouped.emit(Emit.CLOSE if close else Emit.UPDATE)
        return grouped

    def op_count(self, node: Case) -> Any:
        return self.aggregated(node).count(name=node["id"])

    def op_reduce(self, node: Case) -> Any:
        return self.aggregated(node).reduce(adder(node["by"]), name=node["id"])

    def op_aggregate(self, node: Case) -> Any:
        if "sub" in node:
            raise Unsupported("a subtractor")
        init = node["init"]
        return self.aggregated(node).aggregate(lambda: init, adder(node["add"]), name=node["id"])

    def op_join(self, node: Case) -> Any:
        if node["kind"] != "stream_table" or "grace" in node:
            raise Unsupported(node["kind"])
        stream, table = (self.made[each] for each in node["of"])
        join = stream.join if node["how"] == "inner" else stream.left_join
        return join(table, joiner(node["joiner"]))

    def op_sink(self, node: Case) -> Any:
        made = self.of(node)
        stream = made.changes() if hasattr(made, "changes") else made
        windowed = hasattr(made, "side") and made.side.is_windowed
        stream.to(self.topic(node["topic"], windowed=windowed))


def expected_rows(case: Case) -> dict[Any, list[Case]]:
    rows: dict[Any, list[Case]] = defaultdict(list)
    for row in case["expect"]["outputs"]:
        at = (row.get("topic", "out"), json.dumps(row["key"]), str(row.get("window")))
        rows[at].append(row)
    return rows


def actual_rows(case: Case, adapter: Adapter) -> dict[Any, list[Case]]:
    rows: dict[Any, list[Case]] = defaultdict(list)
    outputs = [node["topic"] for node in case["topology"] if node["op"] == "sink"]
    with adapter.app.test() as t:
        for after, record in enumerate(case["inputs"]):
            if record.get("control") == "restart":
                t.restart()
                continue
            topic = adapter.topics[record["topic"]]
            t.input(topic).send(record["value"], key=record["key"], at=record["ts"])
            for name in outputs:
                while t.output(adapter.topics[name]).records:
                    out = t.output(adapter.topics[name]).pop()
                    key, window = out.key, None
                    if isinstance(key, Windowed):
                        key, window = key.key, [when_ms(key.start), when_ms(key.end)]
                    row = {"value": out.value, "ts": when_ms(out.timestamp), "after": after}
                    rows[name, json.dumps(key), str(window)].append(row)
    return rows


def matches(wanted: list[Case], found: list[Case], *, final_only: bool) -> bool:
    """Whether the rows are those wanted, in order; optional ones may be missing."""
    if final_only:
        return (wanted[-1:] or [{"value": None}])[0]["value"] == (found[-1:] or [{"value": None}])[
            0
        ]["value"]
    if not wanted:
        return not found
    if found and same(wanted[0], found[0]) and matches(wanted[1:], found[1:], final_only=False):
        return True
    return bool(wanted[0].get("optional")) and matches(wanted[1:], found, final_only=False)


def same(wanted: Case, found: Case) -> bool:
    if wanted["value"] != found["value"]:
        return False
    return all(wanted.get(name) in (None, found[name]) for name in ("ts", "after"))


@pytest.mark.skipif(not cases(), reason="STREAMLOG_GOLDEN names no file of cases")
@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_case(case: Case) -> None:
    if "fact" in case:
        check_fact(case["fact"])
        return
    try:
        adapter = Adapter(case)
    except Unsupported as missing:
        pytest.skip(f"not there yet: {missing}")
    wanted, found = expected_rows(case), actual_rows(case, adapter)
    final_only = case["expect"]["min_order"] == "final_state"
    for at in {*wanted, *found}:
        assert matches(wanted[at], found[at], final_only=final_only), (at, wanted[at], found[at])


def check_fact(fact: Case) -> None:
    match fact["kind"]:
        case "config":
            known = [q for q in fact["queries"] if q["spec"] in {"tumbling", "window_retention"}]
            if not known:
                pytest.skip("not there yet: such windows")
            for query in known:
                assert is_valid(query) == query["valid"], query
        case "windows_for" if fact["size"] == fact["advance"]:
            pytest.skip("tumbling windows are in other cases")
        case "murmur2":
            pytest.skip("checked with the producer")
        case kind:
            pytest.skip(f"not there yet: {kind}")


def is_valid(query: Case) -> bool:
    try:
        spec = tumbling(
            f"{query['size']}ms",
            grace=f"{query.get('grace', 0)}ms",
            retention=f"{query['retention']}ms" if "retention" in query else None,
        )
    except StreamlogError:
        return False
    return bool(spec.size_ms == query["size"])
