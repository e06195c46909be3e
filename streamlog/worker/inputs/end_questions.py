"""EndQuestion: whether all that was in the log when a doubt was put has come to the task.

A doubt is about an input, or about one source of what comes through a repartition topic. Level by
level, from the topics of others down to that input: where do the partitions end that it comes from,
and has the group committed what lies before? The topics of others are asked first, so that what is
in them by then counts; each repartition topic only after all above it was taken and committed, as
what came of that is in it by then, and up to its very end, since what a transaction wrote may not
be readable yet when its offsets are. Of the task's own input its position decides. Then nothing
that was there can come any more.
Pure: what was asked for is handed in. Not done here: asking (`ends`).
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
"""Partitions of which nothing can be said before all levels above are through."""


class EndQuestion:
    """One doubt on its way to be settled."""

    def __init__(self, doubt: EndOfInputQuestion, levels: Collection[Level]) -> None:
        """`levels` are those above the input, the topics of others first; see `levels_above`."""
        self.doubt = doubt
        self._own = TopicPartition(*doubt.topic_partition)
        self._levels = [*levels, frozenset({self._own})]
        self._at = 0
        self._ends: dict[TopicPartition, int] = {}
        """Of the level that it is at."""

    @property
    def _left(self) -> Level:
        return self._levels[self._at] if not self.is_settled else frozenset()

    @property
    def is_settled(self) -> bool:
        """Whether all that was there has come."""
        return self._at == len(self._levels)

    @property
    def wants_ends(self) -> Level:
        """Partitions whose ends it has to be told now: each once, as of after this was asked."""
        return self._left - self._ends.keys()

    @property
    def wants_committed(self) -> Level:
        """Partitions of which it has to be told where the group has committed to go on."""
        return frozenset(self._ends) if self._at + 1 < len(self._levels) else frozenset()

    def receive_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """These ends were asked for after `wants_ends` named them."""
        self._ends |= {part: ends[part] for part in self.wants_ends & ends.keys()}

    def receive_committed(self, committed: Mapping[TopicPartition, int | None]) -> bool:
        """So far the group has come; whether that settles a level."""
        wanted = self.wants_committed
        if not wanted or wanted != self._left:
            return False
        return self._pass({part: committed.get(part) or 0 for part in wanted})

    def receive_positions(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Behind these offsets the task has been given everything; whether that settles it."""
        if self._left != {self._own} or self.wants_committed or self.wants_ends:
            return False
        return self._pass({self._own: positions.get(self._own, 0)})

    def _pass(self, reached: Mapping[TopicPartition, int]) -> bool:
        if any(reached[part] < end for part, end in self._ends.items()):
            return False
        self._at += 1
        self._ends = {}
        return True


def levels_above(
    topology: Topology, counts: Mapping[str, int], place: TopicPartition, source: Source | None
) -> list[Level]:
    """What comes to a place, level by level; none above a topic of others.

    Args:
        topology: of the app.
        counts: the partitions of all topics.
        place: an input of a task.
        source: the one of its sources that counts; None: all.
    """
    depths: dict[TopicPartition, int] = {}

    def depth(part: TopicPartition) -> int:
        if part not in depths:
            depths[part] = 0  # It may come back to itself.
            above = _writers_inputs(topology, counts, part, None)
            depths[part] = max((depth(each) + 1 for each in above), default=0)
        return depths[part]

    for above in _writers_inputs(topology, counts, place, source):
        depth(above)
    depths.pop(place, None)
    by_level: defaultdict[int, set[TopicPartition]] = defaultdict(set)
    for part, level in depths.items():
        by_level[level].add(part)
    return [frozenset(by_level[level]) for level in sorted(by_level)]


def _writers_inputs(
    topology: Topology, counts: Mapping[str, int], place: TopicPartition, source: Source | None
) -> Iterator[TopicPartition]:
    """Where that is read of which a repartition topic's partition, or one source of it, is made."""
    for sub, _ in writers_of(place.topic, topology.subtopologies):
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
