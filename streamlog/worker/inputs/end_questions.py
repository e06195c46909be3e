"""End questions: decides whether a task has received everything that was in the log.

A question is about an input of a task, or about one source of an input that is a repartition topic.
It is answered level by level, from the foreign topics down to the input:

1. The ends of the foreign topics above are read. They define which records count.
2. When the group has committed up to these ends, all results of those records are in the
   repartition topics of the next level, whose ends are read only now. They are read up to the high
   watermark: a transaction's offsets may be visible before its records are.
3. At the task's own input, the task's position decides instead of a commit.

After that no record that was in the log at step 1 can still arrive.

Rule: pure; the answers are passed in. Not done here: asking (`input_ends`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from streamlog.processing.inputs.end_of_input import EndOfInputQuestion
from streamlog.record import TopicPartition
from streamlog.topology import Topology, writers_of
from streamlog.windows.emit import Source

Level: TypeAlias = frozenset[TopicPartition]
"""Partitions whose ends mean something only after all levels above are done."""


class EndQuestion:
    """A question whether an input is read to its end, with the progress of its answer."""

    def __init__(self, question: EndOfInputQuestion, levels: Collection[Level]) -> None:
        """Create it; `levels` are those above the input, foreign topics first (`levels_above`)."""
        self.question = question
        self._own = TopicPartition(*question.topic_partition)
        self._levels = [*levels, frozenset({self._own})]
        self._level = 0
        self._ends: dict[TopicPartition, int] = {}
        """The ends of the present level's partitions."""

    @property
    def _left(self) -> Level:
        return self._levels[self._level] if not self.is_settled else frozenset()

    @property
    def is_settled(self) -> bool:
        """Whether the task has received everything."""
        return self._level == len(self._levels)

    @property
    def wants_ends(self) -> Level:
        """The partitions whose ends to read now, each once, and not earlier than now."""
        return self._left - self._ends.keys()

    @property
    def wants_committed(self) -> Level:
        """The partitions whose committed offsets to read now."""
        return frozenset(self._ends) if self._level + 1 < len(self._levels) else frozenset()

    def receive_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Take ends that were read after `wants_ends` named their partitions."""
        self._ends |= {part: ends[part] for part in self.wants_ends & ends.keys()}

    def receive_committed(self, committed: Mapping[TopicPartition, int | None]) -> bool:
        """Take the group's committed offsets; returns whether the present level is done."""
        wanted = self.wants_committed
        # All ends of the level have to be known: a partition without one may still hold records.
        if not wanted or wanted != self._left:
            return False
        return self._pass({part: committed.get(part) or 0 for part in wanted})

    def receive_positions(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Take the task's positions; returns whether they settle the question."""
        if self._left != {self._own} or self.wants_committed or self.wants_ends:
            return False
        return self._pass({self._own: positions.get(self._own, 0)})

    def _pass(self, reached: Mapping[TopicPartition, int]) -> bool:
        if any(reached[part] < end for part, end in self._ends.items()):
            return False
        # The ends of the next level are read from here on, and not earlier: only now do its topics
        # hold every result of this level.
        self._level += 1
        self._ends = {}
        return True


def levels_above(
    topology: Topology, counts: Mapping[str, int], part: TopicPartition, source: Source | None
) -> list[Level]:
    """Return the partitions whose records reach an input, level by level, foreign topics first.

    Args:
        topology: the app's topology.
        counts: the partition counts of all topics.
        part: an input of a task. A foreign topic has no levels above it.
        source: the source of the input that counts; None: all of them.
    """
    depths: dict[TopicPartition, int] = {}

    def depth(part: TopicPartition) -> int:
        if part not in depths:
            depths[part] = 0  # Set before the recursion: a topology may contain a loop.
            above = _writers_inputs(topology, counts, part, None)
            depths[part] = max((depth(each) + 1 for each in above), default=0)
        return depths[part]

    for above in _writers_inputs(topology, counts, part, source):
        depth(above)
    depths.pop(part, None)
    by_level: defaultdict[int, set[TopicPartition]] = defaultdict(set)
    for at, level in depths.items():
        by_level[level].add(at)
    return [frozenset(by_level[level]) for level in sorted(by_level)]


def _writers_inputs(
    topology: Topology, counts: Mapping[str, int], part: TopicPartition, source: Source | None
) -> Iterator[TopicPartition]:
    """Yield the inputs of the tasks that write to a repartition topic, or to one source of it."""
    for sub, _ in writers_of(part.topic, topology.subtopologies):
        if source is None:
            made_of = [(topic, range(counts[topic])) for topic in sub.inputs]
        elif source[0] in sub.topics:
            made_of = [(source[0], range(source[1], source[1] + 1))]
        elif any(source[0] in node.feeds for node in sub.nodes):
            made_of = [(topic, range(source[1], source[1] + 1)) for topic in sub.inputs]
        else:
            continue
        for topic, numbers in made_of:
            yield from (TopicPartition(topic, n) for n in numbers if n < counts[topic])
