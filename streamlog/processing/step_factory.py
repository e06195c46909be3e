"""Which step runs a node: one line per kind, and what a step may know of its task.

A new operator is a node (`nodes`), a step in a module of its own, and a line here. Rule of the
file: steps are made in build order, so the steps of everything that a node names (parents, tables)
exist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

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


class StepDeps(msgspec.Struct, frozen=True):
    """What a step may use of its task."""

    subtopology: Subtopology
    partition: int
    partitions: Mapping[str, int]
    """Partition counts of all topics."""
    store: KeyValueStore
    collector: Collector
    owner: int
    """Larger for each later owner of the state."""
    inputs: Mapping[PartitionKey, Input]
    steps: Mapping[str, Step]
    """The steps that exist so far."""
    global_tables: GlobalTables

    def feeds(self, node: Node) -> list[TimeSource]:
        """Return the time sources of this node's records in this task."""
        counted = self._counted_by_joins(node)
        return [
            counted.get(feed, feed)
            for origin in self.subtopology.origins(node)
            for feed in self._feeds_of(origin)
        ]

    def _counted_by_joins(self, node: Node) -> dict[TimeSource, NodeTimeSource]:
        """Return the inputs that reach the node through joins of streams only, as these count them.

        A join keeps records that find no partner: they advance its time, and with it the time of
        the nodes after it, though the join forwards nothing for them (decision 012). An input that
        comes through several joins is counted by each of them.
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
        """Return, for each of the node's `feeds`, the inputs whose time marks reach it in order.

        Empty for a time source with rows of its own times that is fed through a repartition topic:
        there, the point at which a mark arrives between the rows depends on the speed of other
        tasks.
        """
        found: list[set[Input]] = []
        for origin in self.subtopology.origins(node):
            inputs = self._inputs_above(origin)
            if not isinstance(origin, Entry) and any(each.topic.internal for each in inputs):
                inputs = set()
            found += [inputs] * len(self._feeds_of(origin))
        return found

    def clocks(self, node: Node) -> list[TimeSource]:
        """Return the time sources that tell this node the event time in this task."""
        counted = self._counted_by_joins(node)
        return [
            counted.get(feed, feed)
            for above in self.subtopology.clocks(node)
            for feed in (
                self._feeds_of(above) if isinstance(above, Entry) else self.steps[above.name].clocks
            )
        ]

    def table(self, name: str) -> Lookup:
        """Return the step that keeps a table.

        Raises:
            TopologyError: its rows can't be looked up by key.
        """
        step = self.steps[name]
        if not isinstance(step, Lookup):
            raise TopologyError(f"{name!r} is not a table that a stream can be joined with")
        return step

    def sends_old_values(self, node: Node) -> bool:
        """Return whether the node's changes carry the values that they replace."""
        return self.subtopology.sends_old_values(node)

    def context(self, node: Node) -> StepContext:
        """Return what a step that keeps rows needs."""
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


def step_of(node: Node, deps: StepDeps) -> Step:
    """Return the step that runs a node."""
    make = _KINDS.get(type(node))
    return stateless_step(node) if make is None else make(node, deps)


def _rows(step: Callable[[Any, StepContext], Step]) -> _Maker:
    """Return the maker of a step that keeps rows of its own."""
    return lambda node, deps: step(node, deps.context(node))


def _foreign_key_join(node: ForeignKeyJoin, deps: StepDeps) -> Step:
    sides = [cast("TableSideStep", deps.steps[side]) for side in node.parents]
    return ForeignKeyJoinStep(node, deps.store, deps.collector, sides=sides)


def _foreign_key_rows(node: ForeignKeyRows, deps: StepDeps) -> Step:
    feeds, sends_old = deps.feeds(node), deps.sends_old_values(node)
    return ForeignKeyRowsStep(node, deps.store, feeds=feeds, sends_old_values=sends_old)


def _suppress_until_closed(node: SuppressUntilClosed, deps: StepDeps) -> Step:
    return SuppressUntilClosedStep(
        node,
        deps.store,
        deps.collector,
        feeds=deps.feeds(node),
        marked_by=deps.marked_by(node),
        partition=deps.partition,
        sends_old_values=deps.sends_old_values(node),
    )


def _table_table_join(node: TableTableJoin, deps: StepDeps) -> Step:
    return TableTableJoinStep(
        node,
        deps.store,
        deps.collector,
        sides=[cast("TableSideStep", deps.steps[side]) for side in node.parents],
        feeds=deps.feeds(node),
        sends_old_values=deps.sends_old_values(node),
    )


def _view(node: View, deps: StepDeps) -> Step:
    step = cast("ViewStep", stateless_step(node))
    step.sends_old_values = deps.sends_old_values(node)
    return step


def _keeping(step: Callable[..., Step]) -> _Maker:
    """Return the maker of a step that keeps the rows of a table."""

    def make(node: Node, deps: StepDeps) -> Step:
        sends_old = deps.sends_old_values(node)
        return step(node, deps.store, deps.collector, sends_old_values=sends_old)

    return make


def _process(node: Process, deps: StepDeps) -> Step:
    return ProcessorStep(
        node,
        deps.store,
        app_id=deps.subtopology.app_id,
        partition=deps.partition,
        feeds=deps.clocks(node),
        is_watched=deps.subtopology.is_watched(node),
        rows=_rows_of(node, deps) if node.tables else None,
    )


def _rows_of(node: Process, deps: StepDeps) -> TaskRows:
    known = tables_in(deps.subtopology)
    tables = {name: each for name, each in known.items() if each.owner.name in node.tables}
    steps = {name: deps.table(name) for name in node.tables}
    return TaskRows(node.name, tables, steps, deps.partition, deps.partitions)


def _writable_table(node: WritableTable, deps: StepDeps) -> Step:
    workers = (n for n in deps.subtopology.nodes if isinstance(n, AgentTables | Process))
    return WritableTableStep(
        node,
        deps.store,
        deps.collector,
        partition=deps.partition,
        owner=deps.owner,
        has_writers=any(node.name in each.tables for each in workers),
        sends_old_values=deps.sends_old_values(node),
    )


def _async_map_values(node: AsyncMapValues, deps: StepDeps) -> Step:
    return AsyncMapValuesStep(
        node,
        deps.store,
        deps.collector,
        feeds=deps.feeds(node),
        partition=deps.partition,
        owner=deps.owner,
    )


def _join_side(node: JoinSide, deps: StepDeps) -> Step:
    return JoinSideStep(node, deps.store)


def _stream_join(node: StreamJoin, deps: StepDeps) -> Step:
    return StreamJoinStep(
        node,
        [cast("JoinSideStep", deps.steps[side]) for side in node.parents],
        deps.store,
        deps.collector,
        feeds=deps.feeds(node),
        partition=deps.partition,
        one_by_one=deps.subtopology.record_at_a_time,
    )


def _as_of_join(node: AsOfJoin, deps: StepDeps) -> Step:
    table = deps.steps[node.table]
    if not isinstance(table, AsOfLookup):
        raise TopologyError(f"table {node.table!r} keeps no versions for join {node.name!r}")
    if node.waiting is None:
        return AsOfJoinStep(node, table, deps.collector)
    return WaitingAsOfJoinStep(
        node,
        table,
        deps.collector,
        waiting=NamedStore(deps.store, node.waiting),
        feeds=deps.feeds(node),
        partition=deps.partition,
    )


def _repartition_sink(node: RepartitionSink, deps: StepDeps) -> Step:
    others = [
        step
        for name, step in deps.steps.items()
        if isinstance(step, RepartitionStep) and node.topic in deps.subtopology.by_name[name].writes
    ]
    return RepartitionStep(
        node.name,
        node.topic,
        deps.collector,
        partitions=deps.partitions[node.topic.name],
        feeds=deps.feeds(node),
        idle_marks_ms=deps.subtopology.idle_marks_ms[node.topic.name],
        other_writer=others[0] if others else None,
        is_timed=node.topic.name in deps.subtopology.timed,
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
    SuppressWithin: lambda node, deps: SuppressWithinStep(node, deps.store, deps.collector),
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
    TableJoin: lambda node, deps: TableJoinStep(node, deps.table(node.table), deps.collector),
    Split: lambda node, _: SplitStep(node),
    Branch: lambda node, deps: BranchStep(node, cast("SplitStep", deps.steps[node.parents[0]])),
    Dedupe: lambda node, deps: DedupeStep(node, deps.store),
    SetTimestamp: lambda node, deps: SetTimestampStep(
        node, feeds=[input_of(feed) for feed in deps.feeds(node)], partition=deps.partition
    ),
    JoinSide: _join_side,
    StreamJoin: _stream_join,
    VersionedTable: _keeping(VersionedTableStep),
    AsOfJoin: _as_of_join,
    GlobalJoin: lambda node, deps: GlobalJoinStep(
        node, deps.global_tables.rows_of(node.table.name), deps.collector
    ),
    Sink: lambda node, deps: SinkStep(node.name, node.topic, deps.collector),
    RepartitionSink: _repartition_sink,
}
