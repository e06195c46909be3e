"""The topology of an app as a living graph, and one node with samples of its records.

The layout depends on the topology alone, with room for the widest figures, so that no box moves
while the figures change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from streamlog.adviser.log_view import size
from streamlog.blueprints.layout import LINE, PADDING, DrawnPicture, Rect, lay_out, shorten
from streamlog.blueprints.picture import Arrow, Box, Picture, picture_of
from streamlog.console.app_pages.app_sight import AppSight, NodeSight, TopicSight
from streamlog.console.app_pages.task_pages import counted_tasks
from streamlog.console.markup import (
    Element,
    Markup,
    Node,
    a,
    button,
    code,
    details,
    div,
    field,
    form,
    g,
    h1,
    h2,
    joined,
    p,
    path,
    pre,
    rect,
    span,
    summary,
    svg,
    text_,
    title,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    Tone,
    address,
    age,
    cut,
    heading_row,
    moment,
    nothing,
    notice,
    number,
    pager,
    rate,
    rows_of,
    short_number,
    tile,
    tiles,
)
from streamlog.errors import quantity
from streamlog.topology import Topology

BOXES_MAX: Final = 400
"""Boxes that a page draws; a larger topology has its list alone."""
PAGE_WIDTH: Final = 1_100
"""What a window of 1,400 pixels has for the drawing, beside the menu."""
BUSY: Final = 0.8
"""The share of a core from which a node is likely to hold up the others."""
LINE_MAX: Final = 26
"""Characters of a line under the name of a box."""
TOPIC: Final = "topic/"
"""The ids of topics in pictures begin with it."""
_WIDEST: Final = "999k/s · 100 % busy"
_WIDEST_WINDOWS: Final = "999k windows · 999k late"
_WIDEST_LAG: Final = "lag 999k · 9999 d 23 h"
_FLOWS: Final = (0.0, 1.0, 100.0, 10_000.0)
"""Records per second from which an arrow is drawn one step thicker."""
defs, marker = Element("defs"), Element("marker")


class Graph(msgspec.Struct, frozen=True):
    """A topology, laid out once."""

    picture: Picture
    placed: DrawnPicture
    windowed: frozenset[str]
    """The nodes with windows."""
    read: frozenset[str]
    """The ids of topics that the app reads."""
    kinds: Mapping[str, str]
    """What each node does, in words."""

    @classmethod
    def of(cls, topology: Topology) -> Graph:
        """Return the graph of a topology."""
        nodes = [node for sub in topology.subtopologies for node in sub.nodes]
        windowed = frozenset(node.name for node in nodes if hasattr(node, "windows"))
        whole = picture_of(topology)
        plain = msgspec.structs.replace(whole, boxes=tuple(map(_in_short, whole.boxes)))
        read = frozenset(each.start for each in plain.arrows if each.start.startswith(TOPIC))
        roomy = msgspec.structs.replace(
            plain, boxes=tuple(_with_room(each, windowed, read) for each in plain.boxes)
        )
        kinds = {box.id: " · ".join(box.lines[1:]) or box.lines[0] for box in whole.boxes}
        return cls(plain, lay_out(roomy, PAGE_WIDTH), windowed, read, kinds)

    def box(self, name: str) -> Box | None:
        """Return the box of a node; None: there is no such node."""
        return next((each for each in self.picture.boxes if each.id == name and each.group), None)


def _in_short(box: Box) -> Box:
    # A long line makes the whole column wide; the page of the node has it.
    return msgspec.structs.replace(
        box, lines=(box.lines[0], *(each for each in box.lines[1:] if len(each) <= LINE_MAX))
    )


def _with_room(box: Box, windowed: frozenset[str], read: frozenset[str]) -> Box:
    # A box that reads nothing has no figures, and needs no room.
    more: list[str] = []
    if box.group:
        more = [_WIDEST, _WIDEST_WINDOWS] if box.id in windowed else [_WIDEST]
    elif box.id in read:
        more = [_WIDEST_LAG]
    return msgspec.structs.replace(box, lines=(*box.lines, *more))


def topology(graph: Graph, sight: AppSight, query: Mapping[str, str]) -> View:
    """Return the graph with its figures, and the nodes as a list."""
    nodes = [each for each in graph.picture.boxes if each.group]
    # The node that holds up the others is what one looks for first.
    busiest = sorted(nodes, key=lambda box: -(_of(sight, box.id).busy or 0.0))
    shown = cut(busiest, query.get("page", ""))
    states = [each.state_bytes for each in sight.state.tasks if each.state_bytes is not None]
    late = sum(each.late for each in sight.nodes.values())
    paused = sum(each.paused for each in sight.topics.values())
    content = joined(
        heading_row(h1["Topology"]),
        tiles(
            tile("This worker runs", counted_tasks(sight), "all figures are its own"),
            tile("Lag", number(sum(sight.state.lag_records.values())), "records"),
            tile("Late", number(late), "records, since the tasks began"),
            tile("State", size(sum(states)) if states else "—"),
            tile("Held back", quantity(paused, "partition"), "until there is room for records",
                 "warn" if paused else "calm"),
        ),
        _drawing(graph, sight)
        if len(graph.picture.boxes) <= BOXES_MAX
        else notice("info", f"The graph has more than {BOXES_MAX} boxes: the list has all nodes."),
        h2["Nodes, the busiest first"],
        rows_of(_HEADINGS, [_row(each, graph, sight) for each in shown.rows], name="Nodes"),
        pager(shown, lambda page: address("topology", page=page), "nodes"),
    )  # fmt: skip
    return View(title="Topology", content=content)


_HEADINGS: Final = (
    Heading("Node"), Heading("Kind"), Heading("Takes", is_number=True),
    Heading("Forwards", is_number=True), Heading("Busy", is_number=True),
    Heading("Late", is_number=True), Heading("Open windows", is_number=True),
)  # fmt: skip


def _row(box: Box, graph: Graph, sight: AppSight) -> tuple[Node, ...]:
    node = _of(sight, box.id)
    return (
        a(class_="name", href=address("topology", "nodes", box.id))[box.id],
        graph.kinds[box.id],
        rate(node.in_rate),
        rate(node.out_rate),
        _busy(node),
        number(node.late) if box.id in graph.windowed or node.late else "—",
        number(node.open_windows),
    )


def _of(sight: AppSight, node: str) -> NodeSight:
    return sight.nodes.get(node, NodeSight())


def _busy(node: NodeSight) -> str:
    return "—" if node.busy is None else f"{node.busy:.0%}"


# ---- the drawing ----


def _drawing(graph: Graph, sight: AppSight) -> Markup:
    width, height = round(graph.placed.width), round(graph.placed.height)
    name = f"Topology of {graph.picture.title}"
    return joined(
        div(class_="graph", tabindex=0, role="region", aria_label=name)[
            svg(
                class_="drawing", role="group", aria_label=name, width=width, height=height,
                viewBox=f"0 0 {width} {height}",
            )[
                defs[
                    marker(id="tip", viewBox="0 0 8 8", refX=7, refY=4, markerWidth=7,
                           markerHeight=7, markerUnits="userSpaceOnUse", orient="auto")[
                        path(d="M0 0 8 4 0 8z")
                    ]
                ],
                _groups(graph, sight),
                (
                    _arrow(each, line, sight)
                    for each, line in zip(graph.picture.arrows, graph.placed.paths, strict=True)
                ),
                (_box(each, graph, sight) for each in graph.picture.boxes),
            ]
        ],
        p(class_="hint")[
            "An arrow is thicker the more records flow: up to 1, 100, 10,000 a second, and more."
            " Dashed: rows are looked up. A box is marked if it works more than"
            f" {BUSY:.0%} of the time, drops late records, or waits for room. The time beside a"
            " topic's lag is how far its event time is behind the clock."
        ],
    )  # fmt: skip


def _groups(graph: Graph, sight: AppSight) -> Iterator[Markup]:
    for group, frame in graph.placed.frames.items():
        bytes_ = sight.state_bytes(int(group.removeprefix("sub")))
        said = graph.picture.groups[group].partition(" · ")[0]
        state = "" if bytes_ is None else f" · state {size(bytes_)}"
        yield g(class_="group")[
            rect(**_at(frame), rx=8),
            text_(x=f"{frame.x + PADDING:.1f}", y=f"{frame.y + 15:.1f}")[f"{said}{state}"],
        ]


def _box(box: Box, graph: Graph, sight: AppSight) -> Markup:
    frame, tone, more = graph.placed.rects[box.id], "", list[str]()
    # Not for nodes, whose names have no slash.
    topic = box.id.removeprefix(TOPIC)
    if box.group:
        tone, more = _node_lines(box, graph, _of(sight, box.id))
    elif box.id in graph.read:
        tone, more = _topic_lines(sight.topics.get(topic, TopicSight()))
    where = address("topology", "nodes", box.id) if box.group else address("topics", topic)
    corner = 4 if box.group else round(min(frame.height / 2, 16))
    lines = [*box.lines, *more]
    # In the middle of the box, which has room for the largest number of lines.
    first = frame.y + (frame.height - LINE * len(lines)) / 2 + LINE * 0.75
    middle = f"{frame.x + frame.width / 2:.1f}"
    return a(href=where, class_=f"box {box.shape} {tone}".rstrip())[
        title["\n".join(lines)],
        rect(**_at(frame), rx=corner),
        (
            text_(x=middle, y=f"{first + LINE * at:.1f}", text_anchor="middle",
                  class_=_line_class(at, len(box.lines)))[shorten(line)]
            for at, line in enumerate(lines)
        ),
    ]  # fmt: skip


def _line_class(at: int, names: int) -> str | None:
    if at == 0:
        return "first"
    return "figure" if at >= names else None


def _node_lines(box: Box, graph: Graph, node: NodeSight) -> tuple[Tone | str, list[str]]:
    # A sink forwards nothing: what it takes is what flows.
    flow = node.out_rate if node.records_out else node.in_rate
    lines = [f"{rate(flow)} · {_busy(node)} busy"]
    if box.id in graph.windowed:
        open_windows = "—" if node.open_windows is None else short_number(node.open_windows)
        lines.append(f"{open_windows} windows · {short_number(node.late)} late")
    # By the rate: lateness of yesterday is no reason to look here now.
    is_marked = (node.busy or 0.0) >= BUSY or (node.late_rate or 0.0) > 0
    return ("warn" if is_marked else ""), lines


def _topic_lines(topic: TopicSight) -> tuple[Tone | str, list[str]]:
    said = f"lag {short_number(topic.lag)}"
    if topic.paused:
        return "warn", [f"{said} · waits"]
    return "", [said if topic.behind_ms is None else f"{said} · {age(topic.behind_ms)}"]


def _arrow(arrow: Arrow, line: str, sight: AppSight) -> Markup:
    is_from_topic = arrow.start.startswith(TOPIC)
    node = _of(sight, arrow.end if is_from_topic else arrow.start)
    # What an entry takes comes from its topic, and is counted when it forwards it.
    flow = node.out_rate if node.records_out else node.in_rate
    step = sum((flow or 0.0) > least for least in _FLOWS)
    waits = is_from_topic and sight.topics.get(arrow.start.removeprefix(TOPIC), TopicSight()).paused
    kinds = ["arrow", f"flow{step}", "dashed" if arrow.dashed else "", "waits" if waits else ""]
    return path(class_=" ".join(filter(None, kinds)), marker_end="url(#tip)", d=line)[None]


def _at(frame: Rect) -> dict[str, str]:
    names = {"x": frame.x, "y": frame.y, "width": frame.width, "height": frame.height}
    return {name: f"{value:.1f}" for name, value in names.items()}


# ---- one node ----


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A record at a node, as text."""

    is_out: bool
    """Whether the node has forwarded it; otherwise it has taken it."""
    key: str
    value: str
    timestamp_ms: int
    topic: str
    """The topic of the record that it comes from."""
    partition: int
    offset: int


def node_page(
    graph: Graph, sight: AppSight, name: str, found: Sequence[Sample] | None, error: str = ""
) -> View:
    """Return a node with its figures.

    Args:
        graph: the topology.
        sight: the worker.
        name: the node.
        found: samples of its records; None: none were asked for.
        error: why there are none.
    """
    box = graph.box(name)
    if box is None:
        content = joined(_crumb(), heading_row(h1[name]), nothing("The topology has no such node."))
        return View(title=name, content=content, is_live=False, status=404)
    node = _of(sight, name)
    # A node has as many tasks as its sub-topology has partitions.
    of_sub = f"{box.group.removeprefix('sub')}_"
    here = [code[each.task] for each in sight.state.tasks if each.task.startswith(of_sub)]
    content = joined(
        _crumb(),
        heading_row(h1[name]),
        p(class_="subtitle")[graph.kinds[name]],
        tiles(
            tile("Takes", rate(node.in_rate), f"{number(node.records_in)} records in all"),
            tile("Forwards", rate(node.out_rate), f"{number(node.records_out)} records in all"),
            tile("Busy", _busy(node), "of one core",
                 "warn" if (node.busy or 0.0) >= BUSY else "calm"),
            tile("Late", number(node.late), "records", "warn" if node.late_rate else "calm"),
            tile("Open windows", number(node.open_windows)),
        ),
        p(class_="hint")["Tasks of this worker with this node: ", _listed(here), "."],
        h2["Records that flow here"],
        notice("bad", error) if error else None,
        form(class_="fields", method="get", action=address("topology", "nodes", name))[
            field(type="hidden", name="sample", value="1"),
            button(type="submit", class_="main")["Take samples"],
        ],
        _samples(found),
    )  # fmt: skip
    # With samples, the page stays as it is: an update would take new ones.
    return View(title=name, content=content, is_live=found is None and not error)


def _crumb() -> Markup:
    return div(class_="crumb")[a(href=address("topology"))["Topology"]]


def _listed(found: Sequence[Node]) -> list[Node]:
    if not found:
        return ["none"]
    more = f" and {len(found) - 20} more" if len(found) > 20 else None  # noqa: PLR2004 - a line or two
    return [*([", " if at else None, each] for at, each in enumerate(found[:20])), more]


def _samples(found: Sequence[Sample] | None) -> Markup:
    if found is None:
        return p(class_="hint")[
            "The worker looks at the records that this node takes and forwards, for two seconds at"
            " most, and shows the first ones."
        ]
    if not found:
        return nothing("No record has come by.", "Try again while records flow.")
    return joined(
        *(
            (h2[f"{what} ({len(each)})"], div(class_="records")[map(_sample, each)])
            for what, each in (
                ("Taken", [each for each in found if not each.is_out]),
                ("Forwarded", [each for each in found if each.is_out]),
            )
            if each
        )
    )


def _sample(sample: Sample) -> Markup:
    origin = f"{sample.topic}-{sample.partition}:{sample.offset}"
    link = address("topics", sample.topic, "messages", partition=sample.partition,
                   begin="offset", at=sample.offset, open=1)  # fmt: skip
    return details(class_="record")[
        summary[
            span(class_="at mono")[f"{sample.partition}:{sample.offset}"],
            span(class_="at")[moment(sample.timestamp_ms)],
            span(class_="mono", title="Key")[_line(sample.key)],
            span(class_="mono", title="Value")[_line(sample.value)],
        ],
        div(class_="record-body")[
            p["Comes from ", a(href=link)[origin]],
            pre[sample.key],
            pre[sample.value],
        ],
    ]


def _line(text: str) -> str:
    return " ".join(text[:480].split())[:240]
