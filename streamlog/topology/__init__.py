"""Topology: what an app computes, as data: frozen nodes, cut into sub-topologies.

The DSL adds nodes to a `TopologyBuilder`; `build` checks them and cuts the graph. Rule of the
room: nothing here runs a record. Not done here: the values (`processing`), choosing serdes
(`dsl`), creating topics (`worker`).
"""

from __future__ import annotations

from streamlog.topology.aggregator import Aggregator
from streamlog.topology.builder import TopologyBuilder
from streamlog.topology.cogrouped import Port
from streamlog.topology.counted import CountedAggregate
from streamlog.topology.foreign_keys import ForeignKeyJoin, ForeignKeyRows, Refer
from streamlog.topology.global_tables import GlobalJoin, GlobalTable
from streamlog.topology.graph import Topology, dead_letter_topics
from streamlog.topology.nodes import (
    ORDERS,
    Aggregate,
    Aggregation,
    AsyncMapValues,
    Entry,
    Filter,
    FilterNot,
    FlatMap,
    FlatMapValues,
    Map,
    MapValues,
    Merge,
    Node,
    Order,
    Peek,
    Rekey,
    RepartitionSink,
    Sink,
    Source,
    Stateless,
    TableFilter,
    TableJoin,
    TableMapValues,
    TableSource,
    View,
    WholeNumbers,
)
from streamlog.topology.policies import ErrorPolicy, on_error
from streamlog.topology.process import (
    ClockName,
    ExpiringProcessorStore,
    Process,
    ProcessorStore,
    Punctuation,
    TimerStore,
)
from streamlog.topology.record_windows import (
    RecordWindowsAggregate,
    SessionAggregate,
    SlidingAggregate,
)
from streamlog.topology.regrouped import Regroup, TableAggregate
from streamlog.topology.retimed import SetTimestamp
from streamlog.topology.routes import Branch, Dedupe, Split
from streamlog.topology.stream_joins import How, JoinSide, StreamJoin
from streamlog.topology.subtopology import Feeder, Subtopology
from streamlog.topology.suppressed import Suppress, SuppressUntilClosed, SuppressWithin
from streamlog.topology.table_joins import StreamTable, TableSide, TableTableJoin
from streamlog.topology.topics import TOPIC_NAME_LENGTH_MAX, TopicSpec, check_name
from streamlog.topology.unwindowed import AtCommits, ExpiringAggregate
from streamlog.topology.versioned import AsOfJoin, VersionedTable
from streamlog.topology.windowed import WindowedAggregate
from streamlog.topology.writable_tables import AgentTables, WritableTable

__all__ = [
    "ORDERS",
    "TOPIC_NAME_LENGTH_MAX",
    "AgentTables",
    "Aggregate",
    "Aggregation",
    "Aggregator",
    "AsOfJoin",
    "AsyncMapValues",
    "AtCommits",
    "Branch",
    "ClockName",
    "CountedAggregate",
    "Dedupe",
    "Entry",
    "ErrorPolicy",
    "ExpiringAggregate",
    "ExpiringProcessorStore",
    "Feeder",
    "Filter",
    "FilterNot",
    "FlatMap",
    "FlatMapValues",
    "ForeignKeyJoin",
    "ForeignKeyRows",
    "GlobalJoin",
    "GlobalTable",
    "How",
    "JoinSide",
    "Map",
    "MapValues",
    "Merge",
    "Node",
    "Order",
    "Peek",
    "Port",
    "Process",
    "ProcessorStore",
    "Punctuation",
    "RecordWindowsAggregate",
    "Refer",
    "Regroup",
    "Rekey",
    "RepartitionSink",
    "SessionAggregate",
    "SetTimestamp",
    "Sink",
    "SlidingAggregate",
    "Source",
    "Split",
    "Stateless",
    "StreamJoin",
    "StreamTable",
    "Subtopology",
    "Suppress",
    "SuppressUntilClosed",
    "SuppressWithin",
    "TableAggregate",
    "TableFilter",
    "TableJoin",
    "TableMapValues",
    "TableSide",
    "TableSource",
    "TableTableJoin",
    "TimerStore",
    "TopicSpec",
    "Topology",
    "TopologyBuilder",
    "VersionedTable",
    "View",
    "WholeNumbers",
    "WindowedAggregate",
    "WritableTable",
    "check_name",
    "dead_letter_topics",
    "on_error",
]
