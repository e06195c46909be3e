"""The `streamlog` commands of a document, and whether they exist with their options."""

from __future__ import annotations

import re
import shlex
from typing import Any

from streamlog.cli.root import load_command

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"streamlog ([a-z].*?)(?: &| \||;|$)", re.MULTILINE)


def commands(text: str) -> list[str]:
    """Return the commands in a document's shell blocks, without `streamlog`."""
    blocks = [text.replace("\\\n", "") for language, text in BLOCK.findall(text) if not language]
    return sorted({found for block in blocks for found in COMMAND.findall(block)})


def check(line: str) -> None:
    """Fail if the command does not exist or does not take these options."""
    words = shlex.split(line, comments=True)
    command: Any = load_command(words.pop(0))
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), f"{line}: which command of {command.name}?"
    known = {o for each in command.params for o in (*each.opts, *each.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= known, line
