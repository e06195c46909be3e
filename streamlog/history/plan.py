"""Plan: the stages of an app's history, and how their rows equal a live run's rows.

The topology is cut at its repartition topics: a stage is a sub-topology, which runs as one task per
partition once all stages that feed it have finished. The plan decides on the equality class, so
that a runner only has to keep the order of the log:

- S: each output partition gets the same records in the same order.
- K: the same records per key in the same order; keys may interleave differently.
- T: each key has the same last value; how many values came before it depends on a clock.

This is equality with workers that read a complete log. Equality with workers whose inputs grow
while they run is derived in `fed`.

Rule of the file: pure. A difference that is not acceptable raises an error that says what to do;
others are shown by `explain`. Not done here: reading the log, running tasks (`task_run`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from streamlog.durations import moment
from streamlog.errors import TopologyError, quantity
from streamlog.history.fed import FED_MEANINGS, Flow, fed_equality
from streamlog.history.lowering import Lower, Lowering, lowering_of
from streamlog.nodes.process_nodes import Process
from streamlog.nodes.stream_nodes import AsyncMapValues, Entry, Node, RepartitionSink, Source
from streamlog.nodes.table_nodes import GlobalJoin
from streamlog.processing.inputs.cut_input import TimeSpan
from streamlog.records.epoch_chains import EpochChain
from streamlog.replace import replace
from streamlog.snapshots.manifest import Manifest
from streamlog.topology import Subtopology, Topology
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Emit

Equality: TypeAlias = Literal["S", "K", "T"]
MEANINGS: Mapping[Equality, str] = {
    "S": "the same records in the same order in every partition",
    "K": "the same records in the same order for every key",
    "T": "the same last value of every key",
}
EngineName: TypeAlias = Literal["local", "spark"]
Outputs: TypeAlias = Literal["discard", "stage", "publish"]


class Stage(msgspec.Struct, frozen=True):
    """A sub-topology with the plan of its run."""

    subtopology: Subtopology
    tasks: int
    equality: Equality
    """Equality class of its rows."""
    how: str
    """How the stage runs, as text."""
    reasons: tuple[str, ...] = ()
    """Why the class is weaker than S."""
    lowering: Lowering | None = None
    """How the engine aggregates the stage; None: tasks process every record."""
    why_not: str = ""
    """Why an engine that can lower stages does not lower this one."""

    @property
    def number(self) -> int:
        """Number of the sub-topology."""
        return self.subtopology.number


class PlannedLog(msgspec.Struct, frozen=True):
    """Identity of a partition's log, which a new or truncated log does not have."""

    topic_id: str
    """As hexadecimal text; empty if brokers have no topic IDs."""
    epochs: EpochChain
    """Leader epochs of the records before the planned end."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of a history: its stages, and the offsets that they read."""

    topology: Topology
    counts: Mapping[str, int]
    """Number of partitions of every topic that is read or written."""
    stages: tuple[Stage, ...]
    spans: Mapping[str, TimeSpan]
    """The event times that are read of each topic of the log."""
    engine: EngineName
    outputs: Outputs
    notes: tuple[str, ...] = ()
    """What the history leaves out or does differently, as text."""
    ends: Mapping[tuple[str, int], tuple[int, int]] = msgspec.field(default_factory=dict)
    """First offset and end of each partition, as of the plan."""
    logs: Mapping[tuple[str, int], PlannedLog] = msgspec.field(default_factory=dict)
    """Identity of the logs that these offsets belong to."""

    @property
    def fed(self) -> dict[str, Flow]:
        """Equality with workers whose inputs grow while they run, by output topic."""
        return fed_equality([stage.subtopology for stage in self.stages], self.counts)

    @property
    def equality(self) -> Equality:
        """The weakest class of all stages."""
        return _weakest(stage.equality for stage in self.stages)

    @property
    def until_ms(self) -> int:
        """Event time at which the history ends; FAR_MS: at the end of the log."""
        return min((span.until_ms for span in self.spans.values()), default=FAR_MS)

    @property
    def since_ms(self) -> int:
        """Event time at which streams start; UNKNOWN_MS: at the start of the log."""
        return max((span.since_ms for span in self.spans.values()), default=UNKNOWN_MS)

    def explain(self) -> str:
        """Return the plan as a report: stages, offsets, and equality with a live run."""
        lines = [f"history of {self.topology.app_id}, engine {self.engine}: {self._times()}"]
        for at, stage in enumerate(self.stages):
            lines += _stage_lines(at, stage, self.counts)
        for (topic, partition), (start, end) in sorted(self.ends.items()):
            lines.append(f"  reads {topic}-{partition}: offsets {start} to {end} at most")
        whole = f"{self.equality}, {MEANINGS[self.equality]}"
        lines.append(f"  equal to a live run that reads the complete log: {whole}")
        for topic, flow in sorted(self.fed.items()):
            lines.append(
                f"  {topic} equal to a live run whose inputs grow meanwhile: {flow.equality}, "
                f"{FED_MEANINGS[flow.equality]}"
            )
            lines += [f"    because {flow.why}"] if flow.why and flow.equality != "S" else []
            lines += [f"    as long as {each}" for each in flow.provided]
        lines += [f"  note: {note}" for note in self.notes]
        lines.append(f"  outputs: {_OUTPUTS[self.outputs]}")
        return "\n".join(lines)

    def _times(self) -> str:
        is_whole = self.since_ms == UNKNOWN_MS
        since = "the start of the log" if is_whole else moment(self.since_ms).isoformat()
        until = "the end of the log"
        if self.until_ms < FAR_MS:
            until = f"the first record of each partition at or after {_moment(self.until_ms)}"
        return f"from {since} to {until}"


_HOW: Mapping[EngineName, str] = {
    "local": "one task per partition, one after the other",
    "spark": "one task per partition, each in a Spark task (functions are Python)",
}
_LOWERED = (
    "columns: Spark aggregates windows of whole numbers before and after the shuffle; their rows "
    "go to the task, which closes windows and keeps open ones"
)
_OUTPUTS: Mapping[Outputs, str] = {
    "discard": "discarded; the snapshot has only the state",
    "stage": "staged in files, not published",
    "publish": "staged in files, then published all at once",
}


def plan_history(
    topology: Topology,
    counts: Mapping[str, int],
    *,
    span: TimeSpan,
    engine: EngineName = "local",
    outputs: Outputs = "discard",
    agents: Iterable[str] = (),
    arrival_order: bool = False,
    lower: Lower = "auto",
) -> Plan:
    """Plan an app's history.

    Args:
        topology: the app's topology.
        counts: numbers of partitions of the topics in the log; repartition topics are derived.
        span: the event times that are read of streams; tables are read from their start.
        engine: the engine that will run the plan.
        outputs: what happens to the output rows.
        agents: names of the app's agents, which a history does not run.
        arrival_order: whether live workers process repartition topics in the order of arrival
            (`guarantee="at_least_once"`).
        lower: "auto" lets Spark aggregate the stages for which it gives the same rows.

    Raises:
        TopologyError: the history could not equal a live run: the app has nothing to run,
            sub-topologies feed each other in a cycle, or a topic is both written and read.
    """
    if not topology.subtopologies:
        raise TopologyError(
            f"app {topology.app_id!r} has no streams or tables, and agents have no history to run"
        )
    _refuse(topology)
    whole = topology.partition_counts(counts)
    stages: list[Stage] = []
    below: dict[str, Equality] = {}
    for sub in _upstream_first(topology):
        stage = _stage(sub, whole, below, engine=engine, arrival_order=arrival_order)
        if engine == "spark":
            stage = _lowered(stage, topology, lower)
        below |= dict.fromkeys(sub.repartition_topics, stage.equality)
        stages.append(stage)
    return Plan(
        topology=topology,
        counts=whole,
        stages=tuple(stages),
        spans=_spans(topology, span),
        engine=engine,
        outputs=outputs,
        notes=tuple(_notes(topology, agents)),
    )


def _refuse(topology: Topology) -> None:
    for agent, tables in topology.worked_on.items():
        raise TopologyError(
            f"agent {agent!r} sets rows of table {tables[0]!r}, and a history does not run agents: "
            "set the rows in a processor, or remove the table from this app"
        )
    written = {t.name for node in topology.nodes for t in node.writes if not t.internal}
    for sub in topology.subtopologies:
        if sub.looped:
            raise TopologyError(
                f"sub-topology {sub.number} of {topology.app_id!r} reads {sorted(sub.looped)}, "
                "which depends on its own rows, so a history has no order to run it in: break the "
                "cycle, or run the app live"
            )
        if again := sorted(written & {*sub.topics}):
            raise TopologyError(
                f"{topology.app_id!r} writes {again[0]!r} and reads it again, so its results "
                "depend on the order of writes: use .repartition(name=...) between the two, or "
                "split the app in two"
            )


def _upstream_first(topology: Topology) -> list[Subtopology]:
    ordered: list[Subtopology] = []
    pending = list(topology.subtopologies)
    # It ends, because `_refuse` has excluded cycles: some pending sub-topology is always ready.
    while pending:
        to_come = {topic for sub in pending for topic in sub.repartition_topics}
        ready = [sub for sub in pending if not to_come & {*sub.topics}]
        ordered += ready
        pending = [sub for sub in pending if sub not in ready]
    return ordered


def _stage(
    sub: Subtopology,
    counts: Mapping[str, int],
    upstream: Mapping[str, Equality],
    *,
    engine: EngineName,
    arrival_order: bool,
) -> Stage:
    # A stage is never better than the stages that feed it.
    found: list[tuple[Equality, str]] = [
        (upstream[topic], f"its input {topic} is {upstream[topic]}")
        for topic in sub.inputs
        if upstream.get(topic, "S") != "S"
    ]
    if arrival_order and any(topic.internal for topic in sub.topics.values()):
        live = "live workers with at_least_once process it in the order of arrival"
        found.append(("T", f"{', '.join(t for t in sub.inputs if t in upstream)}: {live}"))
    found += [pair for node in sub.nodes for pair in _weakening(node)]
    equality = _weakest(each for each, _ in found)
    how = _HOW[engine]
    return Stage(sub, sub.tasks(counts), equality, how, tuple(why for _, why in found))


def _lowered(stage: Stage, topology: Topology, lower: Lower) -> Stage:
    found = "lower='off'" if lower == "off" else lowering_of(stage.subtopology, topology)
    if isinstance(found, str):
        return replace(stage, why_not=found)
    return replace(stage, lowering=found, how=_LOWERED)


def planned_again(topology: Topology, counts: Mapping[str, int], manifest: Manifest) -> Plan | None:
    """Return the plan of the history that wrote a snapshot; None if the manifest lacks its offsets.

    Raises:
        TopologyError: the snapshot belongs to another program.
    """
    if not manifest.reads:
        return None
    manifest.check(topology, {})
    until_ms = FAR_MS if manifest.cut_ms is None else manifest.cut_ms
    span = TimeSpan(since_ms=manifest.since_ms, until_ms=until_ms)
    # The log's counts replace declared ones. The manifest's replace both: tasks and their keys were
    # divided by them.
    counts = {spec.name: spec.partitions or 1 for spec in topology.topics.values()} | {**counts}
    plan = plan_history(topology, counts | manifest.partitions, span=span)
    ends = {(topic, at): (start, end) for topic, at, start, end in manifest.reads}
    return replace(plan, ends=ends)


def without_lowering(plan: Plan, reason: str) -> Plan:
    """Return the plan with every stage run by tasks, for a reason that `explain` shows."""
    stages = [
        replace(stage, lowering=None, how=_HOW[plan.engine], why_not=reason)
        if stage.lowering is not None
        else stage
        for stage in plan.stages
    ]
    return replace(plan, stages=tuple(stages))


def _weakest(found: Iterable[Equality]) -> Equality:
    # `MEANINGS` goes from the strongest class to the weakest.
    weakest: Equality = "S"
    for each in found:
        weakest = max(weakest, each, key=list(MEANINGS).index)
    return weakest


def _weakening(node: Node) -> Iterable[tuple[Equality, str]]:
    """Yield why a node's rows don't follow from its records alone, with the class that is left."""
    emit = getattr(node, "emit", None)
    if emit == Emit.COMMIT:
        yield "T", f"{node.name}: which rows are emitted depends on commits"
    if isinstance(emit, Emit) and emit.is_early and emit.clock == "wall":
        yield "T", f"{node.name}: early rows depend on the wall clock"
    if node.waits_idle_ms is not None:
        yield "T", f"{node.name}: idle_after depends on the wall clock"
    if isinstance(node, AsyncMapValues):
        yield (
            "K" if node.ordered == "key" else "T",
            f"{node.name}: its function calls other systems",
        )
    if isinstance(node, GlobalJoin):
        yield "T", f"{node.name}: it looks rows up in the final global table"
    if isinstance(node, Process) and any(each.clock == "wall" for each in node.punctuations):
        yield "T", f"{node.name}: wall-clock punctuations don't run"


def _spans(topology: Topology, span: TimeSpan) -> dict[str, TimeSpan]:
    spans: dict[str, TimeSpan] = {}
    for node in topology.nodes:
        if not isinstance(node, Entry) or node.topic.internal:
            continue
        # A table needs its whole changelog: a part of the changelog would give another table.
        since_ms = span.since_ms if isinstance(node, Source) else UNKNOWN_MS
        # A topic that is read both as a stream and as a table is read from its start.
        before = spans.get(node.topic.name, span)
        spans[node.topic.name] = TimeSpan(
            since_ms=min(since_ms, before.since_ms), until_ms=span.until_ms
        )
    return spans


def _notes(topology: Topology, agents: Iterable[str]) -> Iterable[str]:
    if names := ", ".join(agents):
        yield f"agents don't run, because their effects can't be undone or repeated: {names}"
    for table in topology.global_tables:
        yield f"global table {table.name}: {table.topic.name} is read whole before the first stage"


def _stage_lines(at: int, stage: Stage, counts: Mapping[str, int]) -> Sequence[str]:
    sub = stage.subtopology
    reads = ", ".join(f"{topic} ({counts[topic]})" for topic in sub.inputs)
    writes = sorted({topic.name for node in sub.nodes for topic in node.writes})
    shuffles = {n.topic.name for n in sub.nodes if isinstance(n, RepartitionSink)}
    lines = [f"  stage {at + 1}: sub-topology {stage.number}, {quantity(stage.tasks, 'task')}"]
    lines.append(f"    reads {reads}")
    for name in writes:
        kind = "stages, by (stream time, source, position)" if name in shuffles else "writes"
        lines.append(f"    {kind} {name}")
    if sub.stores:
        lines.append(f"    state: {', '.join(store.name for store in sub.stores)}")
    lines.append(f"    run by {stage.how}; equality {stage.equality}")
    lines += [f"      reason: {reason}" for reason in stage.reasons]
    if stage.why_not:
        lines.append(f"      not lowered: {stage.why_not}")
    return lines


def _moment(at_ms: int) -> str:
    return moment(at_ms).isoformat()
