"""Topology: what an app computes, as data: frozen nodes, cut into sub-topologies.

The DSL adds nodes to a `TopologyBuilder`; `build` checks them and cuts the graph at its
repartition topics. A sub-topology is what one task runs for one partition number; nodes
belong to the same one if records, a store or an input topic connect them. Rule of the file:
nothing here runs a record. Nodes hold the user's functions, names, serdes and stores, so a
topology can be printed, checked against a log and handed to any runner. Names of stateful
nodes are the identity of their state. The cut is that of Kafka Streams (KIP-307 for names).
Not done here: the values (`processing`), choosing serdes (`dsl`), creating topics (`worker`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from streamlog.durations import When
from streamlog.errors import TopologyError
from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.windows.definitions import Tumbling
from streamlog.windows.emit import Emit

TOPIC_NAME_LENGTH_MAX = 249
"""Kafka's limit for the name of a topic."""
_TOPIC_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_name(what: str, name: str) -> str:
    """The name, if topics can be named after it.

    Raises:
        TopologyError: it is empty, too long, or holds characters that Kafka refuses.
    """
    if name in {"", ".", ".."} or len(name) > TOPIC_NAME_LENGTH_MAX or {*name} - _TOPIC_CHARACTERS:
        raise TopologyError(
            f"{name!r} can't be the name of {what}: use 1 to {TOPIC_NAME_LENGTH_MAX} letters, "
            "digits, dots, underscores and hyphens"
        )
    return name


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as the app declares it."""

    name: str
    key: Serde[Any]
    value: Serde[Any]
    timestamp: Callable[[Any], When] | None = None
    """Event time from the value; without it the record's own timestamp counts."""
    partitions: int | None = None
    """For the creation of the topic; None leaves it to the runner."""
    compact: bool = False
    retention_ms: int | None = None
    """For the creation of the topic; None leaves it to the log."""
    internal: bool = False
    """A repartition topic: written and read by this app only."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How values fold into a result: `initial`, then `add` per value, then `result`.

    The state between two values is kept by `state`; what `result` returns is the row.
    """

    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    state: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A step; `parents` are the names of the nodes whose records it gets."""

    name: str
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Node):
    """Records of a topic."""

    topic: TopicSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(Node):
    """The latest value per key of a topic; its records are the changes."""

    topic: TopicSpec
    store: StoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Node):
    """A new key and value from key and value."""

    fn: Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapValues(Node):
    """A new value from the value."""

    fn: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMapValues(Node):
    """Any number of new values from the value."""

    fn: Callable[[Any], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """Records for which the function is true."""

    fn: Callable[[Any, Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek(Node):
    """Calls the function with each record, which goes on unchanged."""

    fn: Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekey(Node):
    """A new key from key and value."""

    fn: Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Node):
    """The records of all parents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapValues(Node):
    """Changes of a table with mapped values; a deletion stays one."""

    fn: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFilter(Node):
    """Changes of a table; a value that does not pass becomes a deletion."""

    fn: Callable[[Any, Any], bool]


View = TableMapValues | TableFilter
"""What stands between a store and who reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Node):
    """One running result per key; every change goes on."""

    store: StoreSpec
    key: Serde[Any]
    aggregation: Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedAggregate(Node):
    """One result per key and window."""

    store: StoreSpec
    key: Serde[Any]
    aggregation: Aggregation
    windows: Tumbling
    emit: Emit
    late: TopicSpec | Callable[[Any], object] | None = None
    """Where late records go: a topic (as `Late`), a function, or only into the count."""
    idle_after_ms: int | None = None
    """A source read to its end and quiet for this long no longer holds windows back."""

    @property
    def is_feeder(self) -> bool:
        """Its rows are a source of their own, with a time and a sequence of their own.

        On close, rows come in (end, start, key) order whatever the interleaving of the inputs
        was: their number is their identity. On update, they belong to the record behind them.
        """
        return self.emit is Emit.CLOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin(Node):
    """Each record of a stream with the row that a table has for its key at that moment."""

    table: str
    """The node that owns the table's store."""
    views: tuple[View, ...]
    """Applied to the row that was found, in order."""
    key: Serde[Any]
    fn: Callable[[Any, Any], Any]
    left: bool
    """Records without a row go on too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Node):
    """Writes records to a topic."""

    topic: TopicSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionSink(Node):
    """Writes records to a repartition topic, each with where it came from."""

    topic: TopicSpec


Stateless = Map | MapValues | FlatMapValues | Filter | Peek | Rekey | TableMapValues | TableFilter
"""Nodes that are nothing but a function."""
Entry = Source | TableSource
"""Nodes that read a topic."""
Stateful = TableSource | Aggregate | WindowedAggregate
"""Nodes that own a store."""


@dataclass(frozen=True, slots=True)
class Feeder:
    """Who writes into a repartition topic: an input topic or a windowed aggregation upstream.

    Each of its partitions is one source, with a stream time of its own.
    """

    name: str
    counted_by: tuple[str, ...]
    """It has as many partitions as the largest of these topics."""

    def partitions(self, counts: Mapping[str, int]) -> int:
        """How many sources it stands for."""
        return max(counts[topic] for topic in self.counted_by)


@dataclass(frozen=True)
class Subtopology:
    """The part of a topology that one task runs for one partition number."""

    app_id: str
    number: int
    nodes: tuple[Node, ...]
    """Parents before their children."""
    feeders: Mapping[str, tuple[Feeder, ...]] = field(default_factory=dict)
    """Per repartition topic that it reads: who writes into it."""
    idle_marks_ms: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Per repartition topic that it writes: the idle times that somebody downstream waits for."""

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Its nodes."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def topics(self) -> dict[str, TopicSpec]:
        """The topics it reads; their order is their rank when times are equal."""
        return {n.topic.name: n.topic for n in self.nodes if isinstance(n, Entry)}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the topics it reads, in the order of their rank."""
        return tuple(self.topics)

    @cached_property
    def repartition_topics(self) -> tuple[str, ...]:
        """The repartition topics it writes."""
        return tuple(n.topic.name for n in self.nodes if isinstance(n, RepartitionSink))

    @cached_property
    def stores(self) -> tuple[StoreSpec, ...]:
        """The stores of its nodes."""
        return tuple(n.store for n in self.nodes if isinstance(n, Stateful))

    @property
    def changelog_topic(self) -> str | None:
        """The topic that holds its state, one partition per task; None if it has no state.

        Reading a repartition topic is state too: what has been read from each source.
        """
        internal = any(topic.internal for topic in self.topics.values())
        return f"{self.app_id}-{self.number}-changelog" if self.stores or internal else None

    def tasks(self, counts: Mapping[str, int]) -> int:
        """How many tasks it has, given the partition counts of its input topics."""
        return max(counts[topic] for topic in self.topics)

    @cached_property
    def record_at_a_time(self) -> bool:
        """Whether records must go through one by one for their effects to come in order.

        A batch is handed from node to node whole. That is what single records would do, unless
        two paths from the same input meet again: in a merge, a store, or a topic.
        """
        return any(self._paths_meet(topic) for topic in self.topics)

    def _paths_meet(self, topic: str) -> bool:
        paths: defaultdict[str, int] = defaultdict(int)
        at_topic: defaultdict[str, int] = defaultdict(int)
        at_store: defaultdict[str, int] = defaultdict(int)
        for node in self.nodes:
            starts = isinstance(node, Entry) and node.topic.name == topic
            count = starts + sum(paths[parent] for parent in node.parents)
            paths[node.name] = count
            match node:
                case Sink() | RepartitionSink():
                    at_topic[node.topic.name] += count
                case WindowedAggregate(late=TopicSpec() as late):
                    at_topic[late.name] += count
                case TableJoin():
                    at_store[node.table] += count
                case _:
                    pass
        met = [paths[table] and joins for table, joins in at_store.items()]
        return any(met) or max([*paths.values(), *at_topic.values()]) > 1

    def ancestors(self, node: Node) -> Iterator[Node]:
        """The node's parents, their parents and so on; every node once."""
        seen: set[str] = set()
        pending = [*node.parents]
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                pending += self.by_name[name].parents
                yield self.by_name[name]

    def origins(self, node: Node) -> list[Node]:
        """Where the stream times of this node's records come from, in build order.

        Entries, and windowed aggregations that emit on close (see `WindowedAggregate`).
        """
        found: set[str] = set()
        seen: set[str] = set()
        pending = [*node.parents]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            parent = self.by_name[name]
            if isinstance(parent, Entry) or (
                isinstance(parent, WindowedAggregate) and parent.is_feeder
            ):
                found.add(name)
            else:
                pending += parent.parents
        return [self.by_name[name] for name in self.by_name if name in found]


class Topology:
    """Everything an app computes; see `TopologyBuilder.build` for how it comes about."""

    def __init__(self, app_id: str, subtopologies: tuple[Subtopology, ...]) -> None:
        self.app_id = app_id
        self.subtopologies = subtopologies

    @property
    def nodes(self) -> Iterator[Node]:
        """All nodes, by sub-topology."""
        return (node for sub in self.subtopologies for node in sub.nodes)

    @cached_property
    def topics(self) -> dict[str, TopicSpec]:
        """All topics that it reads or writes, except changelogs."""
        found: dict[str, TopicSpec] = {}
        for node in self.nodes:
            match node:
                case Source() | TableSource() | Sink() | RepartitionSink():
                    found[node.topic.name] = node.topic
                case WindowedAggregate(late=TopicSpec() as late):
                    found[late.name] = late
                case _:
                    pass
        return found

    def subtopologies_of(self, topic: str) -> list[Subtopology]:
        """The sub-topologies that read this topic: one, or none."""
        return [sub for sub in self.subtopologies if topic in sub.topics]

    def partition_counts(self, known: Mapping[str, int]) -> dict[str, int]:
        """`known`, and the partition counts that the repartition topics must have.

        A repartition topic has as many partitions as the topics it is joined with; else as
        many as it was given; else as many as the largest topic upstream.

        Args:
            known: partition counts of all other input topics; a repartition topic that is
                there already keeps its count.

        Raises:
            TopologyError: a topic is missing, or two that must be alike are not.
        """
        counts = dict(known)
        for sub in self._upstream_first():
            for topic in sub.topics.values():
                if topic.name not in counts and not topic.internal:
                    raise TopologyError(
                        f"topic {topic.name!r} is read by {self.app_id!r} but is not there: "
                        "create it, or let the app create it"
                    )
            given = [counts[name] for name in sub.topics if name in counts]
            for topic in sub.topics.values():
                if topic.name not in counts:
                    counts[topic.name] = (
                        max(given, default=0) or topic.partitions or self._upstream(topic, counts)
                    )
            self._check_alike(sub, counts)
        return counts

    def changelog_partitions(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Every changelog topic and how many partitions it has: one per task."""
        return {
            sub.changelog_topic: sub.tasks(counts)
            for sub in self.subtopologies
            if sub.changelog_topic is not None
        }

    def describe(self) -> str:
        """The topology as text, one line per node."""
        lines = [f"topology {self.app_id}"]
        for sub in self.subtopologies:
            state = f", state in {sub.changelog_topic}" if sub.changelog_topic else ""
            lines.append(f"  sub-topology {sub.number}{state}")
            lines += [f"    {_described(node)}" for node in sub.nodes]
        return "\n".join(lines)

    def warnings(self) -> list[str]:
        """What is allowed but hardly meant."""
        return [
            f"windowed aggregation {node.name!r} reads event time from the values of "
            f"{topic!r} but has neither grace nor late(): records out of order by more than "
            "their window are only counted; add grace= to the window or .late(topic)"
            for sub in self.subtopologies
            for node in sub.nodes
            if isinstance(node, WindowedAggregate)
            and not node.windows.grace_ms
            and node.late is None
            for topic in self._extracting_topics(sub, node)
        ]

    def _extracting_topics(self, sub: Subtopology, node: Node) -> list[str]:
        found = []
        for above in sub.ancestors(node):
            if isinstance(above, Source) and above.topic.internal:
                for other, sink in _writers(above.topic.name, self.subtopologies):
                    found += self._extracting_topics(other, sink)
            elif isinstance(above, Entry) and above.topic.timestamp is not None:
                found.append(above.topic.name)
        return sorted({*found})

    def _upstream(self, topic: TopicSpec, counts: Mapping[str, int]) -> int:
        writers = _writers(topic.name, self.subtopologies)
        return max(counts[name] for sub, _ in writers for name in sub.topics)

    def _upstream_first(self) -> list[Subtopology]:
        ordered: list[Subtopology] = []
        pending = list(self.subtopologies)
        while pending:
            internal = {t for sub in pending for t in sub.repartition_topics}
            ready = [sub for sub in pending if not internal & {*sub.topics}]
            if not ready:
                # A sub-topology that feeds itself: its repartition topics are counted last.
                ready = pending[:1]
            ordered += ready
            pending = [sub for sub in pending if sub not in ready]
        return ordered

    def _check_alike(self, sub: Subtopology, counts: Mapping[str, int]) -> None:
        for node in sub.nodes:
            if not isinstance(node, TableJoin | Aggregate | WindowedAggregate):
                continue
            read = [n.topic for n in sub.ancestors(node) if isinstance(n, Entry)]
            if isinstance(node, TableJoin):
                table = sub.by_name[node.table]
                above = [table, *sub.ancestors(table)]
                read += [n.topic for n in above if isinstance(n, Entry)]
            names = sorted({topic.name for topic in read}, key=sub.inputs.index)
            first = names[0]
            for other in names[1:]:
                if counts[first] != counts[other]:
                    raise TopologyError(_not_alike(node, first, other, counts))


def _not_alike(node: Node, first: str, other: str, counts: Mapping[str, int]) -> str:
    return (
        f"{node.name!r} needs the same keys of {first!r} and {other!r} in the same partition, "
        f"but {first!r} has {counts[first]} partitions and {other!r} has {counts[other]}: "
        "create both with the same number, or call .repartition(name=..., partitions=...) on "
        "the stream of one of them"
    )


def _described(node: Node) -> str:
    detail = ""
    match node:
        case Source() | TableSource():
            detail = f" from topic {node.topic.name}"
        case Sink() | RepartitionSink():
            detail = f" to topic {node.topic.name}"
        case WindowedAggregate():
            windows = node.windows
            detail = (
                f" windows of {windows.size_ms} ms, grace {windows.grace_ms} ms, "
                f"emit {node.emit.name}"
            )
        case TableJoin():
            detail = f" with {node.table}{' (left)' if node.left else ''}"
        case _:
            pass
    after = f" after {', '.join(node.parents)}" if node.parents else ""
    return f"{type(node).__name__} {node.name}{detail}{after}"


class TopologyBuilder:
    """Collects nodes until `build`."""

    def __init__(self, app_id: str) -> None:
        self.app_id = check_name("an app", app_id)
        self.nodes: dict[str, Node] = {}

    def add(self, node: Node) -> None:
        """Take the node in; its parents are there already.

        Raises:
            TopologyError: the name is taken.
        """
        if node.name in self.nodes:
            raise TopologyError(
                f"the name {node.name!r} is taken by a {type(self.nodes[node.name]).__name__} "
                "already: names of operators, tables and repartitions are unique in an app"
            )
        self.nodes[node.name] = node

    def unique_name(self, kind: str) -> str:
        """A name for a node that the user has not named; it is not the name of any state."""
        number = len(self.nodes)
        while f"{kind}-{number}" in self.nodes:
            number += 1
        return f"{kind}-{number}"

    def build(self) -> Topology:
        """Check the nodes and cut them into sub-topologies."""
        groups = _connected(self.nodes.values())
        drafts = [Subtopology(self.app_id, number, nodes) for number, nodes in enumerate(groups)]
        return Topology(
            self.app_id,
            tuple(
                Subtopology(
                    self.app_id,
                    sub.number,
                    sub.nodes,
                    feeders={t: _feeders(t, drafts) for t in sub.topics if sub.topics[t].internal},
                    idle_marks_ms={t: _idle_marks(t, drafts) for t in sub.repartition_topics},
                )
                for sub in drafts
            ),
        )


def _connected(nodes: Iterable[Node]) -> list[tuple[Node, ...]]:
    """Groups of nodes connected by records, stores or input topics, in build order."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    ordered = list(nodes)
    for node in ordered:
        # A topic has a slash before its name, which no node has.
        linked = [*node.parents]
        if isinstance(node, Entry):
            linked.append(f"/{node.topic.name}")
        if isinstance(node, TableJoin):
            linked.append(node.table)
        for other in linked:
            leader[find(other)] = find(node.name)
    groups: defaultdict[str, list[Node]] = defaultdict(list)
    for node in ordered:
        groups[find(node.name)].append(node)
    return [tuple(group) for group in groups.values()]


def _writers(topic: str, subs: Iterable[Subtopology]) -> list[tuple[Subtopology, Node]]:
    """Who writes to a repartition topic."""
    return [
        (sub, node)
        for sub in subs
        for node in sub.nodes
        if isinstance(node, RepartitionSink) and node.topic.name == topic
    ]


def _feeders(topic: str, subs: Iterable[Subtopology]) -> tuple[Feeder, ...]:
    found: dict[str, Feeder] = {}
    for sub, node in _writers(topic, subs):
        for origin in sub.origins(node):
            if isinstance(origin, Entry):
                found[origin.topic.name] = Feeder(origin.topic.name, (origin.topic.name,))
            else:
                found[origin.name] = Feeder(origin.name, sub.inputs)
    return tuple(found.values())


def _idle_marks(topic: str, subs: list[Subtopology]) -> tuple[int, ...]:
    found: set[int] = set()
    seen: set[str] = set()
    pending = [topic]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for sub in subs:
            if name in sub.topics:
                pending += sub.repartition_topics
                found |= {
                    node.idle_after_ms
                    for node in sub.nodes
                    if isinstance(node, WindowedAggregate) and node.idle_after_ms is not None
                }
    return tuple(sorted(found))
