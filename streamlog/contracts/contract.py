"""Contract: the topics that one app writes and reads, with their types, as plain data.

An app reads the topics of its sources, tables and agents. It writes the topics of its sinks, those
that its functions send to, and those that it declares but does not read. Topics that only the app
itself writes and reads (repartitions, changelogs) are no part of its contract.

Rule: a contract is derived from declarations and from code, which is read but never run. Not done
here: comparing contracts (`contract_findings`), and where they are stored
(`worker/topics/contract_log`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from streamlog.blueprints.blueprint import Blueprint, names_of
from streamlog.blueprints.readability import describe_form
from streamlog.dsl.agent import Agent, AgentRef
from streamlog.dsl.table_references import used_in_code
from streamlog.dsl.topic import Topic
from streamlog.errors import CorruptData
from streamlog.nodes.stream_nodes import Entry
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.records.partitioners import partitioner_name
from streamlog.serdes import declared_by, form_of, type_name
from streamlog.serdes.erased_types import AnySerde, JsonValue
from streamlog.topology import Topology

MALFORMED = (
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""What code that follows the description of a type raises if it is no such description."""
ENTRIES = frozenset({"Source", "TableSource", "GlobalTable"})
"""Kinds of nodes in a blueprint that read a topic."""


class TopicType(msgspec.Struct, frozen=True):
    """The type of a topic's keys or values."""

    name: str
    """The type as its author wrote it."""
    form: JsonValue
    """The form of the serde (`serdes.form_of`): for JSON, the schema with its fields."""

    @classmethod
    def of(cls, serde: AnySerde) -> TopicType:
        """Return the type that a serde writes and reads."""
        declared, form = declared_by(serde), form_of(serde)
        return cls(describe_form(form) if declared is None else type_name(declared), form)


class TopicUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an app uses a topic."""

    key: TopicType
    value: TopicType
    read_by: list[str] = []
    """The nodes and agents that read it."""
    written_by: list[str] = []
    """What writes it: nodes and functions; the app's id if it declares the topic only."""
    joined_with: list[str] = []
    """The topics that need as many partitions, because they are joined with it."""
    partitioner: str = "murmur2"


class Contract(msgspec.Struct, frozen=True):
    """The topics of one app."""

    app: str
    topics: dict[str, TopicUse]

    def encode(self) -> bytes:
        """Return the contract as bytes; equal contracts have equal bytes."""
        return msgspec.json.encode(self, order="deterministic")

    @classmethod
    def decode(cls, data: bytes) -> Contract:
        """Return the contract in these bytes.

        Raises:
            CorruptData: the bytes are not a contract.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CorruptData(f"a stored contract is not readable: {error}") from error

    @property
    def written(self) -> Mapping[str, TopicUse]:
        """The topics that the app writes."""
        return {name: use for name, use in self.topics.items() if use.written_by}

    @property
    def read(self) -> Mapping[str, TopicUse]:
        """The topics that the app reads."""
        return {name: use for name, use in self.topics.items() if use.read_by}


def contract_of(
    topology: Topology,
    topics: Mapping[str, TopicSpec],
    *,
    agents: Iterable[Agent[Any, Any]] = (),
    functions: Mapping[str, Callable[..., object]] | None = None,
) -> Contract:
    """Return the contract of an app.

    Args:
        topology: its streams and tables.
        topics: its declared topics by name.
        agents: its agents.
        functions: its timers, crontabs, services, pages and commands, by name: the topics that
            their code names count as written.
    """
    agents = [*agents]
    reads = _collect([*_node_reads(topology), *_agent_reads(agents)])
    sinks = [(agent.sink.name, agent.name) for agent in agents if agent.sink is not None]
    calls = {agent.name: agent.fn for agent in agents} | dict(functions or {})
    sent = [(topic, name) for name, fn in calls.items() for topic in topics_in_code(fn)]
    writes = _collect([*_node_writes(topology), *sinks, *sent])
    joined = topology.joined_topics()
    specs = {
        name: spec
        for name, spec in {**topology.topics, **topics}.items()
        # What a pattern stands for, workers find out in the log.
        if not spec.is_managed and spec.pattern is None and name not in topology.dead_letters
    }
    found = {
        name: TopicUse(
            key=TopicType.of(spec.key),
            value=TopicType.of(spec.value),
            read_by=reads.get(name, []),
            # 1. An app declares `orders`, reads nothing from it, and sends from a helper in another
            #    module, which `topics_in_code` does not follow.
            # 2. It counts as a writer: there is no other reason to declare the topic.
            written_by=writes.get(name, []) or ([] if name in reads else [topology.app_id]),
            joined_with=sorted(each for each in joined.get(name, ()) if each in specs),
            partitioner=partitioner_name(spec.partitioner),
        )
        for name, spec in sorted(specs.items())
    }
    # Decode it once, as a reader will: tuples become lists, keys become text.
    return Contract.decode(Contract(topology.app_id, found).encode())


def contract_of_blueprint(app_id: str, blueprint: Blueprint) -> Contract:
    """Return what a stored topology says of its app's contract; agents are no part of it."""
    reads: list[tuple[str, str]] = []
    writes: list[tuple[str, str]] = []
    for name, node in blueprint.nodes.items():
        for kind, topic in _topics_in(str(node["kind"]), node, blueprint):
            (reads if kind in ENTRIES else writes).append((topic, name))
    read_by, written_by = _collect(reads), _collect(writes)
    found = {
        topic: TopicUse(
            key=_type_of(forms["key"]),
            value=_type_of(forms["value"]),
            read_by=read_by.get(topic, [] if topic in written_by else [app_id]),
            written_by=written_by.get(topic, []),
        )
        for topic, forms in sorted(blueprint.topics.items())
        # The app's own topics have its id as a prefix, and both ends in the app.
        if not (topic.startswith(f"{app_id}-") and topic in read_by and topic in written_by)
    }
    return Contract(app_id, found)


def _type_of(form: JsonValue) -> TopicType:
    return TopicType(describe_form(form), form)


def _topics_in(kind: str, part: object, blueprint: Blueprint) -> Iterator[tuple[str, str]]:
    """Yield the topics in the description of a node, each with the kind of the part it is in."""
    if isinstance(part, dict):
        kind = str(part.get("kind", kind))
        for name, each in part.items():
            # A node can have the name of a topic.
            if name not in {"kind", "after", "store"}:
                yield from _topics_in(kind, each, blueprint)
    elif isinstance(part, str) and part in blueprint.topics:
        yield kind, part


def topics_in_code(fn: Callable[..., object]) -> Iterator[str]:
    """Yield the topics that a function uses other than by name: it sends to them."""
    for thing in used_in_code([fn]):
        match thing:
            case Topic():
                yield thing.name
            case AgentRef():
                yield thing.agent.topic.name


def _node_reads(topology: Topology) -> Iterator[tuple[str, str]]:
    names = names_of(topology)
    for node in topology.nodes:
        if isinstance(node, Entry):
            yield node.topic.name, names[node.name]
    for table in topology.global_tables:
        yield table.topic.name, table.name


def _agent_reads(agents: Iterable[Agent[Any, Any]]) -> Iterator[tuple[str, str]]:
    for agent in agents:
        for topic in agent.topics:
            yield topic.name, agent.name


def _node_writes(topology: Topology) -> Iterator[tuple[str, str]]:
    # A later version that adds a node does not rename the others.
    names = names_of(topology)
    for node in topology.nodes:
        for topic in node.writes:
            yield topic.name, names[node.name]


def _collect(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for topic, name in pairs:
        if name not in found[topic]:
            found[topic].append(name)
    return dict(found)
