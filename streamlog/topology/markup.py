"""A picture of a topology in the languages of Mermaid and Graphviz.

Rule of the file: ids are numbers of our own, names are quoted text: users name things as they
like.
"""

from __future__ import annotations

from html import escape

from streamlog.topology.picture import Box, Mark, Picture, Shape

COLOURS: dict[Mark, str] = {"added": "#2e8b57", "changed": "#c8861a", "removed": "#b22222"}
"""Of the borders of what differs."""
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
    """As a Mermaid flowchart, which GitHub and many editors draw."""
    ids = {box.id: f"n{number}" for number, box in enumerate(picture.boxes)}

    def box_line(box: Box) -> str:
        left, right = _MERMAID[box.shape]
        text = "<br/>".join(map(_escaped, box.lines))
        return f'{ids[box.id]}{left}"{text}"{right}:::{box.shape}'

    lines = ["flowchart LR"]
    lines += [f"  {box_line(box)}" for box in picture.in_group("")]
    for number, (group, title) in enumerate(picture.groups.items()):
        lines.append(f'  subgraph g{number}["{_escaped(title)}"]')
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
    """In Graphviz' language: `dot -Tsvg` draws it."""
    ids = {box.id: f"n{number}" for number, box in enumerate(picture.boxes)}

    def box_line(box: Box) -> str:
        text = "\\n".join(map(_quoted, box.lines))
        border = f', color="{COLOURS[box.mark]}", penwidth=3' if box.mark else ""
        look = f'shape={_DOT[box.shape]}, fillcolor="{FILLS[box.shape]}"{border}'
        return f'{ids[box.id]} [label="{text}", {look}];'

    lines = [f'digraph "{_quoted(picture.title)}" {{', "  rankdir=LR;"]
    lines.append('  node [style=filled, fontname="sans-serif", fontsize=11];')
    lines += [f"  {box_line(box)}" for box in picture.in_group("")]
    for number, (group, title) in enumerate(picture.groups.items()):
        lines += [f"  subgraph cluster_{number} {{", f'    label="{_quoted(title)}";']
        lines += [f"    {box_line(box)}" for box in picture.in_group(group)]
        lines.append("  }")
    for arrow in picture.arrows:
        style = " [style=dashed]" if arrow.dashed else ""
        lines.append(f"  {ids[arrow.start]} -> {ids[arrow.end]}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def _escaped(text: str) -> str:
    """Quotes would end the text; Mermaid reads entities."""
    return escape(text)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
