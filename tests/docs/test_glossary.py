"""The glossary has each term once, and the modules that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/glossary.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| term", "| ---"))
]


def test_each_term_appears_once_with_one_meaning() -> None:
    terms = [row[0].lower() for row in ROWS]
    assert len(terms) >= 80
    assert sorted(terms) == sorted(set(terms))
    assert [row[0] for row in ROWS if not row[1].endswith((".", ".)"))] == []


def test_every_named_module_exists() -> None:
    named = set(re.findall(r"`((?:streamlog|spark_bridge)/[\w/]+(?:\.py|/))`", TEXT))
    assert named
    assert sorted(path for path in named if not (ROOT / path).exists()) == []
