"""The names that docs/coming-from.md promises exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import streamlog

TEXT = (Path(__file__).parent.parent.parent / "docs/coming-from.md").read_text()
ROWS = [line.split("|")[2] for line in TEXT.splitlines() if line.startswith("| ")]
NAMES = sorted(
    {name for row in ROWS for name in re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)?)`", row)}
)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "streamlog"])
def test_a_promised_name_exists(name: str) -> None:
    owner, _, member = name.partition(".")
    if member:
        assert hasattr(getattr(streamlog, owner), member)
    else:
        assert hasattr(streamlog, owner)
