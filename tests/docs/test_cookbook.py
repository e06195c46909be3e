"""Every recipe of docs/cookbook.md: its two files type-check, and its test passes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/cookbook.md").read_text()
RECIPES = {
    title: re.findall(r"```python\n# (\w+\.py)\n(.*?)```", body, re.DOTALL)
    for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
}


def test_each_recipe_has_a_program_and_its_test() -> None:
    assert len(RECIPES) >= 21
    for title, files in RECIPES.items():
        names = [name for name, _ in files]
        assert len(names) == 2, title
        assert names[1] == f"test_{names[0]}", title
        assert f"[{title}](#{title.lower().replace(' ', '-')})" in TEXT


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_passes_its_test(
    title: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    for name, text in RECIPES[title]:
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    _, (name, text) = RECIPES[title]
    space: dict[str, object] = {}
    exec(compile(text, name, "exec"), space)  # noqa: S102 - our own documentation
    tests = {key: fn for key, fn in space.items() if key.startswith("test_")}
    assert tests
    for fn in tests.values():
        assert callable(fn)
        wants_output = "capsys" in getattr(fn, "__annotations__", {})
        fn(*([request.getfixturevalue("capsys")] if wants_output else []))
