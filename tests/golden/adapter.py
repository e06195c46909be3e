"""A case's topology as an app: a method for each operation of the vocabulary.

The cases are neutral; the adapter translates their words to streamlog. An unknown word raises
`Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from typing import Any

from streamlog import App, Emit, JoinWindow, Windowed, hopping, session, sliding, tumbling
from streamlog.serdes import Serde, serde_for
from tests.golden.compare import Case
from tests.golden.functions import (
    NEEDS_KEY,
    Spec,
    Unsupported,
    adder,
    flat_mapper,
    joiner,
    key_of,
    mapper,
    predicate,
    value_mapper,
)

ANYTHING = serde_for(Any)
NEW_KEY = {"map", "flat_map", "select_key", "group_by"}
"""Operations after which keys are no longer windowed."""


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def windows_of(spec: Spec) -> Any:
    """Return the windows that a node or a query describes."""
    grace = ms(spec.get("grace", 0))
    match spec["type"]:
        case "tumbling":
            return tumbling(ms(spec["size"]), grace=grace)
        case "hopping":
            return hopping(ms(spec["size"]), ms(spec["advance"]), grace=grace)
        case "sliding":
            return sliding(ms(spec["difference"]), grace=grace)
        case "session":
            return session(ms(spec["gap"]), grace=grace)
        case kind:
            raise Unsupported(f"{kind} windows")


class Adapter:
    """The app of a case; `topics` holds its topics by their names in the case."""

    def __init__(
        self, case: Case, app: App | None = None, *, prefix: str = "", partitions: int = 1
    ) -> None:
        self.app = app or App("golden")
        self.case = case
        self.topics: dict[str, Any] = {}
        self._prefix = prefix
        self._partitions = partitions
        self._made: dict[str, Any] = {}
        self._nodes = {node["id"]: node for node in case["topology"]}
        for node in case["topology"]:
            operation = getattr(self, f"op_{node['op']}", None)
            if operation is None:
                raise Unsupported(f"operation {node['op']!r}")
            self._made[node["id"]] = operation(node)
        for fed in case["inputs"]:
            # Input topics exist even if no node reads them.
            if "topic" in fed:
                self._topic(fed["topic"])

    @property
    def outputs(self) -> list[str]:
        """The written topics, by their names in the case."""
        sinks = [node["topic"] for node in self.case["topology"] if node["op"] == "sink"]
        return list(dict.fromkeys(sinks))

    def _topic(self, name: str, key: Serde[Any] = ANYTHING) -> Any:
        if name not in self.topics:
            self.topics[name] = self.app.topic(
                self._prefix + name,
                key=object,
                value=object,
                key_serde=key,
                value_serde=ANYTHING,
                partitions=self._partitions,
            )
        return self.topics[name]

    def _inputs(self, node: Spec) -> list[Any]:
        return [self._made[each] for each in self._parents(node)]

    def _of(self, node: Spec) -> Any:
        return self._inputs(node)[0]

    def _parents(self, node: Spec) -> list[str]:
        of = node.get("of", [])
        return [of] if isinstance(of, str) else of

    def _key_serde(self, name: str) -> Serde[Any]:
        """Return the serde of a node's output keys; windowed keys have the aggregation's."""
        node = self._nodes[name]
        made, parents = self._made[name], self._parents(node)
        side = getattr(made, "side", None)
        if side is not None and side.is_windowed:
            serde: Serde[Any] = side.position.key.serde
            return serde
        if not parents or node["op"] in NEW_KEY or ("by" in node and node["op"] == "to_stream"):
            return ANYTHING
        return self._key_serde(parents[0])

    # Sources and sinks

    def op_stream(self, node: Spec) -> Any:
        return self.app.stream(self._topic(node["topic"]))

    def op_table(self, node: Spec) -> Any:
        topic = self._topic(node["topic"])
        if "versioned" not in node:
            return self.app.table(topic, name=node["id"])
        return self.app.table(topic, name=node["id"], history=ms(node["versioned"]["history"]))

    def op_global_table(self, node: Spec) -> Any:
        table = self.app.global_table
        return table(self._topic(node["topic"]), name=node["id"])

    def op_sink(self, node: Spec) -> Any:
        made = self._of(node)
        stream = made.changes() if hasattr(made, "changes") else made
        stream.to(self._topic(node["topic"], self._key_serde(self._parents(node)[0])))

    # Stateless

    def op_map(self, node: Spec) -> Any:
        return self._of(node).map(mapper(node["by"]), name=node["id"])

    def op_map_values(self, node: Spec) -> Any:
        made, fn = self._of(node), value_mapper(node["by"])
        if node["by"]["fn"] in NEEDS_KEY:
            return made.map(lambda k, v: (k, fn(k, v)), name=node["id"])
        return made.map_values(lambda v: fn(None, v))

    def op_flat_map(self, node: Spec) -> Any:
        return self._of(node).flat_map(flat_mapper(node["by"]), name=node["id"])

    def op_flat_map_values(self, node: Spec) -> Any:
        if node["by"]["fn"] in NEEDS_KEY:
            return self.op_flat_map(node)
        fn = flat_mapper(node["by"])
        return self._of(node).flat_map_values(lambda v: [new for _, new in fn(None, v)])

    def op_filter(self, node: Spec) -> Any:
        return self._of(node).filter(predicate(node["by"]))

    def op_filter_not(self, node: Spec) -> Any:
        return self._of(node).filter_not(predicate(node["by"]))

    def op_select_key(self, node: Spec) -> Any:
        return self._of(node).rekey(key_of(node["by"]), name=node["id"])

    def op_merge(self, node: Spec) -> Any:
        first, *others = self._inputs(node)
        return first.merge(*others)

    def op_branch(self, node: Spec) -> Any:
        predicates = {f"b{n}": predicate(by) for n, by in enumerate(node["branches"])}
        return self._of(node).split(**predicates)

    def op_branch_out(self, node: Spec) -> Any:
        return self._of(node)[f"b{node['branch']}"]

    def op_repartition(self, node: Spec) -> Any:
        return self._of(node).repartition(name=node["id"])

    # Tables

    op_table_filter = op_filter

    def op_table_filter_not(self, node: Spec) -> Any:
        keep = predicate(node["by"])
        return self._of(node).filter(lambda k, v: not keep(k, v))

    def op_table_map_values(self, node: Spec) -> Any:
        fn = value_mapper(node["by"])
        if node["by"]["fn"] not in NEEDS_KEY:
            return self._of(node).map_values(lambda v: fn(None, v))

        def map_row(key: Any, value: Any) -> Any:
            return key, None if value is None else fn(key, value)

        stream = self._of(node).changes().map(map_row, name=f"{node['id']}-mapped")
        return stream.to_table(name=node["id"])

    def op_to_stream(self, node: Spec) -> Any:
        stream = self._of(node).changes()
        if "by" in node:
            return stream.rekey(key_of(node["by"]), name=node["id"])
        return stream

    def op_suppress(self, node: Spec) -> Any:
        suppress = self._of(node).suppress
        if node["until"] == "window_closes":
            return suppress(until="closed", name=node["id"])
        wait = node.get("ms")
        return suppress(
            within=None if wait is None else ms(wait),
            max_records=node.get("max_records"),
            name=node["id"],
        )

    # Aggregations

    def op_group_by_key(self, node: Spec) -> Any:
        return self._of(node).group_by_key()

    def op_group_by(self, node: Spec) -> Any:
        made = self._of(node)
        is_table = hasattr(made, "changes")
        by = mapper(node["by"]) if is_table else key_of(node["by"])
        return made.group_by(by, name=node["id"])

    def op_window(self, node: Spec) -> Any:
        return self._of(node).windowed(windows_of(node))

    def _emitting(self, node: Spec, windowed: Any) -> Any:
        close = node.get("emit", self.case.get("emit")) == "on_close"
        return windowed.emit(Emit.CLOSE if close else Emit.UPDATE)

    def _aggregated(self, node: Spec) -> Any:
        grouped = self._of(node)
        return self._emitting(node, grouped) if hasattr(grouped, "emit") else grouped

    def op_count(self, node: Spec) -> Any:
        return self._aggregated(node).count(name=node["id"])

    def op_reduce(self, node: Spec) -> Any:
        reduce = self._aggregated(node).reduce
        if "sub" in node:
            return reduce(adder(node["add"]), adder(node["sub"]), name=node["id"])
        return reduce(adder(node.get("by") or node["add"]), name=node["id"])

    def op_aggregate(self, node: Spec) -> Any:
        init, add = initial_value(node["init"]), adder(node["add"])
        aggregate = self._aggregated(node).aggregate
        if "sub" in node:
            return aggregate(init, add, adder(node["sub"]), name=node["id"])
        if node.get("merge"):
            return aggregate(init, add, merge=adder(node["merge"]), name=node["id"])
        return aggregate(init, add, name=node["id"])

    def op_cogroup(self, node: Spec) -> Any:
        first, *others = self._inputs(node)
        adds = [adder(add) for add in node["adds"]]
        grouped = first.cogroup(adds[0])
        for other, add in zip(others, adds[1:], strict=True):
            grouped = grouped.cogroup(other, add)
        if node.get("window"):
            windows = windows_of(self._nodes[node["window"]])
            grouped = self._emitting(node, grouped.windowed(windows))
        merge = {"merge": adder(node["merge"])} if node.get("merge") else {}
        return grouped.aggregate(initial_value(node["init"]), name=node["id"], **merge)

    # Joins

    def op_join(self, node: Spec) -> Any:
        join = getattr(self, f"join_{node['kind']}", None)
        if join is None:
            raise Unsupported(f"join {node['kind']!r}")
        return join(node, *self._inputs(node), joiner(node["joiner"]))

    def _joining(self, node: Spec, left: Any, name: str = "join") -> Any:
        prefix = {"inner": "", "left": "left_", "outer": "outer_"}[node["how"]]
        return getattr(left, prefix + name)

    def join_stream_table(self, node: Spec, stream: Any, table: Any, fn: Any) -> Any:
        options: dict[str, Any] = {}
        if self._is_versioned(self._parents(node)[1]):
            options["as_of"] = True
        if "grace" in node:
            options["grace"] = ms(node["grace"])
        return self._joining(node, stream)(table, fn, name=node["id"], **options)

    def _is_versioned(self, name: str) -> bool:
        node = self._nodes[name]
        if node["op"] in {"table_filter", "table_filter_not", "table_map_values"}:
            return self._is_versioned(self._parents(node)[0])
        return "versioned" in node

    def join_stream_global_table(self, node: Spec, stream: Any, table: Any, fn: Any) -> Any:
        required = node["how"] == "inner"
        return stream.lookup(table, key_of(node["lookup"]), fn, required=required)

    def join_table_table(self, node: Spec, left: Any, right: Any, fn: Any) -> Any:
        return self._joining(node, left)(right, fn, name=node["id"])

    def join_table_table_fk(self, node: Spec, left: Any, right: Any, fn: Any) -> Any:
        foreign = key_of(node["foreign_key"])
        join = self._joining(node, left, "join_on")
        return join(right, lambda value: foreign(None, value), fn, name=node["id"])

    def join_stream_stream(self, node: Spec, left: Any, right: Any, fn: Any) -> Any:
        return self._joining(node, left)(right, fn, within=join_window(node), name=node["id"])


def join_window(spec: Spec) -> Any:
    """Return the window that a join or a query describes."""
    within = spec.get("difference", spec.get("within"))
    before, after = spec.get("before", within), spec.get("after", within)
    return JoinWindow.of(
        ms(max(before, after, 0)),
        before=ms(before),
        after=ms(after),
        grace=ms(spec.get("grace", 0)),
    )


def initial_value(value: Any) -> Callable[[], Any]:
    """Return a function that returns a new copy of the value each time."""
    return lambda: deepcopy(value)


def windowed_key(key: Any) -> tuple[Any, tuple[Any, Any] | None]:
    """Return the key of a row, and its window if it has one."""
    return (key.key, (key.start, key.end)) if isinstance(key, Windowed) else (key, None)
