"""Writable tables: their declaration, and the agent or processors that use each of them directly.

Rule: one agent, or the processors of one task, use the rows of a table directly, in their own
worker. Everything else reads them with `fetch` and `scan` and writes them with `put`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from streamlog.dsl.agent import Agent
from streamlog.dsl.stream_position import AppBuilder, StreamPosition, TableView
from streamlog.dsl.table import Table
from streamlog.dsl.table_references import local_tables, tables_in_code, tables_of_class
from streamlog.dsl.value_types import Shape
from streamlog.durations import Dur, duration_ms
from streamlog.errors import SerdeError, TopologyError
from streamlog.nodes.process_nodes import Process
from streamlog.nodes.stream_nodes import Entry, Source
from streamlog.nodes.table_nodes import AgentTables, WritableTable
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.replace import replace
from streamlog.serdes import serde_for
from streamlog.serdes.erased_types import AnySerde, UserKey, UserValue
from streamlog.tables.stores.store import StoreSpec
from streamlog.topology import Topology, TopologyBuilder

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""


def writable_table(
    builder: AppBuilder,
    name: str,
    *,
    key: type[K] | None,
    value: type[V] | None,
    default: Callable[[], V] | None,
    ttl: Dur | None,
    partitions: int | None,
) -> Table[K, V]:
    """Declare a writable table; see `App.table`."""
    check_name("a table", name)
    if key is None or value is None:
        raise TopologyError(
            f"table {name!r} needs key= and value=, the types of its rows; to declare the table of "
            "a topic, pass the object that app.topic returned, not a name"
        )
    ttl_ms = None if ttl is None else duration_ms(ttl)
    if ttl_ms == 0:
        raise TopologyError(f"table {name!r}: ttl must be longer than 0 ms, such as '1h'")
    if partitions is not None and partitions < 1:
        raise TopologyError(f"table {name!r}: partitions must be 1 or more, not {partitions}")
    topic = check_name("a topic", f"{builder.app_id}-{name}-puts")
    spec = TopicSpec(
        topic,
        _serde(name, "key", key),
        _serde(name, "value", value),
        partitions=partitions,
        compact=True,
        is_own=True,
    )
    # A row that is put from anywhere travels through this topic to the task that has the row.
    builder.add(Source(name=f"{name}-puts", topic=spec))
    node = WritableTable(
        name=name, parents=(f"{name}-puts",), puts=spec, store=StoreSpec(name), ttl_ms=ttl_ms
    )
    builder.add(node)
    position = StreamPosition(builder, name, Shape(given=spec.key), Shape(given=spec.value))
    return Table(TableView(position, name), default=default)


def build_topology(builder: AppBuilder, agents: Sequence[Agent[UserKey, UserValue]]) -> Topology:
    """Return the topology, in which the topics of agents are read in the tasks of their tables.

    Raises:
        TopologyError: two agents, or an agent and a processor, use one table directly; or a table
            was declared after the processor that uses it.
    """
    used = {agent: _tables_of_agent(agent, builder) for agent in agents}
    used = {agent: tables for agent, tables in used.items() if tables}
    _refuse_sharing(builder, used)
    _refuse_late(builder)
    if not used:
        return builder.build()
    # In a copy, so that building leaves the declarations unchanged.
    whole = TopologyBuilder(builder.app_id)
    whole.nodes = dict(builder.nodes)
    whole.global_tables = builder.global_tables
    for agent, tables in used.items():
        source = _source_of(whole, agent.topic.spec)
        node = AgentTables(
            name=f"{agent.name}/tables", parents=(source,), agent=agent.name, tables=tables
        )
        whole.nodes[node.name] = node
    return whole.build()


def _tables_of_agent(agent: Agent[UserKey, UserValue], builder: AppBuilder) -> tuple[str, ...]:
    who = f"agent {agent.name!r}"
    return local_tables(who, agent.tables, tables_in_code(agent.fn), builder)


def _source_of(builder: TopologyBuilder, spec: TopicSpec) -> str:
    """Return the source of the agent's topic; add one without event times if there is none.

    The task only notes the offsets of these records. The agent reads their content.
    """
    for node in builder.nodes.values():
        # The topic may be read by a stream too: a second source would read every record twice.
        if isinstance(node, Entry) and node.topic.name == spec.name:
            return node.name
    node = Source(name=f"{spec.name}-source", topic=replace(spec, timestamp=None))
    builder.nodes[node.name] = node
    return node.name


def _refuse_sharing(
    builder: AppBuilder, used: Mapping[Agent[UserKey, UserValue], tuple[str, ...]]
) -> None:
    owners: dict[str, str] = {}
    for agent, tables in used.items():
        for table in tables:
            if not isinstance(builder.nodes[table], WritableTable):
                continue
            who = f"agent {agent.name!r}"
            other = owners.setdefault(table, who)
            if other != who:
                raise _shared_table_error(table, other, who)
    # Processors may share a table with each other: those of one task see each other's rows.
    for node in builder.nodes.values():
        for table in node.tables if isinstance(node, Process) else ():
            if table in owners:
                raise _shared_table_error(table, owners[table], f"processor {node.name!r}")


def _refuse_late(builder: AppBuilder) -> None:
    """Refuse a processor whose code names a table that was declared after it."""
    for node in builder.nodes.values():
        if not isinstance(node, Process) or node.tables_said or not isinstance(node.make, type):
            continue
        # 1. `.process(Counter)` reads the code of Counter: the variable `totals` is not set yet.
        # 2. `totals = app.table("totals", ...)` follows.
        # 3. Reading the code again finds a table that the node does not have.
        who = f"processor {node.name!r}"
        now = local_tables(who, None, tables_of_class(node.make), builder)
        for table in set(now) - set(node.tables):
            raise TopologyError(
                f"{who} uses table {table!r}, which was declared after it: declare "
                "the table before .process(...)"
            )


def _shared_table_error(table: str, first: str, second: str) -> TopologyError:
    return TopologyError(
        f"{first} and {second} both use table {table!r} directly, but neither would see "
        "uncommitted rows of the other: let only one of them do so, and the other use `await "
        "table.fetch(key)` and `await table.put(key, value)`; tables=() declares that an agent "
        "uses none directly"
    )


def _serde(table: str, what: str, declared: object) -> AnySerde:
    try:
        return serde_for(declared)
    except SerdeError as error:
        raise SerdeError(f"the {what} of table {table!r}: {error}") from error
