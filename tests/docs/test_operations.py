"""Every `streamlog` command in docs/operations.md exists, with its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.commands import check, commands

TEXT = (Path(__file__).parent.parent.parent / "docs/operations.md").read_text()
COMMANDS = commands(TEXT)


def test_the_document_has_commands() -> None:
    assert len(COMMANDS) >= 20


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_exists_with_its_options(line: str) -> None:
    check(line)
