"""Options that come before a command's name."""

from __future__ import annotations

from importlib.metadata import version

from typer.testing import CliRunner

from streamlog.cli.root import cli
from streamlog.cli.session import Session


def test_the_version_option_needs_no_command() -> None:
    result = CliRunner().invoke(cli, ["--version"], obj=Session())
    assert (result.exit_code, result.output) == (0, f"streamlog {version('streamlog')}\n")
