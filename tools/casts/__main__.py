"""`python -m tools.casts [NAME ...]`: record the casts, as docs/images/cast-*.svg.

The programs are those of the README; build/casts has each pane as a file for asciinema's players.
Times differ from machine to machine, so no test compares casts: look at what has changed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.casts.film import film
from tools.casts.recorder import Cast
from tools.casts.scenes import SCENES, Scene

ROOT: Final = Path(__file__).parent.parent.parent


def main() -> None:
    """Record the casts that the command line names, or all."""
    for scene in SCENES:
        if scene.name in (sys.argv[1:] or [scene.name]):
            _record(scene)


def _record(scene: Scene) -> None:
    bin_directory = Path(sys.executable).parent
    variables = {
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    cast = Cast(scene.title, scene.columns, tuple(rows for _, rows in scene.panes))
    with tempfile.TemporaryDirectory() as here:
        scene.record(cast, Path(here), variables)
    (ROOT / f"docs/images/cast-{scene.name}.svg").write_text(
        film(cast, [title for title, _ in scene.panes])
    )
    directory = ROOT / "build/casts"
    directory.mkdir(parents=True, exist_ok=True)
    for pane in range(len(cast.rows)):
        cast.write(directory / f"{scene.name}-{pane + 1}.cast", pane)


if __name__ == "__main__":
    main()
