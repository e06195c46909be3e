"""docs/spark.md: its programs compile, its commands exist, and its settings are those of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.commands import check, commands

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/spark.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SESSION = (ROOT / "spark_bridge/spark_session.py").read_text()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_compiles(program: str) -> None:
    compile(program, "spark.md", "exec")


@pytest.mark.parametrize("line", commands(re.sub(r"streamlog -A \w+", "streamlog", TEXT)))
def test_a_command_exists_with_its_options(line: str) -> None:
    check(line)


def test_the_settings_of_a_session_of_ones_own_are_those_of_ours() -> None:
    (block,) = re.findall(r"```properties\n(.*?)```", TEXT, re.DOTALL)
    given = dict(line.split("=") for line in block.splitlines() if not line.startswith("#"))
    assert len(given) == 2
    for name, value in given.items():
        assert f'"{name}": "{value}"' in SESSION
