"""docs/first-change.md: its changes apply to the files, and its `make` targets exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/first-change.md").read_text()
CHANGES = re.findall(r"```diff\n--- (\S+)\n(.*?)```", TEXT, re.DOTALL)


def test_the_document_changes_a_test_and_the_code() -> None:
    assert [path.partition("/")[0] for path, _ in CHANGES] == ["tests", "streamlog"]


@pytest.mark.parametrize(("path", "change"), CHANGES, ids=[path for path, _ in CHANGES])
def test_a_change_applies_and_has_not_been_made(path: str, change: str) -> None:
    lines = (ROOT / path).read_text().splitlines()
    for line in change.splitlines():
        assert (line[1:] in lines) == (not line.startswith("+")), line


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {*re.findall(r"\bmake ([a-z][a-z-]+)", TEXT)} <= targets
