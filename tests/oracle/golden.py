"""Golden files: answers of programs in Java, kept for tests that run without one.

A file has one JSON object a line, and is compressed. `--golden FILE` of an oracle writes it anew.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Case = dict[str, Any]
"""A question with the answer of the other side: `asked`, `theirs`."""


def write_cases(path: Path, cases: Iterable[Case]) -> None:
    """Write a golden file; equal cases make equal bytes."""
    text = "".join(f"{json.dumps(each, separators=(',', ':'))}\n" for each in cases)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a golden file."""
    return [json.loads(each) for each in lzma.decompress(path.read_bytes()).splitlines()]
