"""Plan: how an app's history is run: its stages, and what their rows will be equal to.

A topology is cut at its repartition topics: a stage is a sub-topology, run as one task per
partition when all that write into the topics it reads are done. What is said of equality is said
here, so that a runner only has to keep to the order of the log:

- S: each output partition gets the same records in the same order.
- K: the same records per key in the same order; keys may interleave differently.
- T: the last value of each key is the same; how many came before it depends on a clock.

That is equality with workers that read what is in the log. What holds for those that are fed while
they run is derived in `fed`.

Rule of the file: pure. What can't be the same is refused, with what to do, or told by `explain`.
Not done here: reading the log, running tasks (`task_run`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from streamlog.durations import moment
from streamlog.errors import TopologyError
from streamlog.history.fed import FED_MEANINGS, Flow, fed_equality
from streamlog.history.lowering import Lower, Lowering, lowering_of
from streamlog.nodes.process_nodes import Process
from streamlog.nodes.stream_nodes import AsyncMapValues, Entry, Node, RepartitionSink, Source
from streamlog.nodes.table_nodes import GlobalJoin
from streamlog.processing.inputs.record_queue import TimeSpan
from streamlog.records.epoch_chains import EpochChain
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


@dataclass(frozen=True, slots=True)
class Stage:
    """A sub-topology, and all that is known of its run before it runs."""

    subtopology: Subtopology
    tasks: int
    equality: Equality
    """Of what it writes."""
    how: str
    """What runs it."""
    reasons: tuple[str, ...] = ()
    """Why that is not S."""
    lowering: Lowering | None = None
    """How the engine folds it in its own way; None: the task takes every record."""
    why_not: str = ""
    """Why the engine does not, if it could."""

    @property
    def number(self) -> int:
        """That of the sub-topology."""
        return self.subtopology.number


@dataclass(frozen=True, slots=True)
class PlannedLog:
    """A partition's log: one that was made again, or cut, is another."""

    topic_id: str
    """As hexadecimal text; empty if brokers tell none."""
    epochs: EpochChain
    """Of the records before the end that was planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run, in order."""

    topology: Topology
    counts: Mapping[str, int]
    """Partitions of every topic that is read or written."""
    stages: tuple[Stage, ...]
    spans: Mapping[str, TimeSpan]
    """By topic that is read from the log: which time of it is taken."""
    engine: EngineName
    outputs: Outputs
    notes: tuple[str, ...] = ()
    """What is not run, or is not as it was."""
    ends: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """First offset and end of each partition that is read, when it was planned."""
    logs: Mapping[tuple[str, int], PlannedLog] = field(default_factory=dict)
    """Which logs these are offsets of."""

    @property
    def fed(self) -> dict[str, Flow]:
        """What holds of each output topic when workers are fed while they run."""
        return fed_equality([stage.subtopology for stage in self.stages], self.counts)

    @property
    def equality(self) -> Equality:
        """Of all stages together."""
        return _weakest(stage.equality for stage in self.stages)

    @property
    def until_ms(self) -> int:
        """FAR_MS: as far as the log goes."""
        return min((span.until_ms for span in self.spans.values()), default=FAR_MS)

    @property
    def since_ms(self) -> int:
        """UNKNOWN_MS: from the beginning of the log."""
        return max((span.since_ms for span in self.spans.values()), default=UNKNOWN_MS)

    def explain(self) -> str:
        """What runs how, and what it will be equal to, as text for people."""
        lines = [f"history of {self.topology.app_id}, engine {self.engine}: {self._times()}"]
        for at, stage in enumerate(self.stages):
            lines += _told(at, stage, self.counts)
        for (topic, partition), (start, end) in sorted(self.ends.items()):
            lines.append(f"  reads {topic}-{partition}: offsets {start} up to {end} at most")
        whole = f"{self.equality}, {MEANINGS[self.equality]}"
        lines.append(f"  equal to a live run that reads what is in the log: {whole}")
        for topic, flow in sorted(self.fed.items()):
            lines.append(
                f"  {topic} equal to a live run that is fed while it runs: {flow.equality}, "
                f"{FED_MEANINGS[flow.equality]}"
            )
            lines += [f"    because {flow.why}"] if flow.why and flow.equality != "S" else []
            lines += [f"    as long as {each}" for each in flow.provided]
        lines += [f"  note: {note}" for note in self.notes]
        lines.append(f"  outputs: {_OUTPUTS[self.outputs]}")
        return "\n".join(lines)

    def _times(self) -> str:
        is_whole = self.since_ms == UNKNOWN_MS
        since = "the beginning" if is_whole else moment(self.since_ms).isoformat()
        until = "the end of the log"
        if self.until_ms < FAR_MS:
            until = f"the first record of each partition that has come to {_moment(self.until_ms)}"
        return f"from {since} to {until}"


_HOW: Mapping[EngineName, str] = {
    "local": "the task itself, one partition after the other",
    "spark": "the task itself, in a task of Spark per partition (functions are Python)",
}
_LOWERED = (
    "columns: windows of whole numbers are folded before the shuffle and behind it, without an "
    "object per record; their rows go to the task, which closes windows and keeps what is open"
)
_OUTPUTS: Mapping[Outputs, str] = {
    "discard": "discarded; what counts is the state",
    "stage": "staged in files, for nobody to see yet",
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
    """The plan of an app's history.

    Args:
        topology: of the app.
        counts: partitions of the topics that are in the log; those of the repartition topics
            follow.
        span: which time of the streams is taken; tables are always taken from their beginning.
        engine: what will run it.
        outputs: what becomes of the rows.
        agents: names of the app's agents, which are not part of it.
        arrival_order: the live workers take what comes through repartition topics in the order
            of its arrival (`guarantee="at_least_once"`).
        lower: "auto": stages that Spark can fold natively with the same rows are folded so.

    Raises:
        TopologyError: the history can't be what a live run would give: the app has nothing to
            run, sub-topologies feed each other in a ring, or a topic is both written and read.
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
            f"agent {agent!r} sets rows of table {tables[0]!r}, and agents are not run over a "
            "history: set them in a processor, which is, or leave the table out of this app"
        )
    written = {t.name for node in topology.nodes for t in node.writes if not t.internal}
    for sub in topology.subtopologies:
        if sub.looped:
            raise TopologyError(
                f"sub-topology {sub.number} of {topology.app_id!r} reads {sorted(sub.looped)}, "
                "which is made of its own rows: there is no order in which a history of that "
                "could be run; break the ring, or run it live"
            )
        if again := sorted(written & {*sub.topics}):
            raise TopologyError(
                f"{topology.app_id!r} writes {again[0]!r} and reads it again: what came of that "
                "depends on who wrote first; use .repartition(name=...) between the two, or make "
                "two apps of it"
            )


def _upstream_first(topology: Topology) -> list[Subtopology]:
    ordered: list[Subtopology] = []
    pending = list(topology.subtopologies)
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
    found: list[tuple[Equality, str]] = [
        (upstream[topic], f"{topic} above it is {upstream[topic]}")
        for topic in sub.inputs
        if upstream.get(topic, "S") != "S"
    ]
    if arrival_order and any(topic.internal for topic in sub.topics.values()):
        live = "live workers of at_least_once take it in the order of its arrival"
        found.append(("T", f"{', '.join(t for t in sub.inputs if t in upstream)}: {live}"))
    found += [pair for node in sub.nodes for pair in _clouded(node)]
    equality = _weakest(each for each, _ in found)
    how = _HOW[engine]
    return Stage(sub, sub.tasks(counts), equality, how, tuple(why for _, why in found))


def _lowered(stage: Stage, topology: Topology, lower: Lower) -> Stage:
    found = "lower='off'" if lower == "off" else lowering_of(stage.subtopology, topology)
    if isinstance(found, str):
        return replace(stage, why_not=found)
    return replace(stage, lowering=found, how=_LOWERED)


def planned_again(topology: Topology, counts: Mapping[str, int], manifest: Manifest) -> Plan | None:
    """The plan of the history that has left a snapshot; None: it does not say where it began.

    Raises:
        TopologyError: the snapshot is of another program.
    """
    if not manifest.reads:
        return None
    manifest.check(topology, {})
    until_ms = FAR_MS if manifest.cut_ms is None else manifest.cut_ms
    span = TimeSpan(since_ms=manifest.since_ms, until_ms=until_ms)
    counts = {spec.name: spec.partitions or 1 for spec in topology.topics.values()} | {**counts}
    plan = plan_history(topology, counts | manifest.partitions, span=span)
    ends = {(topic, at): (start, end) for topic, at, start, end in manifest.reads}
    return replace(plan, ends=ends)


def taken_by_tasks(plan: Plan, reason: str) -> Plan:
    """The same plan without any stage that the engine folds in its own way."""
    stages = [
        replace(stage, lowering=None, how=_HOW[plan.engine], why_not=reason)
        if stage.lowering is not None
        else stage
        for stage in plan.stages
    ]
    return replace(plan, stages=tuple(stages))


def _weakest(found: Iterable[Equality]) -> Equality:
    weakest: Equality = "S"
    for each in found:
        weakest = max(weakest, each, key=list(MEANINGS).index)
    return weakest


def _clouded(node: Node) -> Iterable[tuple[Equality, str]]:
    """What in a node does not follow from its records alone."""
    emit = getattr(node, "emit", None)
    if emit == Emit.COMMIT:
        yield "T", f"{node.name}: which rows go on depends on commits"
    if isinstance(emit, Emit) and emit.is_early and emit.clock == "wall":
        yield "T", f"{node.name}: early rows by the clock on the wall"
    if node.waits_idle_ms is not None:
        yield "T", f"{node.name}: idle_after goes by the clock on the wall"
    if isinstance(node, AsyncMapValues):
        yield "K" if node.ordered == "key" else "T", f"{node.name}: calls the world outside"
    if isinstance(node, GlobalJoin):
        yield "T", f"{node.name}: looks into a global table as it is in the end"
    if isinstance(node, Process) and any(each.clock == "wall" for each in node.punctuations):
        yield "T", f"{node.name}: punctuations by the clock on the wall are not run"


def _spans(topology: Topology, span: TimeSpan) -> dict[str, TimeSpan]:
    spans: dict[str, TimeSpan] = {}
    for node in topology.nodes:
        if not isinstance(node, Entry) or node.topic.internal:
            continue
        # The rows of a table are all that were ever written: there is no part of them.
        since_ms = span.since_ms if isinstance(node, Source) else UNKNOWN_MS
        before = spans.get(node.topic.name, span)
        spans[node.topic.name] = TimeSpan(
            since_ms=min(since_ms, before.since_ms), until_ms=span.until_ms
        )
    return spans


def _notes(topology: Topology, agents: Iterable[str]) -> Iterable[str]:
    if names := ", ".join(agents):
        yield f"agents are not run, as what they do can't be undone or done twice: {names}"
    for table in topology.global_tables:
        yield f"global table {table.name}: all of {table.topic.name} is read before the first stage"


def _told(at: int, stage: Stage, counts: Mapping[str, int]) -> Sequence[str]:
    sub = stage.subtopology
    reads = ", ".join(f"{topic} ({counts[topic]})" for topic in sub.inputs)
    writes = sorted({topic.name for node in sub.nodes for topic in node.writes})
    shuffles = {n.topic.name for n in sub.nodes if isinstance(n, RepartitionSink)}
    lines = [f"  stage {at + 1}: sub-topology {stage.number}, {stage.tasks} tasks"]
    lines.append(f"    reads {reads}")
    for name in writes:
        kind = "stages, by (stream time, source, position)" if name in shuffles else "writes"
        lines.append(f"    {kind} {name}")
    if sub.stores:
        lines.append(f"    state: {', '.join(store.name for store in sub.stores)}")
    lines.append(f"    run by {stage.how}; equality {stage.equality}")
    lines += [f"      because of {reason}" for reason in stage.reasons]
    if stage.why_not:
        lines.append(f"      not lowered: {stage.why_not}")
    return lines


def _moment(at_ms: int) -> str:
    return moment(at_ms).isoformat()
