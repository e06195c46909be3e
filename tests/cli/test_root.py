"""Options that come before a command's name."""

from __future__ import annotations

from typer.testing import CliRunner

from streamlog.cli.root import cli
from streamlog.cli.session import Session
from streamlog.metrics.build_info import release


def test_the_version_option_needs_no_command() -> None:
    result = CliRunner().invoke(cli, ["--version"], obj=Session())
    assert (result.exit_code, result.output) == (0, f"streamlog {release()}\n")


def test_the_help_of_a_flag_shows_no_value() -> None:
    for command in ([], ["topics"], ["topics", "list"], ["send"]):
        shown = CliRunner().invoke(cli, [*command, "--help"], obj=Session(), env={"COLUMNS": "80"})
        assert shown.exit_code == 0
        assert "bool" not in shown.output.lower()
