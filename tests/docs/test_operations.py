"""Every `streamlog` command in docs/operations.md is one that there is, with options it takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from streamlog.cli.loading import loaded

TEXT = (Path(__file__).parent.parent.parent / "docs/operations.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"streamlog ([a-z].*?)(?: &| \|\||;|$)", re.MULTILINE)
COMMANDS = sorted(
    {found for block in BLOCKS for found in COMMAND.findall(block.replace("\\\n", ""))}
)


def test_the_document_has_commands() -> None:
    assert len(COMMANDS) >= 20


@pytest.mark.parametrize("line", COMMANDS)
def test_there_is_such_a_command_with_such_options(line: str) -> None:
    words = shlex.split(line, comments=True)
    command: Any = loaded(words.pop(0))
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), f"{line}: which command of {command.name}?"
    known = {option for each in command.params for option in each.opts}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= known, line
