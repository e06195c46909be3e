"""Casts: the recorder reads what a shell prints, and the film shows it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.casts.recorder import Cast, Pane

SVG = "{http://www.w3.org/2000/svg}"


def recorded(here: Path) -> Cast:
    cast = Cast("two lines", 40, (4,))
    pane = Pane(cast, 0, here, {})
    try:
        pane.run("printf '\\033[32mgreen\\033[0m and plain\\n'")
        pane.type("cat", until="")
        pane.press("typed\n", until="typed")
        pane.press("\x04", until="\x1e")
    finally:
        pane.close()
    return cast


def test_a_cast_holds_what_was_typed_and_printed(tmp_path: Path) -> None:
    cast = recorded(tmp_path)
    cast.write(tmp_path / "pane.cast", 0)
    head, *lines = map(json.loads, (tmp_path / "pane.cast").read_text().splitlines())
    assert (head["version"], head["width"], head["height"]) == (2, 40, 4)
    assert all(before[0] <= after[0] for before, after in pairwise(lines))
    printed = "".join(text for _, _, text in lines)
    assert "\x1b[32mgreen\x1b[0m and plain" in printed
    assert printed.count("printf") == 1, "typed by the script, not echoed by the shell"
    assert "typed" in printed


def test_a_film_shows_every_row_and_ends_with_the_last(tmp_path: Path) -> None:
    pytest.importorskip("pyte", reason="pyte is not installed: `make casts` does it")
    from tools.casts.film import film  # noqa: PLC0415 - needs pyte

    root = ET.fromstring(film(recorded(tmp_path), ["a terminal"]))  # noqa: S314 - our own
    texts = {(text.text or "").strip() for text in root.iter(f"{SVG}text")}
    assert {"a terminal", "green", "and plain"} <= texts
    rows = {group.attrib["id"] for group in root.iter(f"{SVG}g") if "id" in group.attrib}
    used = {each.attrib["href"].removeprefix("#") for each in root.iter(f"{SVG}use")}
    assert used == rows
