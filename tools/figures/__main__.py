"""`python -m tools.figures`: draw every figure of docs/images that code makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from examples.flights.app import app
from streamlog.blueprints.picture import picture_of
from streamlog.blueprints.svg import svg
from tools.figures.concepts import FIGURES
from tools.figures.decision_trees import draw, trees

TOPOLOGY = "flights-topology.svg"
"""The topology of the flights, as `streamlog topology --format svg` draws it."""
DOCS = Path(__file__).parent.parent.parent / "docs"


def figures() -> Iterator[tuple[str, str]]:
    """Return each figure by the name of its file."""
    page = (DOCS / "why-no-output.md").read_text()
    for name, (title, questions) in zip(("window", "record"), trees(page), strict=True):
        yield f"why-no-output-{name}.svg", draw(title, questions)
    for name, drawn in FIGURES.items():
        yield f"concept-{name}.svg", drawn()
    yield TOPOLOGY, svg(picture_of(app.topology()))


def main() -> None:
    """Write all figures."""
    for name, drawn in figures():
        (DOCS / "images" / name).write_text(drawn)


if __name__ == "__main__":
    main()
