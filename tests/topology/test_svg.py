"""Pictures as SVG: whole documents, everything inside, nothing on top of another."""

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


def drawn(picture: Picture) -> ET.Element:
    return ET.fromstring(svg(picture))  # noqa: S314 - our own


def boxes(root: ET.Element) -> list[Rect]:
    found = [group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g")]
    return [rect(each) for each in found if each is not None]


def rect(element: ET.Element) -> Rect:
    x, y, width, height = (float(element.attrib[n]) for n in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def overlap(one: Rect, other: Rect) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def test_it_is_a_document_with_everything_inside() -> None:
    root = drawn(PICTURE)
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert {"in", "a", "Map", "<f>", "sub-topology 0 & its state"} <= {*texts}
    assert max(map(len, texts)) < 60
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    all_rects = boxes(root)
    assert len(all_rects) == len(PICTURE.boxes)
    assert all(x1 > 0 and y1 > 0 and x2 < width and y2 < height for x1, y1, x2, y2 in all_rects)
    assert not any(overlap(one, other) for one, other in combinations(all_rects, 2))
    assert len(list(root.iter(f"{SVG}path"))) == len(PICTURE.arrows) + 1


def test_a_group_is_around_its_boxes_only() -> None:
    root = drawn(PICTURE)
    groups = [rect(e) for e in root.iter(f"{SVG}rect") if e.attrib.get("class") == "group"]
    assert len(groups) == len(PICTURE.groups)
    assert not overlap(*groups)


def test_an_empty_app_has_a_picture_too() -> None:
    assert drawn(Picture("p", {}, (), ())).tag == f"{SVG}svg"
