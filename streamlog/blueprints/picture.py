"""Picture: a topology as boxes, groups and arrows, and as text for Mermaid and Graphviz.

Rule: a picture is built from a topology and its blueprint, marks what a later version changes, and
is independent of the drawing. Not done here: positions on a page (`svg`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Literal

import msgspec

from streamlog.blueprints.blueprint import Blueprint, names_of
from streamlog.durations import duration_text
from streamlog.nodes.stream_nodes import Entry, Node
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.topology import Topology

Shape = Literal["topic", "internal", "node", "state"]
"""A topic of the user's, one of the app's own, an operator, an operator with state."""
Mark = Literal["", "added", "changed", "removed"]
"""The difference from an older version."""
_MILLISECONDS = re.compile(r"\b([0-9]+) ms\b")
"""Exact in printed topologies, and hard to read in a picture."""
GONE = "gone"
"""The group of removed nodes."""


class Box(msgspec.Struct, frozen=True):
    """A topic or a node."""

    id: str
    shape: Shape
    lines: tuple[str, ...]
    """The text; the first line is the name."""
    group: str = ""
    mark: Mark = ""


class Arrow(msgspec.Struct, frozen=True):
    """Records flow from one box to another; dashed: rows are looked up."""

    start: str
    end: str
    dashed: bool = False


class Picture(msgspec.Struct, frozen=True):
    """All boxes and arrows."""

    title: str
    groups: dict[str, str]
    """Titles by id, in order."""
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    def in_group(self, group: str) -> list[Box]:
        """Return the boxes of a group; "" for those without a group."""
        return [box for box in self.boxes if box.group == group]


def picture_of(topology: Topology, before: Blueprint | None = None) -> Picture:
    """Return the picture of a topology.

    Args:
        topology: the topology to draw.
        before: an older version to compare with: what is new or differs is marked, and what was
            removed is drawn in a group of its own.
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
    gone = [] if before is None else _removed_boxes(before, marks)
    if gone:
        groups[GONE] = "removed since the previous version"
    return Picture(topology.app_id, groups, (*boxes.values(), *gone), tuple(arrows))


def _topic_id(name: str) -> str:
    # No node's name contains a slash.
    return f"topic/{name}"


def _topic_box(topic: TopicSpec) -> Box:
    return Box(_topic_id(topic.name), "internal" if topic.is_managed else "topic", (topic.name,))


def _node_box(node: Node, group: str, mark: Mark) -> Box:
    kind = type(node).__name__
    is_named = not node.name.startswith(f"{kind.lower()}-")
    # A name such as "filter-3" tells a reader nothing.
    lines = [node.name, kind] if is_named else [kind]
    lines += [text for text in (_function(node), _detail(node)) if text]
    shape: Shape = "state" if node.specs else "node"
    return Box(node.name, shape, tuple(lines), group, mark)


def _function(node: Node) -> str:
    name: str = getattr(getattr(node, "fn", None), "__qualname__", "")
    return "" if "<lambda>" in name else name.rpartition("<locals>.")[2]


def _detail(node: Node) -> str:
    # The topic of a source or sink is a box of its own, as is a table for lookups.
    if hasattr(node, "topic") or node.lookup_nodes:
        return ""
    return _MILLISECONDS.sub(lambda found: duration_text(int(found[1])), node.detail)


def _arrows(node: Node) -> Iterator[Arrow]:
    if isinstance(node, Entry):
        yield Arrow(_topic_id(node.topic.name), node.name)
    for parent in node.parents:
        yield Arrow(parent, node.name)
    for table in node.lookup_nodes:
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


def _removed_boxes(before: Blueprint, marks: dict[str, Mark]) -> list[Box]:
    return [
        # A node of another kind may have the name now, and a box of its own.
        Box(f"gone/{name}", "node", (name, str(before.nodes[name]["kind"])), GONE, "removed")
        for name, mark in marks.items()
        if mark == "removed"
    ]


COLOURS: dict[Mark, str] = {"added": "#2e8b57", "changed": "#c8861a", "removed": "#b22222"}
"""Border colours of differences."""
FILLS: dict[Shape, str] = {
    "topic": "#dcebf7",
    "internal": "#eef3f7",
    "node": "#ffffff",
    "state": "#fdf3d8",
}

_MERMAID: dict[Shape, tuple[str, str]] = {
    "topic": ("[(", ")]"),
    "internal": ("[(", ")]"),
    "node": ("[", "]"),
    "state": ("[[", "]]"),
}
_DOT: dict[Shape, str] = {
    "topic": "cylinder",
    "internal": "cylinder",
    "node": "box",
    "state": "box3d",
}


def mermaid(picture: Picture) -> str:
    """Return a Mermaid flowchart, which GitHub and many editors draw."""
    # Names may contain characters that end a Mermaid id.
    ids = {box.id: f"n{number}" for number, box in enumerate(picture.boxes)}

    def box_line(box: Box) -> str:
        left, right = _MERMAID[box.shape]
        text = "<br/>".join(map(_escape, box.lines))
        return f'{ids[box.id]}{left}"{text}"{right}:::{box.shape}'

    lines = ["flowchart LR"]
    lines += [f"  {box_line(box)}" for box in picture.in_group("")]
    for number, (group, title) in enumerate(picture.groups.items()):
        lines.append(f'  subgraph g{number}["{_escape(title)}"]')
        lines += [f"    {box_line(box)}" for box in picture.in_group(group)]
        lines.append("  end")
    for arrow in picture.arrows:
        line = "-.->" if arrow.dashed else "-->"
        lines.append(f"  {ids[arrow.start]} {line} {ids[arrow.end]}")
    lines += [f"  class {ids[box.id]} {box.mark}" for box in picture.boxes if box.mark]
    lines += [f"  classDef {shape} fill:{fill},stroke:#667" for shape, fill in FILLS.items()]
    lines += [f"  classDef {m} stroke:{colour},stroke-width:3px" for m, colour in COLOURS.items()]
    return "\n".join(lines) + "\n"


def dot(picture: Picture) -> str:
    """Return a graph in Graphviz' language: `dot -Tsvg` draws it."""
    ids = {box.id: f"n{number}" for number, box in enumerate(picture.boxes)}

    def box_line(box: Box) -> str:
        text = "\\n".join(map(_quote, box.lines))
        border = f', color="{COLOURS[box.mark]}", penwidth=3' if box.mark else ""
        look = f'shape={_DOT[box.shape]}, fillcolor="{FILLS[box.shape]}"{border}'
        return f'{ids[box.id]} [label="{text}", {look}];'

    lines = [f'digraph "{_quote(picture.title)}" {{', "  rankdir=LR;"]
    lines.append('  node [style=filled, fontname="sans-serif", fontsize=11];')
    lines += [f"  {box_line(box)}" for box in picture.in_group("")]
    for number, (group, title) in enumerate(picture.groups.items()):
        lines += [f"  subgraph cluster_{number} {{", f'    label="{_quote(title)}";']
        lines += [f"    {box_line(box)}" for box in picture.in_group(group)]
        lines.append("  }")
    for arrow in picture.arrows:
        style = " [style=dashed]" if arrow.dashed else ""
        lines.append(f"  {ids[arrow.start]} -> {ids[arrow.end]}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def _escape(text: str) -> str:
    """Escape quotes, which would end the text; Mermaid decodes entities."""
    return escape(text)


def _quote(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
