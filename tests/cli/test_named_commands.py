"""Commands that messages tell users to run: each of them exists, with the options that are named.

A message outlives the command that it names: nothing runs it, until a user in trouble does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import streamlog
from streamlog.cli.root import COMMANDS, load_command

PACKAGE: Final = Path(streamlog.__file__).parent
CALL: Final = re.compile(r"\bstreamlog ((?:(?:-A|--[a-z-]+) \S+ )*)([a-z][a-z-]+)([^`;\n]*)")
"""Options, a command, and what follows it up to the end of the call at the latest."""
WORD: Final = re.compile(r" ([a-z][a-z-]+)\b")
OPTION: Final = re.compile(r" (--[a-z][a-z-]*)")
END: Final = re.compile(r"[.:,)](?: |$)| (?:and|or|to|lists|shows|says|prints|reads) ")
"""Where a call ends in a sentence."""


class NamedCall(NamedTuple):
    """A command in a text of the package."""

    where: str
    command: str
    rest: str


def texts(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.JoinedStr(values=parts):
                found = [p.value if isinstance(p, ast.Constant) else "X" for p in parts]
                yield node.lineno, "".join(map(str, found))
            case ast.Constant(value=str(text)):
                yield node.lineno, text


def named_calls() -> Iterator[NamedCall]:
    paths = [each for each in sorted(PACKAGE.rglob("*.py")) if CALL.search(each.read_text())]
    for path in paths:
        for line, text in texts(path):
            for match in CALL.finditer(text):
                if match[2] in COMMANDS:
                    rest = END.split(match[3], maxsplit=1)[0]
                    where = f"{path.relative_to(PACKAGE)}:{line}: {match[0]}"
                    yield NamedCall(where, match[2], rest)


def fault(call: NamedCall) -> str | None:
    """Return what is wrong with a call; None if it can be run."""
    command: Any = load_command(call.command)
    rest = call.rest
    while getattr(command, "commands", None):
        word = WORD.match(rest)
        if word is None:
            break
        if word[1] not in command.commands:
            return f"{call.where!r}: {command.name} has no {word[1]!r}"
        command, rest = command.commands[word[1]], rest[word.end() :]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    wrong = [option for option in OPTION.findall(rest) if option not in {*known, "--help"}]
    return f"{call.where!r}: there is no {', '.join(wrong)}" if wrong else None


def test_every_command_that_a_message_names_exists() -> None:
    calls = list(named_calls())
    assert len(calls) > 100
    assert [found for call in calls if (found := fault(call)) is not None] == []
