"""Subtopology: the part of a topology that one task runs for one partition number.

Nodes belong to the same one if records, a store or an input topic connect them; what it reads
from another one comes through a repartition topic, whose writers are its feeders. Not done
here: the cut (`builder`), and running it (`processing`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import Entry, Node, RepartitionSink, View
from streamlog.topology.process import Process
from streamlog.topology.retimed import SetTimestamp
from streamlog.topology.topics import TopicSpec


@dataclass(frozen=True, slots=True)
class Feeder:
    """Who writes into a repartition topic: an input topic, or a node upstream with rows of its own.

    Each of its partitions is one source, with a stream time of its own.
    """

    name: str
    counted_by: tuple[str, ...]
    """It has as many partitions as the largest of these topics."""
    is_retimed: bool = False
    """Its times are those of `set_timestamp`: a partition without records has none."""

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
    timed: frozenset[str] = frozenset()
    """Repartition topics that it writes behind which somebody waits for event time to go on."""
    looped: frozenset[str] = frozenset()
    """Repartition topics that it reads and that what it writes comes back through."""

    @cached_property
    def retimed(self) -> Mapping[str, tuple[str, ...]]:
        """What has times of `set_timestamp`, here and upstream, with the topics above it."""
        feeders = (feeder for feeders in self.feeders.values() for feeder in feeders)
        above = {feeder.name: feeder.counted_by for feeder in feeders if feeder.is_retimed}
        return above | {n.name: self.inputs for n in self.nodes if isinstance(n, SetTimestamp)}

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
        return tuple(spec for node in self.nodes for spec in node.specs)

    @property
    def changelog_topic(self) -> str | None:
        """The topic that holds its state, one partition per task; None if it has no state.

        Reading a repartition topic is state too: what has been read from each source; and so is
        the stream time that a node keeps.
        """
        internal = any(topic.internal for topic in self.topics.values())
        timed = any(node.keeps_time for node in self.nodes)
        has_state = self.stores or internal or timed
        return f"{self.app_id}-{self.number}-changelog" if has_state else None

    def tasks(self, counts: Mapping[str, int]) -> int:
        """How many tasks it has, given the partition counts of its input topics."""
        return max(counts[topic] for topic in self.topics)

    @cached_property
    def record_at_a_time(self) -> bool:
        """Whether records must go through one by one for their effects to come in order.

        A batch is handed from node to node whole. That is what single records would do, unless
        two paths from the same input meet again: in a merge, a store, or a topic. Or unless a
        node has to know at each record how far those have come that come at their own times. Or
        unless a processor sets rows that somebody else sees.
        """
        return (
            any(map(self._paths_meet, self.topics))
            or any(map(self._awaits_feeds, self.nodes))
            or any(map(self._sets_what_others_see, self.nodes))
        )

    def _sets_what_others_see(self, node: Node) -> bool:
        if not isinstance(node, Process):
            return False
        others = (other for other in self.nodes if other is not node)
        return any({*other.parents, *other.looks_into} & {*node.tables} for other in others)

    def _awaits_feeds(self, node: Node) -> bool:
        return node.awaits_feeds and any(origin.feeds for origin in self.origins(node))

    def _paths_meet(self, topic: str) -> bool:
        paths: defaultdict[str, int] = defaultdict(int)
        at_topic: defaultdict[str, int] = defaultdict(int)
        at_store: defaultdict[str, int] = defaultdict(int)
        for node in self.nodes:
            starts = isinstance(node, Entry) and node.topic.name == topic
            count = starts + sum(paths[parent] for parent in node.parents)
            paths[node.name] = count
            for written in node.writes:
                at_topic[written.name] += count
            for table in node.looks_into:
                at_store[table] += count
        met = [paths[table] and joins for table, joins in at_store.items()]
        return any(met) or max([*paths.values(), *at_topic.values()]) > 1

    def tells_old_values(self, node: Node) -> bool:
        """Whether the changes that it hands on have to say which values they replace."""
        return any(self._uses_old_values(each) for each in self._children(node))

    def _uses_old_values(self, node: Node) -> bool:
        if node.old_values == "passed on" and self.tells_old_values(node):
            return True
        # A view that hands nothing on is there for lookups.
        return node.needs_old_values and not (isinstance(node, View) and not self._children(node))

    def _children(self, node: Node) -> list[Node]:
        return [each for each in self.nodes if node.name in each.parents]

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
        """The sources that this node's records come from, in build order: entries and feeders.

        Above a feeder that also hands on what belongs to its records (`passes_on`), those too.
        """
        return self._above(
            node,
            lambda n: isinstance(n, Entry) or bool(n.feeds),
            through=lambda n: bool(n.feeds) and n.passes_on,
        )

    def clocks(self, node: Node) -> list[Node]:
        """The nodes that tell how far event time has come where this node's records are."""
        return self._above(node, lambda n: isinstance(n, Entry) or n.keeps_time)

    def nearest(self, node: Node, wanted: Callable[[Node], bool]) -> list[Node]:
        """The nearest nodes of this kind above this one, in build order."""
        return self._above(node, wanted)

    def is_watched(self, node: Node) -> bool:
        """Whether a processor below this one needs its time."""
        below = (other for other in self.nodes if isinstance(other, Process))
        return any(node in self.clocks(other) for other in below)

    @property
    def processors_idle_ms(self) -> list[int]:
        """The idle times that its processors wait for."""
        nodes = (node for node in self.nodes if isinstance(node, Process))
        return [node.idle_after_ms for node in nodes if node.idle_after_ms is not None]

    def _above(
        self,
        node: Node,
        wanted: Callable[[Node], bool],
        *,
        through: Callable[[Node], bool] = lambda _: False,
    ) -> list[Node]:
        """The nearest wanted nodes above this one; those beyond some of them as well."""
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
            if not wanted(parent) or through(parent):
                pending += parent.parents
        return [self.by_name[name] for name in self.by_name if name in found]


def writers(topic: str, subs: Iterable[Subtopology]) -> list[tuple[Subtopology, Node]]:
    """Who writes to a repartition topic."""
    return [
        (sub, node)
        for sub in subs
        for node in sub.nodes
        if isinstance(node, RepartitionSink) and node.topic.name == topic
    ]
