"""`streamlog connect`: what it says about options that are settings of its worker's file."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from streamlog.cli.root import cli
from streamlog.cli.session import Session
from streamlog.errors import UsageError


@pytest.mark.parametrize("option", ["--group", "--group-id", "--group.id"])
def test_a_group_is_a_setting_of_the_worker(option: str) -> None:
    with pytest.raises(UsageError, match=r"group\.id=etl into WORKER\.properties"):
        CliRunner().invoke(cli, ["connect", option, "etl"], obj=Session(), catch_exceptions=False)


def test_help_does_not_offer_it() -> None:
    result = CliRunner().invoke(cli, ["connect", "--help"], obj=Session())
    assert "--rest" in result.output
    assert "--group" not in result.output
