"""Lowering: which stages of a history an engine may fold in its own way, and which not, and why.

An engine that has rows of (key, window) can count and add up whole numbers in columns, in any order
and in parts, where that gives exactly what the task gives. So it folds, and the rows of the
windows, which are few, go to the task: that closes windows, hands on, keeps what is open. What
makes it exact, and is checked here as far as a topology shows it:

1. Counts, and sums, minima and maxima of whole numbers do not depend on the order of the records.
   Floats do, so they are never lowered; whether numbers are whole in fact is seen when it runs, and
   so is whether they fit into 64 bits. If not, the task runs.
2. Whether a record is late follows from it alone: its source's time, which it carries, and its
   window's end. That is so as long as no source is left behind because it is idle.
3. What goes on when windows close depends on nothing but the rows, by (end, start, key).

Rule of the file: pure; a reason is a sentence for `explain`. Not done here: the folding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from streamlog.errors import StreamlogError
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
"""Whether engines fold in their own way where they can."""
PASSING = Stateless | Merge | Split | Branch | Sink | RepartitionSink
"""What may follow on an aggregation that is lowered."""


class NotLowered(StreamlogError):
    """The records of a stage are not what it was lowered for: its tasks have to take them."""


@dataclass(frozen=True, slots=True)
class Lowering:
    """A stage that is folded by the engine: one windowed aggregation behind one shuffle."""

    node: str
    """The aggregation."""
    topic: str
    """What it is fed through."""

    def aggregate(self, sub: Subtopology) -> WindowedAggregate:
        """The aggregation itself."""
        node = sub.by_name[self.node]
        if not isinstance(node, WindowedAggregate):
            raise TypeError(f"{self.node!r} is a {type(node).__name__}, which is not lowered")
        return node

    def numbers(self, sub: Subtopology) -> WholeNumbers:
        """What its states are."""
        numbers = self.aggregate(sub).aggregation.numbers
        if isinstance(numbers, str):
            raise TypeError(f"{self.node!r} is not lowered: {numbers}")
        return numbers


def lowering_of(sub: Subtopology, topology: Topology) -> Lowering | str:
    """How a sub-topology is lowered, or why it is not."""
    if not sub.feeders:
        return "it reads the log, and what reads it is Python"
    if len(sub.inputs) > 1:
        return f"it merges {len(sub.inputs)} inputs"
    (topic,) = sub.inputs
    below = [node for node in sub.nodes if not isinstance(node, Source)]
    found = [node for node in below if isinstance(node, WindowedAggregate)]
    others = [node for node in below if node not in found and not isinstance(node, PASSING)]
    if not below:
        return "nothing is done with what comes through the shuffle"
    if len(found) != 1 or others:
        wrong = others[0] if others else (found or below)[0]
        return f"{wrong.name!r} is not the one tumbling or hopping aggregation of its stage"
    (node,) = found
    for reason in _refusals(node, sub, topology):
        return reason
    return Lowering(node.name, topic)


def _refusals(node: WindowedAggregate, sub: Subtopology, topology: Topology) -> Iterator[str]:
    numbers = node.aggregation.numbers
    if isinstance(numbers, str):
        yield f"{node.name}: {numbers}"
    if not isinstance(node.windows, Tumbling | Hopping):
        yield f"{node.name}: its windows are those of a calendar"
    if node.emit != Emit.CLOSE:
        yield f"{node.name}: rows go on before their window closes ({node.emit.name})"
    if node.late is not None:
        yield f"{node.name}: late records go on, and are not only counted"
    if node.idle_after_ms is not None or any(sub.idle_marks_ms.values()):
        yield f"{node.name}: idle_after goes by the clock on the wall"
    yield from _feeding(node, sub, topology)


def _feeding(node: WindowedAggregate, sub: Subtopology, topology: Topology) -> Iterator[str]:
    (topic,) = sub.inputs
    above: Sequence[Node] = [sub.by_name[parent] for parent in node.parents]
    if any(not isinstance(each, Source) for each in above):
        yield f"{node.name}: {above[0].name!r} comes between it and the shuffle"
    if any(_may_skip(each) for each in (node, *above)):
        yield f"{node.name}: records that fail are left out one by one (on_error)"
    feeders = sub.feeders[topic]
    if len(feeders) > 1 or node.united:
        yield f"{node.name}: several streams come together in it"
    known = topology.topics.get(feeders[0].name)
    if known is None or known.internal:
        yield f"{node.name}: its records come of {feeders[0].name!r}, and not from a topic"


def _may_skip(node: Node) -> bool:
    return node.on_error is not None and node.on_error.action != "fail"
