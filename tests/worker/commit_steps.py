"""The steps of a commit, and programs whose worker is killed at one of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
STEPS = (
    "checkpointed",
    "begun",
    "handed over",
    "changelogs written",
    "sinks written",
    "offsets sent",
    "committed",
    "stored",
)


def write_program(path: Path, name: str, source: str) -> None:
    """Write a script and the module that it imports its worker from: `from mortal import run`."""
    shutil.copy(Path(__file__).with_name("mortal.py"), path)
    (path / name).write_text(source)
