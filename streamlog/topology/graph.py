"""Topology: everything an app computes, cut into sub-topologies at its repartition topics.

It can be printed, checked against the partition counts of a log, and handed to any runner.
Rule of the file: nothing here runs a record or changes a node. Not done here: how it comes
about (`builder`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from streamlog.errors import TopologyError
from streamlog.records.partitioners import partitioner_name
from streamlog.serdes import serde_for
from streamlog.topology.global_tables import GlobalTable
from streamlog.topology.nodes import Entry, Node, Source
from streamlog.topology.record_windows import RecordWindowsAggregate
from streamlog.topology.subtopology import Subtopology, writers
from streamlog.topology.topics import TopicSpec
from streamlog.topology.windowed import WindowedAggregate
from streamlog.topology.writable_tables import AgentTables

FOR_EVER = -1
"""As `retention.ms` says it."""


DEAD_LETTER_BYTES_MAX = 16 * 1024 * 1024
"""A record may be there because it was too large for its topic."""


def dead_letter_topics(names: Iterable[str | None]) -> dict[str, TopicSpec]:
    """Topics for dead letters, by name: bytes, kept until somebody has seen to them."""
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
    """Everything an app computes; see `TopologyBuilder.build` for how it comes about."""

    def __init__(
        self,
        app_id: str,
        subtopologies: tuple[Subtopology, ...],
        global_tables: tuple[GlobalTable, ...] = (),
    ) -> None:
        self.app_id = app_id
        self.subtopologies = subtopologies
        self.global_tables = global_tables
        """What every worker has to read whole."""

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
        """The topics for dead letters of its operators."""
        policies = [node.on_error for node in self.nodes if node.on_error is not None]
        return dead_letter_topics(policy.dlq_topic(self.app_id) for policy in policies)

    @cached_property
    def worked_on(self) -> dict[str, tuple[str, ...]]:
        """The nodes that keep the tables which agents work on, by the names of the agents."""
        return {n.agent: n.tables for n in self.nodes if isinstance(n, AgentTables)}

    def subtopologies_of(self, topic: str) -> list[Subtopology]:
        """The sub-topologies that read this topic: one, or none."""
        return [sub for sub in self.subtopologies if topic in sub.topics]

    def partition_counts(self, known: Mapping[str, int]) -> dict[str, int]:
        """`known`, and the partition counts that the repartition topics must have.

        A repartition topic has as many partitions as the topics it is joined with; else as
        many as it was given; else as many as the largest topic upstream, of it or of those that
        are made with it in its sub-topology. Which of these are there already makes no difference,
        as one worker may look while another one creates them. The changelog comes last: where that
        is there the app has changed, and what is new has to fit the state.

        Args:
            known: partition counts of all other input topics, and of changelogs; a repartition
                topic that is there already keeps its count.

        Raises:
            TopologyError: a topic is missing, or two that must be alike are not.
        """
        counts = dict(known)
        for sub in self._upstream_first():
            for topic in sub.topics.values():
                if topic.name not in counts and not topic.is_made:
                    raise TopologyError(
                        f"topic {topic.name!r} is read by {self.app_id!r} but is not there: "
                        "create it, or let the app create it"
                    )
            counts |= self._fresh_counts(sub, counts)
            self._check_alike(sub, counts)
        return counts

    def _fresh_counts(self, sub: Subtopology, counts: Mapping[str, int]) -> dict[str, int]:
        """Of those topics of a sub-topology that are made, and are not there."""
        made = [topic for topic in sub.topics.values() if topic.is_made]
        given = [
            counts[name]
            for name, topic in sub.topics.items()
            if name in counts and (sub.changelog_topic in counts or not topic.is_made)
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
            if isinstance(node, WindowedAggregate | RecordWindowsAggregate)
            and not node.windows.grace_ms
            and node.late is None
            for topic in self._extracting_topics(sub, node)
        ]

    def _extracting_topics(self, sub: Subtopology, node: Node) -> list[str]:
        found = []
        for above in sub.ancestors(node):
            if isinstance(above, Source) and above.topic.internal:
                for other, sink in writers(above.topic.name, self.subtopologies):
                    found += self._extracting_topics(other, sink)
            elif isinstance(above, Entry) and above.topic.timestamp is not None:
                found.append(above.topic.name)
        return sorted({*found})

    def _upstream(self, topic: TopicSpec, counts: Mapping[str, int]) -> int:
        above = writers(topic.name, self.subtopologies)
        # Where sub-topologies feed each other in a ring, one has to be counted first.
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
        """Refuse to join topics whose keys lie in different partitions.

        Raises:
            TopologyError: there are two.
        """
        for sub in self.subtopologies:
            keyed = [node for node in sub.nodes if node.needs_equal_keys or node.specs]
            for node, first, other in _pairs(sub, keyed):
                if sub.topics[first].partitioner != sub.topics[other].partitioner:
                    raise TopologyError(_partitioned_apart(node, sub, first, other))

    def _check_alike(self, sub: Subtopology, counts: Mapping[str, int]) -> None:
        joins = [node for node in sub.nodes if node.needs_equal_keys]
        for node, first, other in _pairs(sub, joins):
            if counts[first] != counts[other]:
                raise TopologyError(_not_alike(node, first, other, counts))


def _pairs(sub: Subtopology, nodes: Iterable[Node]) -> Iterator[tuple[Node, str, str]]:
    """Of each node, the first topic that its keys come from, with each of the others."""
    for node in nodes:
        tables = [sub.by_name[name] for name in node.looks_into]
        above = [*sub.ancestors(node), *tables]
        above += [each for table in tables for each in sub.ancestors(table)]
        read = [n.topic for n in above if isinstance(n, Entry)]
        first, *others = sorted({topic.name for topic in read}, key=sub.inputs.index) or [""]
        yield from ((node, first, other) for other in others)


def _partitioned_apart(node: Node, sub: Subtopology, first: str, other: str) -> str:
    names = [partitioner_name(sub.topics[each].partitioner) for each in (first, other)]
    return (
        f"{node.name!r} needs the same keys of {first!r} and {other!r} in the same partition, but "
        f"{first!r} is partitioned by {names[0]} and {other!r} by {names[1]}: call "
        ".repartition(name=...) on the stream that is not partitioned by murmur2, or write both "
        "topics with the same partitioner"
    )


def _not_alike(node: Node, first: str, other: str, counts: Mapping[str, int]) -> str:
    return (
        f"{node.name!r} needs the same keys of {first!r} and {other!r} in the same partition, "
        f"but {first!r} has {counts[first]} partitions and {other!r} has {counts[other]}: "
        "create both with the same number, or call .repartition(name=..., partitions=...) on "
        "the stream of one of them"
    )


def _described(node: Node) -> str:
    detail = f" {node.detail}" if node.detail else ""
    after = f" after {', '.join(node.parents)}" if node.parents else ""
    return f"{type(node).__name__} {node.name}{detail}{after}"
