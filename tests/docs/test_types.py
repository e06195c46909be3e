"""The programs of the README and of docs/ type-check in one run of mypy, as strict as our own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_cookbook import RECIPES

ROOT = Path(__file__).parent.parent.parent
WHOLE = ("joins", "processors", "tables", "tutorial", "windows")
"""Documents in which each block that declares an app is a program."""


def programs() -> dict[str, str]:
    """Return the programs by file name."""
    found = {name: text for files in RECIPES.values() for name, text in files}
    texts = {name: (ROOT / f"docs/{name}.md").read_text() for name in WHOLE}
    texts["readme"] = (ROOT / "README.md").read_text()
    for document, text in texts.items():
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        whole = [block for block in blocks if re.search(r"^app = App\(", block, re.MULTILINE)]
        assert whole, document
        found |= {f"of_{document}_{number}.py": block for number, block in enumerate(whole)}
    return found


def test_documented_programs_type_check(tmp_path: Path) -> None:
    paths = []
    for name, text in programs().items():
        paths.append(tmp_path / name)
        paths[-1].write_text(text)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *paths],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stdout
