"""Topology: what an app computes, as data, cut into sub-topologies.

The DSL adds nodes to a `TopologyBuilder`. Its `build` checks them and cuts the graph as Kafka
Streams does: at repartition topics. Nodes that records, a store or an input topic connect stay in
one `Subtopology`, which one task runs for one partition number. Each sub-topology knows its
feeders, that is the writers of the repartition topics that it reads, and the downstream nodes for
which it sends time marks. A `Topology` can be printed, checked against the partition counts of a
log, and given to any runner.

Rule: nothing here runs a record or changes a node. Not done here: the nodes (`nodes`), the values
(`processing`), the choice of serdes (`dsl`), the creation of topics (`worker`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

import msgspec

from streamlog.errors import TopologyError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.process_nodes import Process
from streamlog.nodes.stream_nodes import Entry, Node, RepartitionSink, SetTimestamp, Source, View
from streamlog.nodes.table_nodes import AgentTables, GlobalTableNode
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.nodes.window_nodes import RecordWindowsAggregate, WindowedAggregate
from streamlog.records.partitioners import partitioner_name
from streamlog.replace import replace
from streamlog.serdes import WindowedSerde, serde_for
from streamlog.tables.stores.store import StoreSpec


class Feeder(msgspec.Struct, frozen=True):
    """A writer of a repartition topic: an input topic, or an upstream node with rows of its own.

    Each of its partitions is one source, with a stream time of its own.
    """

    name: str
    counted_by: tuple[str, ...]
    """It has as many partitions as the largest of these topics."""
    is_retimed: bool = False
    """Whether its times come from `set_timestamp`: a partition without records then has no time."""
    found_by: frozenset[str] = frozenset()
    """The patterns by which these topics were found; none for topics that the app names."""

    def partitions(self, counts: Mapping[str, int]) -> int:
        """Return the number of sources that it stands for."""
        return max(counts[topic] for topic in self.counted_by)

    def may_have_had(self, source: tuple[str, int]) -> bool:
        """Return whether a source that it lacks may be of a topic that was deleted since."""
        name, _ = source
        # A node's own rows bear its name, and have fewer partitions without the largest topic.
        own = bool(self.found_by) and name == self.name
        return own or any(re.fullmatch(pattern, name) for pattern in self.found_by)


def patterns_of(topics: Iterable[TopicSpec]) -> frozenset[str]:
    """Return the patterns by which topics were found."""
    return frozenset(topic.found_by for topic in topics if topic.found_by is not None)


class Subtopology(msgspec.Struct, frozen=True, dict=True):
    """The part of a topology that one task runs for one partition number."""

    app_id: str
    number: int
    nodes: tuple[Node, ...]
    """Parents before their children."""
    feeders: Mapping[str, tuple[Feeder, ...]] = msgspec.field(default_factory=dict)
    """Per repartition topic that it reads: the writers of the topic."""
    idle_marks_ms: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Per repartition topic that it writes: the idle times for which downstream nodes wait."""
    timed: frozenset[str] = frozenset()
    """Repartition topics that it writes and below which a node waits for event time to advance."""
    looped: frozenset[str] = frozenset()
    """Repartition topics that it reads and that its own output reaches."""

    @cached_property
    def retimed(self) -> Mapping[str, tuple[str, ...]]:
        """The nodes, here and upstream, whose times `set_timestamp` sets, with the topics above."""
        feeders = (feeder for feeders in self.feeders.values() for feeder in feeders)
        above = {feeder.name: feeder.counted_by for feeder in feeders if feeder.is_retimed}
        return above | {n.name: self.inputs for n in self.nodes if isinstance(n, SetTimestamp)}

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """The nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def topics(self) -> dict[str, TopicSpec]:
        """The topics that it reads; their order is their rank when times are equal."""
        return {n.topic.name: n.topic for n in self.nodes if isinstance(n, Entry)}

    def may_have_read(self, topic: str) -> bool:
        """Return whether a pattern of its inputs matches a topic, which may be gone by now."""
        return any(re.fullmatch(pattern, topic) for pattern in patterns_of(self.topics.values()))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the topics that it reads, in the order of their rank."""
        return tuple(self.topics)

    @cached_property
    def repartition_topics(self) -> tuple[str, ...]:
        """The repartition topics that it writes."""
        return tuple(n.topic.name for n in self.nodes if isinstance(n, RepartitionSink))

    @cached_property
    def stores(self) -> tuple[StoreSpec, ...]:
        """The stores of its nodes."""
        return tuple(spec for node in self.nodes for spec in node.specs)

    @property
    def changelog_topic(self) -> str | None:
        """The topic that holds its state, one partition per task; None if it has no state.

        The progress in each source of a repartition topic is state too, and so is the stream time
        that a node keeps.
        """
        internal = any(topic.internal for topic in self.topics.values())
        timed = any(node.tracks_time for node in self.nodes)
        has_state = self.stores or internal or timed
        return f"{self.app_id}-{self.number}-changelog" if has_state else None

    def tasks(self, counts: Mapping[str, int]) -> int:
        """Return the number of its tasks, given the partition counts of its input topics."""
        return max(counts[topic] for topic in self.topics)

    @cached_property
    def record_at_a_time(self) -> bool:
        """Whether records must be processed one by one for their effects to come in order.

        A node passes a batch on as a whole. The effect is that of single records, except in three
        cases: two paths from one input meet again in a merge, a store or a topic; a node has to
        know, at each record, the time of sources with rows of their own times; a processor sets
        rows that another node reads.
        """
        # 1. A topic is merged with a mapping of itself: with a batch of two records a and b, the
        #    merge would forward a b a' b'; one by one it forwards a a' b b'.
        # 2. A join waits for the final rows of a window: at each record, it must know which rows
        #    came before, not only at the end of the batch.
        # 3. A processor sets row k at record a, and a join looks it up at record b: the join must
        #    run for a before the processor runs for b.
        return (
            any(map(self._paths_converge, self.topics))
            or any(map(self._awaits_feeds, self.nodes))
            or any(map(self._has_visible_effects, self.nodes))
        )

    def _has_visible_effects(self, node: Node) -> bool:
        if not isinstance(node, Process):
            return False
        others = (other for other in self.nodes if other is not node)
        return any({*other.parents, *other.lookup_nodes} & {*node.tables} for other in others)

    def _awaits_feeds(self, node: Node) -> bool:
        return node.awaits_feeds and any(origin.feeds for origin in self.origins(node))

    def _paths_converge(self, topic: str) -> bool:
        paths: defaultdict[str, int] = defaultdict(int)
        at_topic: defaultdict[str, int] = defaultdict(int)
        at_store: defaultdict[str, int] = defaultdict(int)
        for node in self.nodes:
            starts = isinstance(node, Entry) and node.topic.name == topic
            # Parents come before their children, so their numbers of paths are complete.
            count = starts + sum(paths[parent] for parent in node.parents)
            paths[node.name] = count
            for written in node.writes:
                at_topic[written.name] += count
            for table in node.lookup_nodes:
                at_store[table] += count
        # An input that reaches a table and a node that looks it up: both see each of its records.
        met = [paths[table] and joins for table, joins in at_store.items()]
        return any(met) or max([*paths.values(), *at_topic.values()]) > 1

    def sends_old_values(self, node: Node) -> bool:
        """Return whether the node's changes have to carry the values that they replace."""
        return any(self._uses_old_values(each) for each in self._children(node))

    def _uses_old_values(self, node: Node) -> bool:
        if node.old_values == "passed on" and self.sends_old_values(node):
            return True
        # A view without children exists for lookups only.
        return node.needs_old_values and not (isinstance(node, View) and not self._children(node))

    def _children(self, node: Node) -> list[Node]:
        return [each for each in self.nodes if node.name in each.parents]

    def ancestors(self, node: Node) -> Iterator[Node]:
        """Yield the node's parents, their parents and so on; every node once."""
        seen: set[str] = set()
        pending = [*node.parents]
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                pending += self.by_name[name].parents
                yield self.by_name[name]

    def origins(self, node: Node) -> list[Node]:
        """Return the entries and feeders that this node's records come from, in build order.

        For a feeder that also forwards rows that belong to its records (`passes_on`), the origins
        above it count too.
        """
        return self._above(
            node,
            lambda n: isinstance(n, Entry) or bool(n.feeds),
            through=lambda n: bool(n.feeds) and n.passes_on,
        )

    def clocks(self, node: Node) -> list[Node]:
        """Return the nodes that determine the event time of this node's records."""
        return self._above(node, lambda n: isinstance(n, Entry) or n.tracks_time)

    def nearest(self, node: Node, wanted: Callable[[Node], bool]) -> list[Node]:
        """Return the nearest nodes above this one that are wanted, in build order."""
        return self._above(node, wanted)

    def is_watched(self, node: Node) -> bool:
        """Return whether a processor below this one needs its time."""
        below = (other for other in self.nodes if isinstance(other, Process))
        return any(node in self.clocks(other) for other in below)

    @property
    def processors_idle_ms(self) -> list[int]:
        """The idle times for which its processors wait."""
        nodes = (node for node in self.nodes if isinstance(node, Process))
        return [node.idle_after_ms for node in nodes if node.idle_after_ms is not None]

    def _above(
        self,
        node: Node,
        wanted: Callable[[Node], bool],
        *,
        through: Callable[[Node], bool] = lambda _: False,
    ) -> list[Node]:
        """Return the nearest wanted nodes above this one, and those above the ones in `through`."""
        found: set[str] = set()
        seen: set[str] = set()
        pending = [*node.parents]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            parent = self.by_name[name]
            if wanted(parent):
                found.add(name)
            # Nothing above a node that was found is nearer than it, unless rows pass through it.
            if not wanted(parent) or through(parent):
                pending += parent.parents
        return [self.by_name[name] for name in self.by_name if name in found]


def writers_of(topic: str, subs: Iterable[Subtopology]) -> list[tuple[Subtopology, Node]]:
    """Return the sub-topologies and nodes that write to a repartition topic."""
    return [
        (sub, node)
        for sub in subs
        for node in sub.nodes
        if isinstance(node, RepartitionSink) and node.topic.name == topic
    ]


FOR_EVER = -1
"""The value of `retention.ms` for unlimited retention."""


DEAD_LETTER_BYTES_MAX = 16 * 1024 * 1024
"""A record may be a dead letter because it was too large for its topic."""


def dead_letter_topics(names: Iterable[str | None]) -> dict[str, TopicSpec]:
    """Return the topics for dead letters, by name: bytes, kept until they are deleted."""
    raw = serde_for(bytes)
    return {
        name: TopicSpec(
            name,
            raw,
            raw,
            partitions=1,
            retention_ms=FOR_EVER,
            message_bytes_max=DEAD_LETTER_BYTES_MAX,
            takes_every_time=True,
        )
        for name in sorted({*filter(None, names)})
    }


class Topology:
    """Everything that an app computes; see `TopologyBuilder.build`."""

    def __init__(
        self,
        app_id: str,
        subtopologies: tuple[Subtopology, ...],
        global_tables: tuple[GlobalTableNode, ...] = (),
    ) -> None:
        self.app_id = app_id
        self.subtopologies = subtopologies
        self.global_tables = global_tables
        """The tables that every worker reads whole."""

    @property
    def nodes(self) -> Iterator[Node]:
        """All nodes, by sub-topology."""
        return (node for sub in self.subtopologies for node in sub.nodes)

    @cached_property
    def topics(self) -> dict[str, TopicSpec]:
        """All topics that it reads or writes, except changelogs."""
        found = {table.topic.name: table.topic for table in self.global_tables}
        for node in self.nodes:
            read = (node.topic,) if isinstance(node, Entry) else ()
            found |= {topic.name: topic for topic in (*read, *node.writes)}
        return found

    @cached_property
    def dead_letters(self) -> dict[str, TopicSpec]:
        """The dead-letter topics of its operators."""
        policies = [node.on_error for node in self.nodes if node.on_error is not None]
        return dead_letter_topics(policy.dlq_topic(self.app_id) for policy in policies)

    @cached_property
    def worked_on(self) -> dict[str, tuple[str, ...]]:
        """The nodes that keep the tables of agents, by the names of the agents."""
        return {n.agent: n.tables for n in self.nodes if isinstance(n, AgentTables)}

    def subtopologies_of(self, topic: str) -> list[Subtopology]:
        """Return the sub-topologies that read this topic: one, or none."""
        return [sub for sub in self.subtopologies if topic in sub.topics]

    def partition_counts(self, known: Mapping[str, int]) -> dict[str, int]:
        """Return `known` and the partition counts that the repartition topics must have.

        A repartition topic has as many partitions as the topics that it is joined with; otherwise,
        as many as declared; otherwise, as many as the largest topic upstream of it, or of the
        topics that the app creates with it in its sub-topology. Which of these already exist makes
        no difference, because one worker may look while another one creates them. If the changelog
        exists, however, the app has changed, and new topics have to fit the existing state.

        Args:
            known: partition counts of all other input topics, and of changelogs; a repartition
                topic that already exists keeps its count.

        Raises:
            TopologyError: a topic does not exist, or two that must have equal counts do not.
        """
        counts = dict(known)
        for sub in self._upstream_first():
            for topic in sub.topics.values():
                if topic.pattern is not None:
                    raise TopologyError(
                        f"app {self.app_id!r} reads the topics that match {topic.pattern!r}, and "
                        "only its workers and tests find out which these are: declare the topics "
                        "by their names for anything else"
                    )
                if topic.name not in counts and not topic.is_managed:
                    raise TopologyError(
                        f"topic {topic.name!r} is read by {self.app_id!r} but does not exist: "
                        "create it, or let the app create it"
                    )
            counts |= self._fresh_counts(sub, counts)
            self._check_alike(sub, counts)
        return counts

    def _fresh_counts(self, sub: Subtopology, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the counts of a sub-topology's topics that the app has to create."""
        made = [topic for topic in sub.topics.values() if topic.is_managed]
        given = [
            counts[name]
            for name, topic in sub.topics.items()
            # With a changelog there is state, which existing topics of the app fit: they count as
            # well.
            if name in counts and (sub.changelog_topic in counts or not topic.is_managed)
        ]
        wanted = [
            counts.get(topic.name) or topic.partitions or self._upstream(topic, counts)
            for topic in made
        ]
        return {
            topic.name: max(given, default=0) or topic.partitions or max(wanted)
            for topic in made
            if topic.name not in counts
        }

    def changelog_partitions(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return every changelog topic and its number of partitions: one per task."""
        return {
            sub.changelog_topic: sub.tasks(counts)
            for sub in self.subtopologies
            if sub.changelog_topic is not None
        }

    def describe(self) -> str:
        """Return the topology as text, one line per node."""
        lines = [f"topology {self.app_id}"]
        for sub in self.subtopologies:
            state = f", state in {sub.changelog_topic}" if sub.changelog_topic else ""
            lines.append(f"  sub-topology {sub.number}{state}")
            lines += [f"    {_describe_node(node)}" for node in sub.nodes]
        return "\n".join(lines)

    def warnings(self) -> list[str]:
        """Return warnings about settings that are valid but probably not intended."""
        return [
            f"windowed aggregation {node.name!r} reads event time from the values of "
            f"{topic!r} but has neither grace nor late(): records that arrive after their "
            "window has closed are dropped and only counted; add grace= to the window or "
            ".late(topic)"
            for sub in self.subtopologies
            for node in sub.nodes
            if isinstance(node, WindowedAggregate | RecordWindowsAggregate)
            and not node.windows.grace_ms
            and node.late is None
            for topic in self._extracting_topics(sub, node)
        ]

    def _extracting_topics(self, sub: Subtopology, node: Node) -> list[str]:
        found = []
        for above in sub.ancestors(node):
            if isinstance(above, Source) and above.topic.internal:
                for other, sink in writers_of(above.topic.name, self.subtopologies):
                    found += self._extracting_topics(other, sink)
            elif isinstance(above, Entry) and above.topic.timestamp is not None:
                found.append(above.topic.name)
        return sorted({*found})

    def _upstream(self, topic: TopicSpec, counts: Mapping[str, int]) -> int:
        above = writers_of(topic.name, self.subtopologies)
        # If sub-topologies feed each other in a loop, one has to be counted first.
        known = [counts[name] for sub, _ in above for name in sub.topics if name in counts]
        return max(known, default=1)

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

    def check_partitioners(self) -> None:
        """Check that joined topics place equal keys in equal partitions.

        Raises:
            TopologyError: two joined topics have different partitioners.
        """
        for sub in self.subtopologies:
            # Stores as well: a row is found in the partition that the partitioner names for its
            # key.
            keyed = [node for node in sub.nodes if node.needs_equal_keys or node.specs]
            for node, first, other in _pairs(sub, keyed):
                if sub.topics[first].partitioner != sub.topics[other].partitioner:
                    raise TopologyError(_partitioner_mismatch(node, sub, first, other))

    def joined_topics(self) -> dict[str, set[str]]:
        """Return, by topic, the topics that need as many partitions because of a join."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for sub in self.subtopologies:
            joins = [node for node in sub.nodes if node.needs_equal_keys]
            for _, first, other in _pairs(sub, joins):
                found[first].add(other)
                found[other].add(first)
        return dict(found)

    def _check_alike(self, sub: Subtopology, counts: Mapping[str, int]) -> None:
        joins = [node for node in sub.nodes if node.needs_equal_keys]
        for node, first, other in _pairs(sub, joins):
            if counts[first] != counts[other]:
                raise TopologyError(_count_mismatch(node, first, other, counts))


def _pairs(sub: Subtopology, nodes: Iterable[Node]) -> Iterator[tuple[Node, str, str]]:
    """Yield, for each node, the first topic that its keys come from with each of the others."""
    for node in nodes:
        tables = [sub.by_name[name] for name in node.lookup_nodes]
        above = [*sub.ancestors(node), *tables]
        above += [each for table in tables for each in sub.ancestors(table)]
        read = [n.topic for n in above if isinstance(n, Entry)]
        first, *others = sorted({topic.name for topic in read}, key=sub.inputs.index) or [""]
        yield from ((node, first, other) for other in others)


def _partitioner_mismatch(node: Node, sub: Subtopology, first: str, other: str) -> str:
    names = [partitioner_name(sub.topics[each].partitioner) for each in (first, other)]
    return (
        f"{node.name!r} needs the same keys of {first!r} and {other!r} in the same partition, but "
        f"{first!r} is partitioned by {names[0]} and {other!r} by {names[1]}: call "
        ".repartition(name=...) on the stream that is not partitioned by murmur2, or write both "
        "topics with the same partitioner"
    )


def _count_mismatch(node: Node, first: str, other: str, counts: Mapping[str, int]) -> str:
    return (
        f"{node.name!r} needs the same keys of {first!r} and {other!r} in the same partition, "
        f"but the number of partitions is {counts[first]} in {first!r} and {counts[other]} in "
        f"{other!r}: create both with the same number, or call "
        ".repartition(name=..., partitions=...) on the stream of one of them"
    )


def _describe_node(node: Node) -> str:
    detail = f" {node.detail}" if node.detail else ""
    after = f" after {', '.join(node.parents)}" if node.parents else ""
    return f"{type(node).__name__} {node.name}{detail}{after}"


class TopologyBuilder:
    """Collects nodes until `build`."""

    def __init__(self, app_id: str, *, on_error: ErrorPolicy = on_error.FAIL) -> None:
        """`on_error` is for nodes that declare no policy."""
        self.app_id = check_name("an app", app_id)
        self._on_error = on_error
        self.topic_policies: dict[str, ErrorPolicy] = {}
        """Policies of topics that declare one, by name: for the nodes that read or write them."""
        self.nodes: dict[str, Node] = {}
        self.global_tables: dict[str, GlobalTableNode] = {}

    def add(self, node: Node) -> None:
        """Add a node, after its parents.

        Raises:
            TopologyError: the name is taken.
        """
        if node.name in self.nodes:
            raise TopologyError(
                f"the name {node.name!r} is taken by a {type(self.nodes[node.name]).__name__} "
                "already: names of operators, tables and repartitions are unique in an app"
            )
        for topic in node.writes:
            if topic.pattern is not None:
                raise TopologyError(
                    f"{node.name!r} writes to {topic.name!r}, which stands for the topics that "
                    f"match {topic.pattern!r}: write to one of them, {topic.name}.topic('NAME')"
                )
        policy = self._policy_for(node)
        for given in (node.on_error, policy):
            # A type checker sees a wrong one; users without one meet this line.
            if given is not None and not isinstance(given, ErrorPolicy):
                raise TopologyError(
                    f"on_error of {node.name!r} is {given!r}, which is no policy: use one of "
                    "on_error.FAIL, on_error.skip(), on_error.dlq() and on_error.retry(...)"
                )
        if node.on_error is None and policy.action != "fail":
            node = replace(node, on_error=policy)
        self.nodes[node.name] = node

    def _policy_for(self, node: Node) -> ErrorPolicy:
        topic = getattr(node, "topic", None)
        if isinstance(topic, TopicSpec):
            return self.topic_policies.get(topic.name, self._on_error)
        return self._on_error

    def add_global_table(self, table: GlobalTableNode) -> None:
        """Add a global table.

        Raises:
            TopologyError: the name is taken.
        """
        if table.name in self.global_tables:
            raise TopologyError(f"the name {table.name!r} is taken by another global table")
        self.global_tables[table.name] = table

    def unique_name(self, kind: str) -> str:
        """Return a name for a node that the user has not named; no state is stored under it."""
        number = len(self.nodes)
        # The user may have given a node this name.
        while f"{kind}-{number}" in self.nodes:
            number += 1
        return f"{kind}-{number}"

    def build(self) -> Topology:
        """Check the nodes and cut them into sub-topologies.

        Raises:
            TopologyError: joined topics differ in their partitioners, or a topic has windowed keys
                without windows.
        """
        self._check_keys()
        groups = _connected_groups(self.nodes.values())
        # Drafts first: what a sub-topology sends and receives depends on all the others.
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
                    f"the keys of topic {topic.name!r} are windowed, and its windows are not "
                    "declared: Kafka's bytes for such keys do not contain the window's end. "
                    "Declare the windows on the topic, as in windows=tumbling('1h')"
                )


def _connected_groups(nodes: Iterable[Node]) -> list[tuple[Node, ...]]:
    """Return groups of nodes that records, stores or input topics connect, in build order."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    ordered = list(nodes)
    for node in ordered:
        # A topic has a slash before its name, which no node has.
        linked = [*node.parents, *node.lookup_nodes]
        if isinstance(node, Entry):
            linked.append(f"/{node.topic.name}")
        for other in linked:
            # Union-find: all nodes with one leader are a group.
            leader[find(other)] = find(node.name)
    groups: defaultdict[str, list[Node]] = defaultdict(list)
    for node in ordered:
        groups[find(node.name)].append(node)
    return [tuple(group) for group in groups.values()]


def _feeders(topic: str, subs: Iterable[Subtopology]) -> tuple[Feeder, ...]:
    found: dict[str, Feeder] = {}
    for sub, node in writers_of(topic, subs):
        for origin in sub.origins(node):
            if isinstance(origin, Entry):
                name, patterns = origin.topic.name, patterns_of([origin.topic])
                found[name] = Feeder(name, (name,), found_by=patterns)
                continue
            patterns = patterns_of(sub.topics.values())
            for name in origin.feeds:
                found[name] = Feeder(name, sub.inputs, _is_retimed(sub, origin), patterns)
    return tuple(found.values())


def _is_retimed(sub: Subtopology, node: Node) -> bool:
    """Return whether a node, or one above it, sets other timestamps."""
    return any(isinstance(each, SetTimestamp) for each in (node, *sub.ancestors(node)))


def _idle_marks(topic: str, subs: list[Subtopology]) -> tuple[int, ...]:
    waits_ms = (node.waits_idle_ms for sub in _readers_below(topic, subs) for node in sub.nodes)
    return tuple(sorted({ms for ms in waits_ms if ms is not None}))


def _is_timed(topic: str, subs: list[Subtopology]) -> bool:
    return any(node.tracks_time for sub in _readers_below(topic, subs) for node in sub.nodes)


def _readers_below(topic: str, subs: list[Subtopology]) -> Iterator[Subtopology]:
    """Yield the sub-topologies that a topic's records reach, directly or through others."""
    seen: set[str] = set()
    pending = [topic]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for sub in subs:
            if name in sub.topics:
                # Sub-topologies may feed each other in a loop; `seen` ends it.
                pending += sub.repartition_topics
                yield sub


def _downstream(sub: Subtopology, subs: list[Subtopology]) -> frozenset[str]:
    """Return the repartition topics that the output of `sub` may reach."""
    found: set[str] = set()
    pending = [*sub.repartition_topics]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [t for each in subs if name in each.topics for t in each.repartition_topics]
    return frozenset(found)
