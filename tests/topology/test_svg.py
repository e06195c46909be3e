"""Pictures as SVG: whole documents with all boxes, and without overlaps."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree as ET

from streamlog.blueprints.picture import Arrow, Box, Picture
from streamlog.blueprints.svg import svg

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = Picture(
    "an <app>",
    {"g": "sub-topology 0 & its state", "h": "sub-topology 1"},
    (
        Box("topic/in", "topic", ("in",)),
        Box("a", "node", ("a", "Map", "<f>"), "g"),
        Box("b", "state", ("b" * 80,), "g", "added"),
        Box("c", "node", ("c",), "h", "removed"),
        Box("topic/out", "internal", ("out",)),
    ),
    (Arrow("topic/in", "a"), Arrow("a", "b"), Arrow("a", "topic/out"), Arrow("b", "c", True)),
)

Rect = tuple[float, float, float, float]


def draw_svg(picture: Picture) -> ET.Element:
    return ET.fromstring(svg(picture))  # noqa: S314 - generated here


def boxes(root: ET.Element) -> list[Rect]:
    found = [group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g")]
    return [rect(each) for each in found if each is not None]


def rect(element: ET.Element) -> Rect:
    x, y, width, height = (float(element.attrib[n]) for n in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def overlap(first: Rect, second: Rect) -> bool:
    return (
        first[0] < second[2]
        and second[0] < first[2]
        and first[1] < second[3]
        and second[1] < first[3]
    )


def test_an_svg_holds_all_boxes_without_overlaps() -> None:
    root = draw_svg(PICTURE)
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert {"in", "a", "Map", "<f>", "sub-topology 0 & its state"} <= {*texts}
    assert max(map(len, texts)) < 60
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    all_rects = boxes(root)
    assert len(all_rects) == len(PICTURE.boxes)
    assert all(x1 > 0 and y1 > 0 and x2 < width and y2 < height for x1, y1, x2, y2 in all_rects)
    assert not any(overlap(first, second) for first, second in combinations(all_rects, 2))
    assert len(list(root.iter(f"{SVG}path"))) == len(PICTURE.arrows) + 1


def test_groups_do_not_overlap() -> None:
    root = draw_svg(PICTURE)
    groups = [rect(e) for e in root.iter(f"{SVG}rect") if e.attrib.get("class") == "group"]
    assert len(groups) == len(PICTURE.groups)
    assert not overlap(*groups)


def test_an_empty_picture_is_a_valid_svg() -> None:
    assert draw_svg(Picture("p", {}, (), ())).tag == f"{SVG}svg"
