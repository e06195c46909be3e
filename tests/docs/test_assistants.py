"""docs/assistants.md: its commands exist, its configurations start the server, no tool lacks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from streamlog.cli.assistant.app_tools import APP_TOOLS
from streamlog.cli.assistant.bounded_answers import ANSWER_MAX
from streamlog.cli.assistant.change_tools import PLAN_MS, ChangePlans
from streamlog.cli.assistant.log_tools import LOG_TOOLS
from streamlog.cli.assistant.mcp_command import CALL_S
from streamlog.clock import SystemClock
from tests.docs.commands import check, commands

TEXT = (Path(__file__).parent.parent.parent / "docs/assistants.md").read_text()
CONFIGURATIONS = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("line", commands(TEXT))
def test_a_command_exists_with_its_options(line: str) -> None:
    check(line)


def test_a_configuration_runs_the_command() -> None:
    assert len(CONFIGURATIONS) == 2
    for text in CONFIGURATIONS:
        (servers,) = json.loads(text).values()
        server = servers["streamlog"]
        assert server["command"] == "streamlog"
        words = server["args"]
        check(" ".join(words[words.index("mcp") :]))


def test_the_tables_have_each_tool() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", TEXT, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+", row)}
    tools = (*LOG_TOOLS, *APP_TOOLS, *ChangePlans(SystemClock()).tools())
    assert named | {"make_change"} == {each.name for each in tools}
    assert "`make_change` takes" in TEXT


def test_the_bounds_are_those_of_the_code() -> None:
    assert f"at most {ANSWER_MAX:,} characters" in TEXT
    assert f"ends after {CALL_S:.0f} s" in TEXT
    assert PLAN_MS == 10 * 60_000
    assert "within ten minutes" in TEXT
