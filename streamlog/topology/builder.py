"""TopologyBuilder: collects the nodes that the DSL adds, and cuts them into sub-topologies.

The cut is that of Kafka Streams: at repartition topics; whatever records, a store or an input
topic connect stays together. Each sub-topology also learns who writes into the repartition
topics that it reads, and for whose sake it has to send time marks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from streamlog.errors import TopologyError
from streamlog.serdes import WindowedSerde
from streamlog.topology.global_tables import GlobalTable
from streamlog.topology.graph import Topology
from streamlog.topology.nodes import Entry, Node
from streamlog.topology.policies import ErrorPolicy, on_error
from streamlog.topology.retimed import SetTimestamp
from streamlog.topology.subtopology import Feeder, Subtopology, writers
from streamlog.topology.topics import TopicSpec, check_name


class TopologyBuilder:
    """Collects nodes until `build`."""

    def __init__(self, app_id: str, *, on_error: ErrorPolicy = on_error.FAIL) -> None:
        """`on_error` is for nodes that say nothing of their own."""
        self.app_id = check_name("an app", app_id)
        self._on_error = on_error
        self.topic_policies: dict[str, ErrorPolicy] = {}
        """Of topics that say something of their own, by name: for who reads or writes them."""
        self.nodes: dict[str, Node] = {}
        self.global_tables: dict[str, GlobalTable] = {}

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
        policy = self._policy_for(node)
        if node.on_error is None and policy.action != "fail":
            node = replace(node, on_error=policy)
        self.nodes[node.name] = node

    def _policy_for(self, node: Node) -> ErrorPolicy:
        topic = getattr(node, "topic", None)
        if isinstance(topic, TopicSpec):
            return self.topic_policies.get(topic.name, self._on_error)
        return self._on_error

    def add_global_table(self, table: GlobalTable) -> None:
        """Take it in.

        Raises:
            TopologyError: the name is taken.
        """
        if table.name in self.global_tables:
            raise TopologyError(f"the name {table.name!r} is taken by another global table")
        self.global_tables[table.name] = table

    def unique_name(self, kind: str) -> str:
        """A name for a node that the user has not named; it is not the name of any state."""
        number = len(self.nodes)
        while f"{kind}-{number}" in self.nodes:
            number += 1
        return f"{kind}-{number}"

    def build(self) -> Topology:
        """Check the nodes and cut them into sub-topologies."""
        self._check_keys()
        groups = _connected(self.nodes.values())
        drafts = [Subtopology(self.app_id, number, nodes) for number, nodes in enumerate(groups)]
        built = Topology(
            self.app_id,
            tuple(
                Subtopology(
                    self.app_id,
                    sub.number,
                    sub.nodes,
                    feeders={t: _feeders(t, drafts) for t in sub.topics if sub.topics[t].internal},
                    idle_marks_ms={t: _idle_marks(t, drafts) for t in sub.repartition_topics},
                    timed=frozenset(t for t in sub.repartition_topics if _is_timed(t, drafts)),
                    looped=frozenset(sub.topics) & _downstream(sub, drafts),
                )
                for sub in drafts
            ),
            tuple(self.global_tables.values()),
        )
        built.check_partitioners()
        return built

    def _check_keys(self) -> None:
        read = [node.topic for node in self.nodes.values() if isinstance(node, Entry)]
        written = [topic for node in self.nodes.values() for topic in node.writes]
        for topic in (*read, *written, *(table.topic for table in self.global_tables.values())):
            if isinstance(topic.key, WindowedSerde) and topic.key.layout is None:
                raise TopologyError(
                    f"the keys of topic {topic.name!r} are windowed, and nothing says by what: "
                    "Kafka's bytes for them don't hold where a window ends. Declare them with the "
                    "topic, as in windows=tumbling('1h')"
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
        linked = [*node.parents, *node.looks_into]
        if isinstance(node, Entry):
            linked.append(f"/{node.topic.name}")
        for other in linked:
            leader[find(other)] = find(node.name)
    groups: defaultdict[str, list[Node]] = defaultdict(list)
    for node in ordered:
        groups[find(node.name)].append(node)
    return [tuple(group) for group in groups.values()]


def _feeders(topic: str, subs: Iterable[Subtopology]) -> tuple[Feeder, ...]:
    found: dict[str, Feeder] = {}
    for sub, node in writers(topic, subs):
        for origin in sub.origins(node):
            if isinstance(origin, Entry):
                found[origin.topic.name] = Feeder(origin.topic.name, (origin.topic.name,))
                continue
            for name in origin.feeds:
                found[name] = Feeder(name, sub.inputs, _is_retimed(sub, origin))
    return tuple(found.values())


def _is_retimed(sub: Subtopology, node: Node) -> bool:
    """Whether a node, or one above it, sets other timestamps."""
    return any(isinstance(each, SetTimestamp) for each in (node, *sub.ancestors(node)))


def _idle_marks(topic: str, subs: list[Subtopology]) -> tuple[int, ...]:
    waits_ms = (node.waits_idle_ms for sub in _behind(topic, subs) for node in sub.nodes)
    return tuple(sorted({ms for ms in waits_ms if ms is not None}))


def _is_timed(topic: str, subs: list[Subtopology]) -> bool:
    return any(node.keeps_time for sub in _behind(topic, subs) for node in sub.nodes)


def _behind(topic: str, subs: list[Subtopology]) -> Iterator[Subtopology]:
    """The sub-topologies that read what is made of a topic's records, at any remove."""
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
                yield sub


def _downstream(sub: Subtopology, subs: list[Subtopology]) -> frozenset[str]:
    """The repartition topics that something written by `sub` may end up in."""
    found: set[str] = set()
    pending = [*sub.repartition_topics]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [t for each in subs if name in each.topics for t in each.repartition_topics]
    return frozenset(found)
