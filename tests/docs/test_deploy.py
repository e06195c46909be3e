"""docs/deploy.md: every `streamlog generate` of the page prints a file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamlog.cli.root import cli
from streamlog.cli.session import Session
from streamlog.generate.grafana import Board

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
# An app of the examples stands for the reader's.
COMMANDS = sorted(
    {
        found.replace("-A shop", "-A examples.flights.app").replace("$board", board)
        for found in re.findall(r"streamlog ((?:-A shop )?generate [^`>\n]+)", PAGE)
        for board in Board
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_prints_a_file(command: str) -> None:
    result = CliRunner().invoke(cli, shlex.split(command), obj=Session(), catch_exceptions=False)

    assert result.exit_code == 0, result.output


def test_the_page_has_the_commands_of_each_kind() -> None:
    kinds = {command.split("generate ")[1].split()[0] for command in COMMANDS}
    assert {"systemd", "containerfile", "compose", "kubernetes", "prometheus"} <= kinds


def test_the_boards_of_the_page_exist() -> None:
    named = re.search(r"for board in ([a-z ]+);", PAGE)
    assert named is not None
    assert {*named[1].split()} <= {*Board}
