"""FedEquality: how a history's rows equal the rows of workers whose inputs grew while they ran.

A history processes records in the same order as workers that read a complete log. Workers whose
inputs grow may process a record before another one of an earlier time that is not written yet, if a
task reads several sources. Which rows that changes depends on the operators downstream. It is
derived here, node by node, from the topology alone; `explain` shows it for every output topic.

Rule of the file: pure, and never promises too much. It assumes that all records of a key are in one
partition of a topic, as partitioners place them, and that users' functions depend on the order of
their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any, Literal, TypeAlias

import msgspec

from streamlog.nodes.process_nodes import ExpiringProcessorStore, Process
from streamlog.nodes.stream_nodes import (
    Aggregate,
    AsyncMapValues,
    Branch,
    Entry,
    Filter,
    FilterNot,
    FlatMap,
    FlatMapValues,
    JoinSide,
    Map,
    MapValues,
    Merge,
    Node,
    Peek,
    Port,
    Rekey,
    RepartitionSink,
    SetTimestamp,
    Sink,
    Split,
    StreamJoin,
    TableFilter,
    TableMapValues,
    WholeNumbers,
    WithHeaders,
)
from streamlog.nodes.table_nodes import (
    AtCommits,
    ExpiringAggregate,
    ForeignKeyJoin,
    ForeignKeyRows,
    GlobalJoin,
    Refer,
    Regroup,
    StreamTable,
    SuppressUntilClosed,
    TableAggregate,
    TableSide,
    TableTableJoin,
)
from streamlog.nodes.window_nodes import (
    CountedAggregate,
    SessionAggregate,
    SlidingAggregate,
    WindowedAggregate,
    WindowedRows,
)
from streamlog.replace import replace
from streamlog.topology import Subtopology
from streamlog.windows.emit import Emit

FedEquality: TypeAlias = Literal["S", "K", "M", "T", "A"]
FED_MEANINGS: Mapping[FedEquality, str] = {
    "S": "the same records in the same order in every partition",
    "K": "the same records in the same order for every key",
    "M": "the same records, in the order of their arrival",
    "T": "the same last value of every key; updates on the way may differ",
    "A": "no promise: its rows depend on the order of arrival",
}
Behind: TypeAlias = Literal["all", "source", "left out"]
BEHIND: Mapping[Behind, str] = {
    "all": "the newest one of all its sources",
    "source": "the newest one of its source",
    "left out": "a dropped one of its source and the quiet time after it",
}
_VALUES_ONLY = (
    MapValues
    | Peek
    | WithHeaders
    | Port
    | SetTimestamp
    | TableMapValues
    | TableFilter
    | Split
    | TableSide
)
_THINNING = Filter | FilterNot | FlatMapValues | Branch
_REKEYING = Map | FlatMap | Rekey


class Provided(msgspec.Struct, frozen=True):
    """A condition of an equality class that the topology can't guarantee."""

    node: str
    late_ms: int
    """How far a record may be behind, in milliseconds of event time."""
    of: Behind
    """The records that `late_ms` is measured against."""

    def __str__(self) -> str:
        """Return the condition as a clause."""
        records = BEHIND[self.of]
        return f"no record reaches {self.node} more than {self.late_ms} ms behind {records}"


class Flow(msgspec.Struct, frozen=True):
    """The records that a node emits: what a live run and a history have in common."""

    equality: FedEquality = "S"
    why: str = ""
    """The node that weakened the class, and how."""
    keeps_keys: bool = True
    """Whether all records of a key come from one task, and there from one source."""
    is_additive: bool = False
    """Whether the records are changes of a table that are added to or subtracted from a result."""
    is_merged: bool = False
    """Whether the records come through a repartition topic from several sources."""
    has_own_time: bool = True
    """Whether each source's time follows from its records alone, not from the order of arrival."""
    provided: tuple[Provided, ...] = ()
    """The conditions of the class."""


def fed_equality(
    subtopologies: Iterable[Subtopology], counts: Mapping[str, int]
) -> dict[str, Flow]:
    """Return the equality of each output topic, by name.

    Args:
        subtopologies: all sub-topologies, upstream first.
        counts: number of partitions of every topic.
    """
    written: dict[str, list[Flow]] = {}
    outputs: dict[str, list[Flow]] = {}
    for sub in subtopologies:
        flows = _flows(sub, counts, written)
        for node in sub.nodes:
            flow = flows[node.name]
            if isinstance(node, RepartitionSink):
                written.setdefault(node.topic.name, []).append(flow)
            elif isinstance(node, Sink):
                found = _in_partitions(flow, sub.tasks(counts))
                outputs.setdefault(node.topic.name, []).append(found)
            elif isinstance(node, WindowedRows) and node.writes:
                above = _together(node, [flows[parent] for parent in node.parents], sub)
                late = replace(_late(above, node), provided=flow.provided)
                outputs.setdefault(node.writes[0].name, []).append(late)
    return {topic: _of_writers(topic, found) for topic, found in outputs.items()}


def _flows(
    sub: Subtopology, counts: Mapping[str, int], written: Mapping[str, Sequence[Flow]]
) -> dict[str, Flow]:
    flows: dict[str, Flow] = {}
    for node in sub.nodes:
        if isinstance(node, Entry):
            flows[node.name] = _entry(node, sub, counts, written)
            continue
        parents = [flows[name] for name in node.parents]
        tables = [flows[name] for name in node.lookup_nodes if name in flows]
        flow = _together(node, parents, sub)
        behind = _behind(node, flow, parents, tables, sub)
        flows[node.name] = _provided(node, behind, [*parents, *tables], sub)
    return flows


def _provided(node: Node, flow: Flow, above: Sequence[Flow], sub: Subtopology) -> Flow:
    """Add the conditions of the class, of this node and of the nodes above."""
    if flow.equality == "A":
        return flow
    is_one = _is_one_source(node, sub) and all(each.equality == "S" for each in above)
    is_merged = any(each.is_merged for each in above)
    has_own_time = all(each.has_own_time for each in above)
    found = _all_provided(above)
    if isinstance(node, StreamJoin) and not is_one:
        found.append(Provided(node.name, node.window.grace_ms, "all"))
        has_own_time = False
    elif isinstance(node, WindowedRows | SuppressUntilClosed) and not is_one:
        behind: Behind = "all" if node.united else "left out" if has_own_time else "source"
        if node.united or is_merged or not has_own_time:
            found.append(Provided(node.name, _grace_ms(node), behind))
    elif isinstance(node, Process) and not is_one:
        if node.timers is not None and not has_own_time:
            return Flow(
                "A", f"{node.name} has timers, and the time of its sources depends on arrival"
            )
        if node.timers is not None and is_merged:
            found.append(Provided(node.name, 0, "left out"))
        has_own_time = False
    provided = tuple(dict.fromkeys(found))
    return replace(flow, is_merged=is_merged, has_own_time=has_own_time, provided=provided)


def _all_provided(flows: Sequence[Flow]) -> list[Provided]:
    return [each for flow in flows for each in flow.provided]


def _grace_ms(node: WindowedRows | SuppressUntilClosed) -> int:
    if isinstance(node, SuppressUntilClosed):
        return node.closes_after_ms
    windows = getattr(node, "windows", None)
    return 0 if windows is None else int(windows.grace_ms)


def _entry(
    node: Entry, sub: Subtopology, counts: Mapping[str, int], written: Mapping[str, Sequence[Flow]]
) -> Flow:
    topic = node.topic
    if not topic.internal:
        return Flow()
    found = list(written.get(topic.name, ()))
    sources = sum(feeder.partitions(counts) for feeder in sub.feeders[topic.name])
    # A source without a promise leaves none for the topic: its records come between the others.
    if not found or any(flow.equality == "A" for flow in found):
        return next((flow for flow in found if flow.equality == "A"), Flow("A", topic.name))
    # A task sends downstream one time for all sources of a topic.
    has_own_time = all(flow.has_own_time and not flow.is_merged for flow in found)
    # One task writes all records of the topic, so each partition has them in the task's order.
    if len(found) == 1 and sources == 1:
        return replace(found[0], keeps_keys=True, is_merged=False, has_own_time=has_own_time)
    if len(sub.feeders[topic.name]) > 1:
        # The rows of one key come on two paths: a join's pairs, and its rows without a partner.
        found = [replace(flow, keeps_keys=False) for flow in found]
    flow = _of_sources(found, f"{topic.name} comes from {sources} sources")
    provided = tuple(dict.fromkeys(_all_provided(found)))
    return replace(flow, is_merged=sources > 1, has_own_time=has_own_time, provided=provided)


def _of_sources(found: Sequence[Flow], why: str) -> Flow:
    """Return the flow of a repartition topic with several sources."""
    if len(found) == 1 and found[0].keeps_keys:
        return _weakened(found[0], "K", why)
    if all(flow.is_additive for flow in found):
        return Flow("T", why, is_additive=True)
    # 1. Two sources update key k, one to a and one to b.
    # 2. Live, a arrives last; in the history, b is the later one by its time.
    # 3. The last values differ.
    if any(flow.equality == "T" for flow in found):
        return Flow("A", f"{why}, which update the same keys")
    return Flow("M", why, keeps_keys=False)


def _together(node: Node, parents: Sequence[Flow], sub: Subtopology) -> Flow:
    """Return the flow into a node from all of its parents."""
    if not parents:
        return Flow("A", f"{node.name} has no input from the log")
    if len(parents) == 1:
        return parents[0]
    if _is_one_source(node, sub) and all(flow.equality == "S" for flow in parents):
        return replace(parents[0], keeps_keys=all(flow.keeps_keys for flow in parents))
    weakest = max(parents, key=_rank)
    if weakest.equality in {"T", "A"}:
        return Flow("A", weakest.why or f"{node.name} merges updates of tables")
    return Flow("M", f"{node.name} reads several sources", keeps_keys=False)


def _is_one_source(node: Node, sub: Subtopology) -> bool:
    above = sub.origins(node)
    tables = [sub.by_name[name] for name in node.lookup_nodes]
    above += [each for table in tables for each in (sub.origins(table) or [table])]
    return len({each.topic.name if isinstance(each, Entry) else each.name for each in above}) == 1


def _behind(
    node: Node, flow: Flow, parents: Sequence[Flow], tables: Sequence[Flow], sub: Subtopology
) -> Flow:
    """Return the flow out of a node."""
    if flow.equality == "A":
        return _of_tables(node, parents) or flow
    one_way = _without_order(node, flow)
    if one_way is not None:
        return one_way
    is_one = _is_one_source(node, sub)
    if is_one and all(each.equality == "S" for each in (flow, *tables)):
        return _in_order(node, flow)
    found = _of_tables(node, parents) or _stateful(node, flow, tables)
    return found or Flow("A", f"{node.name} depends on the order of its sources", keeps_keys=False)


def _without_order(node: Node, flow: Flow) -> Flow | None:
    """Return the flow of a node without memory, whose rows follow from one record; else None."""
    is_table = flow.equality == "T"
    if isinstance(node, _VALUES_ONLY | Sink | RepartitionSink | JoinSide):
        return flow
    if isinstance(node, _THINNING):
        # 1. A live run updates key k to 3, then to 5; the history only to 5.
        # 2. The filter drops 5. The live run has a last value of 3, and the history has none.
        why = f"{node.name} drops updates"
        return Flow("A", why, keeps_keys=flow.keeps_keys) if is_table else flow
    if isinstance(node, _REKEYING):
        if is_table:
            # An update on the way that only one run makes stays under its new key for ever.
            return Flow("A", f"{node.name} changes the keys of updates", keeps_keys=False)
        # The order of each old key says nothing about the order of a new key.
        weakened = (
            _weakened(flow, "M", f"{node.name} changes keys") if flow.equality == "K" else flow
        )
        return replace(weakened, keeps_keys=False)
    if isinstance(node, Merge):
        return flow
    return None


def _in_order(node: Node, flow: Flow) -> Flow:
    """Return the flow of a node whose records come from one source, in the order of the log."""
    if isinstance(node, AsyncMapValues):
        return _awaited(node, flow)
    if isinstance(node, AtCommits) or getattr(node, "emit", None) == Emit.COMMIT:
        return _weakened(flow, "T", f"{node.name} depends on commits")
    if isinstance(node, GlobalJoin):
        return Flow("A", f"{node.name} looks rows up in a global table", keeps_keys=flow.keeps_keys)
    emit = getattr(node, "emit", None)
    if node.waits_idle_ms is not None or (isinstance(emit, Emit) and emit.clock == "wall"):
        return _weakened(flow, "T", f"{node.name} depends on the wall clock")
    is_additive = isinstance(node, Regroup | Refer)
    moves_keys = is_additive or isinstance(node, Process)
    return replace(flow, is_additive=is_additive, keeps_keys=flow.keeps_keys and not moves_keys)


def _of_tables(node: Node, parents: Sequence[Flow]) -> Flow | None:
    """Return the flow of a node that derives a table from tables; else None.

    The last row of a key then follows from the last rows of its inputs, in any order of updates.
    """
    weakest = max(parents, key=_rank, default=Flow())
    is_table = isinstance(node, Regroup | Refer | ForeignKeyJoin | ForeignKeyRows | TableTableJoin)
    if not is_table or weakest.equality not in {"S", "K", "T"}:
        return None
    why = weakest.why or f"{node.name} reads several sources"
    additive = isinstance(node, Regroup | Refer | ForeignKeyJoin)
    return Flow("T", why, is_additive=additive)


def _stateful(node: Node, flow: Flow, tables: Sequence[Flow]) -> Flow | None:
    """Return the flow of a node with memory whose records come from several sources."""
    if tables:
        return None
    return next((found(node, flow) for kind, found in _KINDS if isinstance(node, kind)), None)


def _summed(node: TableAggregate, flow: Flow) -> Flow | None:
    return Flow("T", flow.why) if flow.is_additive and _adds_up(node) else None


def _aggregated(node: Aggregate, flow: Flow) -> Flow | None:
    if flow.equality in {"S", "K"}:
        return flow
    adds_up = flow.equality == "M" and _adds_up(node)
    return Flow("T", f"{node.name} emits updates") if adds_up else None


def _final(_node: Node, flow: Flow) -> Flow | None:
    # Only the last row of each window comes out, so updates on the way make no difference.
    return Flow("K", flow.why) if flow.equality in {"S", "K", "T"} else None


def _kept(_node: Node, flow: Flow) -> Flow | None:
    return flow if flow.equality in {"S", "K", "T"} else None


def _counted(node: CountedAggregate, flow: Flow) -> Flow | None:
    return flow if flow.equality in {"S", "K"} and node.windows.timeout_ms is None else None


def _joined(node: Node, flow: Flow) -> Flow | None:
    # A join emits a row for each update, so updates that differ make rows that differ.
    if flow.equality == "T":
        return None
    return Flow("M", flow.why or f"{node.name} joins several sources", keeps_keys=False)


def _committed(node: Node, flow: Flow) -> Flow:
    return _weakened(flow, "T", f"{node.name} depends on commits")


def _windowed(node: WindowedRows, flow: Flow) -> Flow | None:
    per_key = flow.equality in {"S", "K"}
    sums = flow.equality == "M" and _adds_up(node) and not isinstance(node, SlidingAggregate)
    if node.waits_idle_ms is not None or not (per_key or sums):
        return None
    if node.emit == Emit.CLOSE:
        # Windows close in the order of (end, start, key), whatever the order of their records was.
        return Flow("S")
    if per_key and node.emit == Emit.UPDATE:
        return _weakened(flow, "K", flow.why)
    return Flow("T", f"{node.name} emits rows of open windows")


def _processed(node: Process, flow: Flow) -> Flow | None:
    if not node.stores and node.timers is None and not node.punctuations:
        return (
            replace(_weakened(flow, "M", flow.why), keeps_keys=False)
            if flow.equality != "T"
            else None
        )
    expires = any(isinstance(store, ExpiringProcessorStore) for store in node.stores)
    if flow.equality not in {"S", "K"} or node.punctuations or expires or node.waits_idle_ms:
        return None
    if _reads_time(node.make):
        return Flow("A", f"{node.name} reads ctx.stream_time, of all sources", keeps_keys=False)
    return replace(_weakened(flow, "K", f"{node.name} sees each key in order"), keeps_keys=True)


def _reads_time(kind: object) -> bool:
    """Return whether the code of a processor's class names `stream_time`."""
    if not isinstance(kind, type):
        return True  # A factory may make any processor.
    methods = [found for each in kind.__mro__ for found in vars(each).values()]
    return any("stream_time" in _names(getattr(found, "__code__", None)) for found in methods)


def _names(code: object) -> set[str]:
    if not isinstance(code, CodeType):
        return set()
    # Nested functions and comprehensions are constants of the code that contains them.
    return {*code.co_names}.union(*map(_names, code.co_consts))


def _awaited(node: AsyncMapValues, flow: Flow) -> Flow:
    by_key = node.ordered == "key" and flow.equality in {"S", "K"}
    if flow.equality == "T":
        return Flow("A", f"{node.name} calls other systems")
    return _weakened(flow, "K" if by_key else "M", f"{node.name} calls other systems")


def _adds_up(node: Aggregate | WindowedRows) -> bool:
    """Return whether the aggregation is known not to depend on the order of its records."""
    return isinstance(node.aggregation.numbers, WholeNumbers)


def _late(flow: Flow, node: Node) -> Flow:
    if flow.equality in {"T", "A"}:
        return Flow("A", flow.why)
    return _weakened(flow, "M", f"late records of {node.name}")


def _in_partitions(flow: Flow, tasks: int) -> Flow:
    """Return the flow of an output topic, given the number of tasks that write to it."""
    if tasks == 1 or flow.equality in {"M", "T", "A"}:
        return flow
    # Never S: rows of several tasks interleave in a partition, in any order. Even if each key stays
    # in one partition, rows without a key go to any of them.
    return _weakened(flow, "K" if flow.keeps_keys else "M", f"{tasks} tasks write it")


def _of_writers(topic: str, found: Sequence[Flow]) -> Flow:
    if len(found) == 1:
        return found[0]
    weakest = max(found, key=_rank)
    if weakest.equality in {"T", "A"}:
        return Flow("A", weakest.why or f"several nodes write to {topic}")
    provided = tuple(dict.fromkeys(_all_provided(found)))
    return Flow("M", f"{len(found)} nodes write to {topic}", provided=provided)


def _weakened(flow: Flow, equality: FedEquality, why: str) -> Flow:
    if _rank(flow) >= list(FED_MEANINGS).index(equality):
        return flow
    return replace(flow, equality=equality, why=why)


def _rank(flow: Flow) -> int:
    return list(FED_MEANINGS).index(flow.equality)


_KINDS: Sequence[tuple[Any, Callable[[Any, Flow], Flow | None]]] = (
    (TableAggregate, _summed),
    (ExpiringAggregate, lambda _node, _flow: None),
    (Aggregate, _aggregated),
    (WindowedAggregate | SessionAggregate | SlidingAggregate, _windowed),
    (CountedAggregate, _counted),
    (SuppressUntilClosed, _final),
    (StreamTable, _kept),
    (StreamJoin, _joined),
    (AtCommits, _committed),
    (AsyncMapValues, _awaited),
    (Process, _processed),
)
"""The first kind that matches counts; nodes of other kinds depend on the order."""
