"""The expected rows of a case, by definition: each operator over its whole input.

The oracle uses nothing of streamlog. It is slow (nested loops) and short, so that a reader can
check it; the cases of other stream processors check it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.golden.compare import Case, Row
from tests.golden.functions import (
    Unsupported,
    adder,
    flat_mapper,
    joiner,
    key_of,
    mapper,
    predicate,
    value_mapper,
)
from tests.oracle import joins, tables, windows
from tests.oracle.flows import Answers, Event, Flow, Spec, apply_each, merge_events


def run_on_oracle(case: Case) -> list[Row]:
    """Return the expected rows; deletions of absent rows are optional."""
    return Oracle(case).rows


class Oracle:
    """A run of a case's topology."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._number = 0
        self._flows: dict[str, Flow] = {}
        self._nodes = {node["id"]: node for node in case["topology"]}
        self._outputs: list[tuple[str, Flow]] = []
        for number, node in enumerate(case["topology"]):
            self._number = number
            operation = getattr(self, f"op_{node['op']}", None)
            if operation is None:
                raise Unsupported(f"operation {node['op']!r}")
            self._flows[node["id"]] = operation(node, *self._parents(node))

    @property
    def rows(self) -> list[Row]:
        """The rows of all outputs, in order."""
        found = [(topic, flow, e) for topic, flow in self._outputs for e in flow.events]
        found.sort(key=lambda each: each[2].path)
        return [_row(topic, flow, event) for topic, flow, event in found]

    def _parents(self, node: Spec) -> list[Flow]:
        of = node.get("of", [])
        return [self._flows[each] for each in ([of] if isinstance(of, str) else of)]

    def _inputs_of(self, topic: str) -> list[Event]:
        return [
            Event((at, self._number), fed["key"], fed["value"], fed["ts"])
            for at, fed in enumerate(self._case["inputs"])
            if fed.get("topic") == topic
        ]

    def _each(self, flow: Flow, fn: Callable[[Event], Answers]) -> Flow:
        return Flow(apply_each(flow.events, self._number, fn), flow.windows)

    def _numbered(
        self, events: Iterable[Event], windows: Spec | None = None, *, is_table: bool = False
    ) -> Flow:
        """Number a node's results for each path in sequence."""
        seen: dict[tuple[int, ...], int] = {}
        found = []
        for event in events:
            seen[event.path] = seen.get(event.path, -1) + 1
            found.append(event.derive(self._number, seen[event.path]))
        return Flow(found, windows, is_table=is_table)

    # Sources and sinks

    def op_stream(self, node: Spec) -> Flow:
        return Flow(self._inputs_of(node["topic"]))

    def op_table(self, node: Spec) -> Flow:
        history = node["versioned"]["history"] if "versioned" in node else None
        events = tables.table(node, self._inputs_of(node["topic"]))
        return Flow(list(events), history=history, is_table=True)

    def op_global_table(self, node: Spec) -> Flow:
        return self.op_table(node)

    def op_sink(self, node: Spec, flow: Flow) -> Flow:
        events = self._each(flow, lambda _: [{}]).events
        self._outputs.append((node["topic"], Flow(events, flow.windows, is_table=flow.is_table)))
        return Flow([])

    # Stateless

    def op_map(self, node: Spec, flow: Flow) -> Flow:
        fn = mapper(node["by"])
        pairs = self._each(flow, lambda e: [_key_and_value(fn(e.key, e.value))])
        return Flow(pairs.events)

    def op_map_values(self, node: Spec, flow: Flow) -> Flow:
        fn = value_mapper(node["by"])
        return self._each(flow, lambda e: [{"value": fn(e.key, e.value)}])

    def op_flat_map(self, node: Spec, flow: Flow) -> Flow:
        fn = flat_mapper(node["by"])
        return self._each(flow, lambda e: map(_key_and_value, fn(e.key, e.value)))

    op_flat_map_values = op_flat_map

    def op_filter(self, node: Spec, flow: Flow) -> Flow:
        keep = predicate(node["by"])
        return self._each(flow, lambda e: [{}] * keep(e.key, e.value))

    def op_filter_not(self, node: Spec, flow: Flow) -> Flow:
        drop = predicate(node["by"])
        return self._each(flow, lambda e: [{}] * (not drop(e.key, e.value)))

    def op_select_key(self, node: Spec, flow: Flow) -> Flow:
        fn = key_of(node["by"])
        return Flow(self._each(flow, lambda e: [{"key": fn(e.key, e.value)}]).events)

    def op_merge(self, _node: Spec, *flows: Flow) -> Flow:
        return self._each(Flow(merge_events(flows)), lambda _: [{"port": 0}])

    def op_branch(self, _node: Spec, flow: Flow) -> Flow:
        return flow

    def op_branch_out(self, node: Spec, flow: Flow) -> Flow:
        branches = [predicate(by) for by in self._nodes[node["of"]]["branches"]]

        def choose_branch(event: Event) -> Answers:
            fits = [n for n, by in enumerate(branches) if by(event.key, event.value)]
            return [{}] * (fits[:1] == [node["branch"]])

        return self._each(flow, choose_branch)

    def op_repartition(self, _node: Spec, flow: Flow) -> Flow:
        return self._each(flow, lambda e: [{}] * (e.key is not None))

    # Tables

    def _table(self, flow: Flow, events: Iterable[Event]) -> Flow:
        derived = self._numbered(events, flow.windows, is_table=True)
        return Flow(derived.events, derived.windows, flow.history, is_table=True)

    def op_table_filter(self, node: Spec, flow: Flow) -> Flow:
        keep = predicate(node["by"])
        return self._table(flow, tables.filter_rows(flow.events, keep))

    def op_table_filter_not(self, node: Spec, flow: Flow) -> Flow:
        drop = predicate(node["by"])
        return self._table(flow, tables.filter_rows(flow.events, lambda k, v: not drop(k, v)))

    def op_table_map_values(self, node: Spec, flow: Flow) -> Flow:
        return self._table(flow, tables.map_rows(flow.events, value_mapper(node["by"])))

    def op_to_stream(self, node: Spec, flow: Flow) -> Flow:
        derived = self._each(flow, lambda _: [{}])
        if "by" in node:
            fn = key_of(node["by"])
            return Flow(self._each(flow, lambda e: [{"key": fn(e.key, e.value)}]).events)
        return Flow(derived.events, derived.windows, is_table=True)

    def op_suppress(self, node: Spec, flow: Flow) -> Flow:
        return self._table(flow, tables.suppress(node, flow.windows, flow.events))

    # Aggregations

    def op_group_by_key(self, _node: Spec, flow: Flow) -> Flow:
        return flow

    def op_group_by(self, node: Spec, flow: Flow) -> Flow:
        return flow if flow.is_table else self.op_select_key(node, flow)

    def op_window(self, node: Spec, flow: Flow) -> Flow:
        return Flow(flow.events, node)

    def op_count(self, node: Spec, flow: Flow) -> Flow:
        return self._aggregated(
            {**node, "init": 0, "merge": {"fn": "sum"}}, [{"fn": "count"}], flow
        )

    def op_reduce(self, node: Spec, flow: Flow) -> Flow:
        return self._aggregated(node, [node.get("by") or node["add"]], flow)

    def op_aggregate(self, node: Spec, flow: Flow) -> Flow:
        return self._aggregated(node, [node["add"]], flow)

    def op_cogroup(self, node: Spec, *flows: Flow) -> Flow:
        spec = self._nodes[node["window"]] if node.get("window") else None
        return self._aggregated(node, node["adds"], Flow(merge_events(flows), spec))

    def _aggregated(self, node: Spec, adds: list[Spec], flow: Flow) -> Flow:
        grouping = self._nodes.get(node["of"]) if isinstance(node["of"], str) else None
        if grouping is not None and flow.is_table and grouping["op"] == "group_by":
            grouped = tables.aggregate_groups(node, grouping["by"], flow.events)
            return self._numbered(grouped, is_table=True)
        fns, emit, spec = [adder(add) for add in adds], self._emit(node), flow.windows
        fold = windows.fold_of(node, fns)
        if spec is None:
            found = windows.aggregate_keys(flow.events, fold)
        elif spec["type"] == "session":
            found = windows.sessions(node, spec, emit, flow.events, fns)
        elif spec["type"] == "sliding":
            found = windows.sliding(spec, emit, flow.events, fold)
        else:
            found = windows.fixed_windows(spec, emit, flow.events, fold)
        return self._numbered(_with_old(found), spec, is_table=True)

    def _emit(self, node: Spec) -> str:
        return str(node.get("emit", self._case.get("emit", "on_update")))

    # Joins

    def op_join(self, node: Spec, *flows: Flow) -> Flow:
        kinds = {
            "stream_table": joins.stream_table,
            "stream_global_table": joins.stream_table,
            "table_table": joins.table_table,
            "table_table_fk": joins.foreign_key,
            "stream_stream": joins.stream_stream,
        }
        if node["kind"] not in kinds:
            raise Unsupported(f"join {node['kind']!r}")
        is_table = node["kind"].startswith("table")
        found = kinds[node["kind"]](node, list(flows), joiner(node["joiner"]))
        return self._numbered(found, flows[0].windows, is_table=is_table)


def _with_old(events: Iterable[Event]) -> Iterable[Event]:
    rows: dict[Any, Any] = {}
    for e in events:
        yield Event(e.path, e.key, e.value, e.ts, rows.get(e.key))
        rows[e.key] = e.value


def _key_and_value(pair: tuple[Any, Any] | None) -> dict[str, Any]:
    key, value = pair or (None, None)
    return {"key": key, "value": value}


def _row(topic: str, flow: Flow, event: Event) -> Row:
    key, window = event.key if flow.windows is not None else (event.key, None)
    is_nothing = flow.is_table and (event.value, event.old) == (None, None)
    return Row(topic, key, window, event.value, event.ts, event.path[0], is_nothing)
