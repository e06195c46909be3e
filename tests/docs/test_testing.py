"""The tests in docs/testing.md pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
(PROGRAM,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)


def test_the_documented_tests_pass() -> None:
    names: dict[str, Any] = {}
    exec(compile(PROGRAM, "docs/testing.md", "exec"), names)  # noqa: S102 - our own document
    shown = [test for name, test in names.items() if name.startswith("test_")]
    assert len(shown) == 2
    for test in shown:
        test()
