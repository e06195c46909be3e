"""Lowering: decides which stages of a history an engine may aggregate with operators of its own.

An engine can count and add whole numbers per (key, window) in columns, in any order and in parts,
if its result equals the task's result. The rows of the windows, which are few, go to the task,
which closes windows, emits rows and keeps open windows. The results are equal because of three
properties, which are checked here as far as the topology shows them:

1. Counts, and sums, minima and maxima of whole numbers don't depend on the order of records. Those
   of floats do, so floats are never lowered. Whether values are whole numbers of at most 64 bits
   turns out during the run; if not, the task processes the records.
2. Whether a record is late follows from the record alone: from the time of its source, which it
   carries, and the end of its window. That holds as long as no source is skipped as idle.
3. The effects of closing windows depend only on their rows, in the order of (end, start, key).

Rule of the file: pure; a reason is a sentence for `explain`. Not done here: the aggregation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from streamlog.errors import StreamlogError, quantity
from streamlog.nodes.stream_nodes import (
    Branch,
    Merge,
    Node,
    RepartitionSink,
    Sink,
    Source,
    Split,
    Stateless,
    WholeNumbers,
)
from streamlog.nodes.window_nodes import WindowedAggregate
from streamlog.topology import Subtopology, Topology
from streamlog.windows.definitions import Hopping, Tumbling
from streamlog.windows.emit import Emit

Lower: TypeAlias = Literal["auto", "off"]
"""Whether engines aggregate with operators of their own where they can."""
PASSING = Stateless | Merge | Split | Branch | Sink | RepartitionSink
"""Nodes that may follow a lowered aggregation."""


class NotLowered(StreamlogError):
    """The records of a stage don't meet the conditions of its lowering: tasks must process them."""


class Lowering(msgspec.Struct, frozen=True):
    """A stage that the engine aggregates: one windowed aggregation after one shuffle."""

    node: str
    """Name of the aggregation."""
    topic: str
    """The repartition topic before it."""

    def aggregate(self, sub: Subtopology) -> WindowedAggregate:
        """Return the aggregation's node."""
        node = sub.by_name[self.node]
        if not isinstance(node, WindowedAggregate):
            raise TypeError(f"{self.node!r} is of type {type(node).__name__}, which is not lowered")
        return node

    def numbers(self, sub: Subtopology) -> WholeNumbers:
        """Return how the aggregation's states are made of whole numbers."""
        numbers = self.aggregate(sub).aggregation.numbers
        if isinstance(numbers, str):
            raise TypeError(f"{self.node!r} is not lowered: {numbers}")
        return numbers


def lowering_of(sub: Subtopology, topology: Topology) -> Lowering | str:
    """Return how a sub-topology is lowered, or the reason why it is not."""
    if not sub.feeders:
        return "it reads the log, and the reader is Python"
    if len(sub.inputs) > 1:
        return f"it merges {quantity(len(sub.inputs), 'input')}"
    (topic,) = sub.inputs
    below = [node for node in sub.nodes if not isinstance(node, Source)]
    found = [node for node in below if isinstance(node, WindowedAggregate)]
    others = [node for node in below if node not in found and not isinstance(node, PASSING)]
    if not below:
        return "no node follows the shuffle"
    if len(found) != 1 or others:
        wrong = others[0] if others else (found or below)[0]
        return f"{wrong.name!r} is not the one tumbling or hopping aggregation of its stage"
    (node,) = found
    for reason in _refusals(node, sub, topology):
        return reason  # The first one is enough.
    return Lowering(node.name, topic)


def _refusals(node: WindowedAggregate, sub: Subtopology, topology: Topology) -> Iterator[str]:
    numbers = node.aggregation.numbers
    if isinstance(numbers, str):
        yield f"{node.name}: {numbers}"
    if not isinstance(node.windows, Tumbling | Hopping):
        yield f"{node.name}: its windows are calendar windows"
    if node.emit != Emit.CLOSE:
        yield f"{node.name}: rows are emitted before their window closes ({node.emit.name})"
    if node.late is not None:
        yield f"{node.name}: late records are emitted, not only counted"
    if node.idle_after_ms is not None or any(sub.idle_marks_ms.values()):
        yield f"{node.name}: idle_after depends on the wall clock"
    yield from _feeding(node, sub, topology)


def _feeding(node: WindowedAggregate, sub: Subtopology, topology: Topology) -> Iterator[str]:
    (topic,) = sub.inputs
    above: Sequence[Node] = [sub.by_name[parent] for parent in node.parents]
    if any(not isinstance(each, Source) for each in above):
        yield f"{node.name}: {above[0].name!r} is between it and the shuffle"
    if any(_may_skip(each) for each in (node, *above)):
        yield f"{node.name}: on_error may drop single records"
    feeders = sub.feeders[topic]
    if len(feeders) > 1 or node.united:
        yield f"{node.name}: it merges several streams"
    known = topology.topics.get(feeders[0].name)
    if known is None or known.internal:
        yield f"{node.name}: its records come from {feeders[0].name!r}, not from a topic"


def _may_skip(node: Node) -> bool:
    return node.on_error is not None and node.on_error.action != "fail"
