"""Which step does what a node says: one line per kind, and what a step may know of its task.

A new operator is a node (`topology`), a step of its own module, and a line here. Rule of the file:
steps are made in build order, so whatever a node names (parents, tables) is there already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from streamlog.errors import TopologyError
from streamlog.nodes.process_nodes import Process
from streamlog.nodes.stream_nodes import (
    Aggregate,
    AsyncMapValues,
    Branch,
    Dedupe,
    Entry,
    JoinSide,
    Merge,
    Node,
    Port,
    RepartitionSink,
    SetTimestamp,
    Sink,
    Source,
    Split,
    StreamJoin,
    TableFilter,
    TableJoin,
    TableMapValues,
    TableSource,
    View,
)
from streamlog.nodes.table_nodes import (
    AgentTables,
    AsOfJoin,
    AtCommits,
    ExpiringAggregate,
    ForeignKeyJoin,
    ForeignKeyRows,
    GlobalJoin,
    Refer,
    Regroup,
    StreamTable,
    SuppressUntilClosed,
    SuppressWithin,
    TableAggregate,
    TableSide,
    TableTableJoin,
    VersionedTable,
    WritableTable,
)
from streamlog.nodes.window_nodes import (
    CountedAggregate,
    SessionAggregate,
    SlidingAggregate,
    WindowedAggregate,
)
from streamlog.processing.async_map import AsyncMapValuesStep
from streamlog.processing.branch_dedupe import BranchStep, DedupeStep, SplitStep
from streamlog.processing.column_batch import TimeSource
from streamlog.processing.inputs.record_queue import Input, PartitionKey
from streamlog.processing.joins.stream_join import JoinSideStep, StreamJoinStep
from streamlog.processing.joins.stream_table_join import (
    AsOfJoinStep,
    AsOfLookup,
    GlobalJoinStep,
    GlobalTables,
    Lookup,
    TableJoinStep,
    TableStep,
    VersionedTableStep,
    WaitingAsOfJoinStep,
)
from streamlog.processing.joins.table_table_join import (
    ForeignKeyJoinStep,
    ForeignKeyRowsStep,
    ReferStep,
    TableSideStep,
    TableTableJoinStep,
)
from streamlog.processing.node_time import JoinTimeSource, NodeTimeSource, input_of
from streamlog.processing.outbox import Collector
from streamlog.processing.processor_step import ProcessorStep
from streamlog.processing.set_timestamp import SetTimestampStep
from streamlog.processing.stateless import (
    PortStep,
    RepartitionStep,
    SinkStep,
    ViewStep,
    stateless_step,
)
from streamlog.processing.step import Step, StepContext
from streamlog.processing.table_rows import TaskRows, tables_in
from streamlog.processing.tables.aggregate import AggregateStep
from streamlog.processing.tables.suppress import SuppressUntilClosedStep, SuppressWithinStep
from streamlog.processing.tables.table_groupby import RegroupStep
from streamlog.processing.tables.ttl_aggregate import AtCommitsStep, TtlAggregateStep
from streamlog.processing.tables.writable_table import WritableTableStep
from streamlog.processing.windows.count_windows import CountWindowsStep
from streamlog.processing.windows.session_sliding_windows import SessionStep, SlidingStep
from streamlog.processing.windows.windowed_aggregate import WindowedAggregateStep
from streamlog.tables.stores.store import KeyValueStore, NamedStore
from streamlog.topology import Subtopology

_Maker: TypeAlias = Callable[[Any, "StepDeps"], Step]


@dataclass(frozen=True, slots=True)
class StepDeps:
    """What is around a step in its task."""

    subtopology: Subtopology
    partition: int
    partitions: Mapping[str, int]
    """Partition counts of all topics."""
    store: KeyValueStore
    collector: Collector
    owner: int
    """Grows with every owner of the state."""
    inputs: Mapping[PartitionKey, Input]
    steps: Mapping[str, Step]
    """Those that are made already."""
    global_tables: GlobalTables

    def feeds(self, node: Node) -> list[TimeSource]:
        """Where this node's records come from, in this task."""
        counted = self._counted_by_joins(node)
        return [
            counted.get(feed, feed)
            for origin in self.subtopology.origins(node)
            for feed in self._feeds_of(origin)
        ]

    def _counted_by_joins(self, node: Node) -> dict[TimeSource, NodeTimeSource]:
        """Inputs whose records come through joins of streams alone, as these have counted them.

        A join keeps records that find no partner: they move its time, and with it the time of the
        nodes behind it, though nothing of them comes out (decision 012). What comes through several
        joins is counted by each of them.
        """
        above = self.subtopology.nearest(node, lambda n: isinstance(n, Entry | StreamJoin))
        direct = {
            feed for each in above if isinstance(each, Entry) for feed in self._feeds_of(each)
        }
        counted: defaultdict[TimeSource, list[NodeTimeSource]] = defaultdict(list)
        for join in above:
            if isinstance(join, StreamJoin):
                found = self._counted_by_joins(join)
                reached = self.steps[join.name].node_time.reached
                found.update((entry, feed) for entry, feed in reached.items())
                for entry, counting in found.items():
                    counted[entry].append(counting)
        return {
            entry: feeds[0] if len(feeds) == 1 else JoinTimeSource(feeds)
            for entry, feeds in counted.items()
            if entry not in direct
        }

    def marked_by(self, node: Node) -> list[set[Input]]:
        """For each of its `feeds` the inputs that it comes from, in which time may be marked.

        None if its rows come at times of their own, and through a repartition topic: where a mark
        there stands between them depends on how fast others are.
        """
        found: list[set[Input]] = []
        for origin in self.subtopology.origins(node):
            inputs = self._inputs_above(origin)
            if not isinstance(origin, Entry) and any(each.topic.internal for each in inputs):
                inputs = set()
            found += [inputs] * len(self._feeds_of(origin))
        return found

    def clocks(self, node: Node) -> list[TimeSource]:
        """Where this node learns from how far event time has come, in this task."""
        counted = self._counted_by_joins(node)
        return [
            counted.get(feed, feed)
            for above in self.subtopology.clocks(node)
            for feed in (
                self._feeds_of(above) if isinstance(above, Entry) else self.steps[above.name].clocks
            )
        ]

    def table(self, name: str) -> Lookup:
        """The step that keeps a table.

        Raises:
            TopologyError: its rows can't be looked up by key.
        """
        step = self.steps[name]
        if not isinstance(step, Lookup):
            raise TopologyError(f"{name!r} is no table that can be joined with")
        return step

    def sends_old_values(self, node: Node) -> bool:
        """Whether changes that this node hands on say what they replace: somebody needs it."""
        return self.subtopology.sends_old_values(node)

    def context(self, node: Node) -> StepContext:
        """What a step that keeps rows needs."""
        return StepContext(
            self.store,
            self.collector,
            self.partition,
            self.feeds(node),
            self.sends_old_values(node),
        )

    def _inputs_above(self, origin: Node) -> set[Input]:
        if isinstance(origin, Entry):
            found = self.inputs.get((origin.topic.name, self.partition))
            return set() if found is None else {found}
        return {
            each for above in self.subtopology.origins(origin) for each in self._inputs_above(above)
        }

    def _feeds_of(self, origin: Node) -> Sequence[TimeSource]:
        if not isinstance(origin, Entry):
            return self.steps[origin.name].own_time_sources
        found = self.inputs.get((origin.topic.name, self.partition))
        return () if found is None else (found,)


def step_of(node: Node, around: StepDeps) -> Step:
    """The node at work."""
    make = _KINDS.get(type(node))
    return stateless_step(node) if make is None else make(node, around)


def _rows(step: Callable[[Any, StepContext], Step]) -> _Maker:
    """The maker of a step that keeps rows of its own."""
    return lambda node, around: step(node, around.context(node))


def _foreign_key_join(node: ForeignKeyJoin, around: StepDeps) -> Step:
    sides = [cast("TableSideStep", around.steps[side]) for side in node.parents]
    return ForeignKeyJoinStep(node, around.store, around.collector, sides=sides)


def _foreign_key_rows(node: ForeignKeyRows, around: StepDeps) -> Step:
    feeds, telling = around.feeds(node), around.sends_old_values(node)
    return ForeignKeyRowsStep(node, around.store, feeds=feeds, sends_old_values=telling)


def _suppress_until_closed(node: SuppressUntilClosed, around: StepDeps) -> Step:
    return SuppressUntilClosedStep(
        node,
        around.store,
        around.collector,
        feeds=around.feeds(node),
        marked_by=around.marked_by(node),
        partition=around.partition,
        sends_old_values=around.sends_old_values(node),
    )


def _table_table_join(node: TableTableJoin, around: StepDeps) -> Step:
    return TableTableJoinStep(
        node,
        around.store,
        around.collector,
        sides=[cast("TableSideStep", around.steps[side]) for side in node.parents],
        feeds=around.feeds(node),
        sends_old_values=around.sends_old_values(node),
    )


def _view(node: View, around: StepDeps) -> Step:
    step = cast("ViewStep", stateless_step(node))
    step.sends_old_values = around.sends_old_values(node)
    return step


def _keeping(step: Callable[..., Step]) -> _Maker:
    """The maker of a step that keeps the rows of a table."""

    def make(node: Node, around: StepDeps) -> Step:
        telling = around.sends_old_values(node)
        return step(node, around.store, around.collector, sends_old_values=telling)

    return make


def _process(node: Process, around: StepDeps) -> Step:
    return ProcessorStep(
        node,
        around.store,
        app_id=around.subtopology.app_id,
        partition=around.partition,
        feeds=around.clocks(node),
        is_watched=around.subtopology.is_watched(node),
        rows=_rows_of(node, around) if node.tables else None,
    )


def _rows_of(node: Process, around: StepDeps) -> TaskRows:
    known = tables_in(around.subtopology)
    tables = {name: each for name, each in known.items() if each.owner.name in node.tables}
    steps = {name: around.table(name) for name in node.tables}
    return TaskRows(node.name, tables, steps, around.partition, around.partitions)


def _writable_table(node: WritableTable, around: StepDeps) -> Step:
    workers = (n for n in around.subtopology.nodes if isinstance(n, AgentTables | Process))
    return WritableTableStep(
        node,
        around.store,
        around.collector,
        partition=around.partition,
        owner=around.owner,
        has_writers=any(node.name in each.tables for each in workers),
        sends_old_values=around.sends_old_values(node),
    )


def _async_map_values(node: AsyncMapValues, around: StepDeps) -> Step:
    return AsyncMapValuesStep(
        node,
        around.store,
        around.collector,
        feeds=around.feeds(node),
        partition=around.partition,
        owner=around.owner,
    )


def _join_side(node: JoinSide, around: StepDeps) -> Step:
    return JoinSideStep(node, around.store)


def _stream_join(node: StreamJoin, around: StepDeps) -> Step:
    return StreamJoinStep(
        node,
        [cast("JoinSideStep", around.steps[side]) for side in node.parents],
        around.store,
        around.collector,
        feeds=around.feeds(node),
        partition=around.partition,
        one_by_one=around.subtopology.record_at_a_time,
    )


def _as_of_join(node: AsOfJoin, around: StepDeps) -> Step:
    table = around.steps[node.table]
    if not isinstance(table, AsOfLookup):
        raise TopologyError(f"{node.table!r} has no history that {node.name!r} could look into")
    if node.waiting is None:
        return AsOfJoinStep(node, table, around.collector)
    return WaitingAsOfJoinStep(
        node,
        table,
        around.collector,
        waiting=NamedStore(around.store, node.waiting),
        feeds=around.feeds(node),
        partition=around.partition,
    )


def _repartition_sink(node: RepartitionSink, around: StepDeps) -> Step:
    beside = [
        step
        for name, step in around.steps.items()
        if isinstance(step, RepartitionStep)
        and node.topic in around.subtopology.by_name[name].writes
    ]
    return RepartitionStep(
        node.name,
        node.topic,
        around.collector,
        partitions=around.partitions[node.topic.name],
        feeds=around.feeds(node),
        idle_marks_ms=around.subtopology.idle_marks_ms[node.topic.name],
        beside=beside[0] if beside else None,
        is_timed=node.topic.name in around.subtopology.timed,
    )


_KINDS: dict[type[Node], _Maker] = {
    Source: lambda node, _: Step(node.name),
    Merge: lambda node, _: Step(node.name),
    Port: lambda node, _: PortStep(node),
    TableSource: _keeping(TableStep),
    Aggregate: _keeping(AggregateStep),
    ExpiringAggregate: _rows(TtlAggregateStep),
    AtCommits: _rows(AtCommitsStep),
    StreamTable: _keeping(TableStep),
    TableAggregate: _keeping(AggregateStep),
    Refer: lambda node, _: ReferStep(node),
    ForeignKeyJoin: _foreign_key_join,
    ForeignKeyRows: _foreign_key_rows,
    SuppressUntilClosed: _suppress_until_closed,
    SuppressWithin: lambda node, around: SuppressWithinStep(node, around.store, around.collector),
    TableMapValues: _view,
    TableFilter: _view,
    TableSide: lambda node, _: TableSideStep(node.name, is_left=node.is_left),
    TableTableJoin: _table_table_join,
    Regroup: lambda node, _: RegroupStep(node),
    WindowedAggregate: _rows(WindowedAggregateStep),
    SessionAggregate: _rows(SessionStep),
    SlidingAggregate: _rows(SlidingStep),
    CountedAggregate: _rows(CountWindowsStep),
    Process: _process,
    WritableTable: _writable_table,
    AgentTables: lambda node, _: Step(node.name),
    AsyncMapValues: _async_map_values,
    TableJoin: lambda node, around: TableJoinStep(node, around.table(node.table), around.collector),
    Split: lambda node, _: SplitStep(node),
    Branch: lambda node, around: BranchStep(node, cast("SplitStep", around.steps[node.parents[0]])),
    Dedupe: lambda node, around: DedupeStep(node, around.store),
    SetTimestamp: lambda node, around: SetTimestampStep(
        node, feeds=[input_of(feed) for feed in around.feeds(node)], partition=around.partition
    ),
    JoinSide: _join_side,
    StreamJoin: _stream_join,
    VersionedTable: _keeping(VersionedTableStep),
    AsOfJoin: _as_of_join,
    GlobalJoin: lambda node, around: GlobalJoinStep(
        node, around.global_tables.rows_of(node.table.name), around.collector
    ),
    Sink: lambda node, around: SinkStep(node.name, node.topic, around.collector),
    RepartitionSink: _repartition_sink,
}
