"""docs/schemas.md: its programs are changed and its commands run as it says, with its output."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlog.cli.root import cli
from streamlog.cli.session import Session, load_app
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.worker.task_deps import prepare_log
from tests.registry.running import run_registry

PAGE = (Path(__file__).parents[2] / "docs" / "schemas.md").read_text()
BLOCK = re.compile(
    r"^```(python|json|console)(?: (\S+?)(?:: (\S+))?)?\n(.*?)^```", re.DOTALL | re.MULTILINE
)
REFUSED = re.compile(r"^(error:|!|.*: not compatible$)", re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def change(path: Path, part: str, text: str) -> None:
    """Replace the body of a class, or the line of a call."""
    before = path.read_text()
    if part[0].isupper():
        pattern = rf"(?<=class {part}:\n)(?:    .*\n)+"
    else:
        pattern = rf"^ *await {re.escape(part)}\(.*\n"
    after, count = re.subn(pattern, lambda _: text, before, flags=re.MULTILINE)
    assert count == 1, f"{path}: {part}"
    path.write_text(after)


def forget_modules() -> None:
    for name in ("shop", "billing", "catalog"):
        sys.modules.pop(name, None)


async def start(module: str) -> None:
    """Do what a worker does before it joins its group."""
    app = load_app(module)
    async with Log.open(app.log, listen=False) as log:
        await prepare_log(app.program(), log, log_url=app.log, web=None)


def run(line: str) -> tuple[str, int]:
    """Return what a command prints, and its exit code."""
    words = shlex.split(line)
    assert words.pop(0) == "streamlog"
    forget_modules()
    try:
        if words[-1] == "worker":
            asyncio.run(start(words[1]))
            return "", 0
        found: Any = CliRunner().invoke(cli, words, obj=Session(), catch_exceptions=False)
    except StreamlogError as error:
        return f"error: {error}\n", error.exit_code
    return found.output, found.exit_code


@pytest.fixture
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running.url


@pytest.fixture
def here(tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMLOG_REGISTRY", registry)
    monkeypatch.syspath_prepend(tmp_path)
    # A file that changes twice within a second would be read from its compiled form.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    forget_modules()


def test_the_tutorial_runs_as_written(here: Path) -> None:
    commands, code = 0, 0
    for kind, file, part, text in BLOCK.findall(PAGE):
        if kind != "console" and file:
            change(here / file, part, text) if part else (here / file).write_text(text)
        for line, expected in COMMAND.findall(text) if kind == "console" else ():
            commands += 1
            if line == "echo $?":
                assert expected == f"{code}\n"
                continue
            output, code = run(line)
            assert output == expected, line
            assert bool(code) == bool(REFUSED.search(expected)), line
    assert commands > 10
