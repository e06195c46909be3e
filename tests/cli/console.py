"""A group of commands, run in this process on an embedded log."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import typer
from typer.testing import CliRunner

from streamlog.app import App
from streamlog.cli.session import Session

Invoke = Callable[..., str]


def console(room: typer.Typer, log: Path, app: App | None = None) -> Invoke:
    """Return a function that runs a command and returns its output, or raises its error."""

    def invoke(*arguments: str) -> str:
        at = [*arguments, "--log", f"embedded:{log}"]
        result = CliRunner().invoke(room, at, obj=Session(app), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


def row(output: str, *cells: str) -> bool:
    """Return whether a table has a row with these cells."""
    pattern = r"│\s*" + r"\s*│\s*".join(map(re.escape, cells)) + r"\s*│"
    return re.search(pattern, output) is not None
