"""The figures of the documentation are those that the code draws, and fit into their frame."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.figures.__main__ import TOPOLOGY, figures
from tools.figures.canvas import DARK, LIGHT

ROOT = Path(__file__).parent.parent.parent
FIGURES = dict(figures())
SVG = "{http://www.w3.org/2000/svg}"
WIDTH_OF_LETTER = 7.6
"""More than a letter of 13 pixels takes on the average, bold ones included."""


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_by_the_code_of_today(name: str) -> None:
    is_current = (ROOT / "docs/images" / name).read_text() == FIGURES[name]
    assert is_current, f"{name} differs: make figures"


# The layout of topologies has tests of its own.
@pytest.mark.parametrize("name", sorted(FIGURES.keys() - {TOPOLOGY}))
def test_words_and_boxes_lie_within_the_picture(name: str) -> None:
    picture = ET.fromstring(FIGURES[name])  # noqa: S314 - our own
    width, height = (float(picture.attrib[side]) for side in ("width", "height"))
    assert (picture.find(f"{SVG}title") or picture).text != ""
    for box in picture.iter(f"{SVG}rect"):
        if "x" in box.attrib:
            assert 0 <= float(box.attrib["x"]) <= width - float(box.attrib["width"])
            assert 0 <= float(box.attrib["y"]) <= height - float(box.attrib["height"])
    for words in picture.iter(f"{SVG}text"):
        share = {"start": 0.0, "middle": 0.5, "end": 1.0}[words.attrib["text-anchor"]]
        length = WIDTH_OF_LETTER * len(words.text or "")
        left = float(words.attrib["x"]) - share * length
        assert left >= 0, words.text
        assert left + length <= width, words.text
        assert float(words.attrib["y"]) < height, words.text


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_words_can_be_read_on_every_ground(colours: dict[str, str]) -> None:
    """WCAG 2.2, level AA: contrast of 4.5 for text."""
    for role in ("page", "plain", "key", "good", "bad", "faint"):
        low, high = sorted((_luminance(colours["ink"]), _luminance(colours[role])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, role
    low, high = sorted((_luminance(colours["soft"]), _luminance(colours["page"])))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_every_figure_is_shown_by_a_page() -> None:
    shown = {
        name
        for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"))
        for name in re.findall(r"!\[[^\]]+\]\((?:docs/)?images/([\w-]+\.svg)\)", page.read_text())
    }
    assert {*FIGURES} <= shown
