"""Options that come before a command's name."""

from __future__ import annotations

from typer.testing import CliRunner

from streamlog.cli.root import cli
from streamlog.cli.session import Session
from streamlog.metrics.build_info import release


def test_the_version_option_needs_no_command() -> None:
    result = CliRunner().invoke(cli, ["--version"], obj=Session())
    assert (result.exit_code, result.output) == (0, f"streamlog {release()}\n")
