"""docs/debugging.md: its programs are apps, its commands exist, its log lines are the worker's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamlog import App
from tests.docs.commands import check, commands

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/debugging.md").read_text()
PROGRAMS = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = commands(TEXT)
SOURCES = re.sub(
    r'"\n\s+f?"', "", "".join(path.read_text() for path in ROOT.glob("streamlog/**/*.py"))
)
"""The sources with each continued string as one."""


@pytest.mark.parametrize(("name", "text"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_a_program_is_an_app(name: str, text: str) -> None:
    space: dict[str, object] = {"__name__": name}
    exec(compile(text, f"{name}.py", "exec"), space)  # noqa: S102 - our own documentation
    assert isinstance(space["app"], App)


def test_the_document_has_commands() -> None:
    assert len(COMMANDS) >= 7


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_exists_with_its_options(line: str) -> None:
    check(line)


@pytest.mark.parametrize(
    "words",
    [
        "has made no progress for",
        "at work in",
        "the event loop has been blocked for",
        "holds back",
        "is due once event time reaches",
        "a task is still at work: stores are not closed; the changelogs have their content",
        "the worker ends, so that another one can take over",
        "streamlog_held_back_seconds",
        "streamlog_stalled_seconds",
        "streamlog-engine",
    ],
)
def test_a_log_line_in_the_document_is_logged_by_a_module(words: str) -> None:
    is_logged = words in SOURCES
    assert words in TEXT
    assert is_logged, "no module logs this: run the example again, and copy its current output"
