"""Picture: a topology as boxes, groups and arrows, to be drawn or written in a graph language.

Topics lie outside, each sub-topology is a group, arrows go from parents to children, from tables
to what looks into them, and from and to topics. Boxes carry a mark if the picture compares with
an older version of the topology. Rule of the file: everything that a format shows is here; formats
only spell it. Not done here: where boxes lie (`layout`), and how they look (`markup`, `svg`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from streamlog.topology.blueprint import Blueprint, names_of
from streamlog.topology.graph import Topology
from streamlog.topology.nodes import Entry, Node
from streamlog.topology.topics import TopicSpec

Shape = Literal["topic", "internal", "node", "state"]
"""A topic of the user's, one of the app's own, an operator, an operator with state."""
Mark = Literal["", "added", "changed", "removed"]
"""Against an older version."""
GONE = "gone"
"""The group of what is not there any more."""


@dataclass(frozen=True, slots=True)
class Box:
    """Something with a name."""

    id: str
    shape: Shape
    lines: tuple[str, ...]
    """What it says; the first is its name."""
    group: str = ""
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """Records go from one box to another; dashed: rows are looked up."""

    start: str
    end: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """All boxes and arrows."""

    title: str
    groups: dict[str, str]
    """Titles by id, in order."""
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    def in_group(self, group: str) -> list[Box]:
        """The boxes of a group; "" for those of none."""
        return [box for box in self.boxes if box.group == group]


def picture_of(topology: Topology, before: Blueprint | None = None) -> Picture:
    """The picture of a topology.

    Args:
        topology: what is drawn.
        before: an older version to compare with: what is new or differs is marked, what is gone
            is drawn in a group of its own.
    """
    boxes: dict[str, Box] = {}
    arrows: list[Arrow] = []
    groups: dict[str, str] = {}
    names = names_of(topology)
    marks = {} if before is None else _marks(before, Blueprint.of(topology))
    for topic in topology.topics.values():
        boxes[_topic_id(topic.name)] = _topic_box(topic)
    for sub in topology.subtopologies:
        group = f"sub{sub.number}"
        state = f" · state in {sub.changelog_topic}" if sub.changelog_topic else ""
        groups[group] = f"sub-topology {sub.number}{state}"
        for node in sub.nodes:
            boxes[node.name] = _node_box(node, group, marks.get(names[node.name], ""))
            arrows += _arrows(node)
    gone = [] if before is None else _gone(before, marks)
    if gone:
        groups[GONE] = "gone since the version before"
    return Picture(topology.app_id, groups, (*boxes.values(), *gone), tuple(arrows))


def _topic_id(name: str) -> str:
    # A slash is in no node's name.
    return f"topic/{name}"


def _topic_box(topic: TopicSpec) -> Box:
    return Box(_topic_id(topic.name), "internal" if topic.is_made else "topic", (topic.name,))


def _node_box(node: Node, group: str, mark: Mark) -> Box:
    kind = type(node).__name__
    is_named = not node.name.startswith(f"{kind.lower()}-")
    lines = [node.name, kind] if is_named else [kind]
    lines += [text for text in (_function(node), _detail(node)) if text]
    shape: Shape = "state" if node.specs else "node"
    return Box(node.name, shape, tuple(lines), group, mark)


def _function(node: Node) -> str:
    name: str = getattr(getattr(node, "fn", None), "__qualname__", "")
    return "" if "<lambda>" in name else name.rpartition("<locals>.")[2]


def _detail(node: Node) -> str:
    # The topic of a source or sink is a box of its own, as is a table that is looked into.
    return "" if hasattr(node, "topic") or node.looks_into else node.detail


def _arrows(node: Node) -> Iterator[Arrow]:
    if isinstance(node, Entry):
        yield Arrow(_topic_id(node.topic.name), node.name)
    for parent in node.parents:
        yield Arrow(parent, node.name)
    for table in node.looks_into:
        yield Arrow(table, node.name, dashed=True)
    for topic in node.writes:
        yield Arrow(node.name, _topic_id(topic.name))


def _marks(before: Blueprint, now: Blueprint) -> dict[str, Mark]:
    marks: dict[str, Mark] = {}
    for name in {**before.nodes, **now.nodes}:
        if name not in before.nodes:
            marks[name] = "added"
        elif name not in now.nodes:
            marks[name] = "removed"
        elif before.nodes[name] != now.nodes[name]:
            marks[name] = "changed"
    return marks


def _gone(before: Blueprint, marks: dict[str, Mark]) -> list[Box]:
    return [
        # The same name may be another kind of thing now, and have a box.
        Box(f"gone/{name}", "node", (name, str(before.nodes[name]["kind"])), GONE, "removed")
        for name, mark in marks.items()
        if mark == "removed"
    ]
