"""Mypy refuses wrong programs, and so does a clear error when their topology is built.

A comment above a statement gives its error: `E:` is mypy's, literally; `R:` is a pattern of the
error when the statement runs. Without the comment, there is no such error. Mypy runs once for all
files, including `accepted`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from streamlog import StreamlogError

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REFUSED = sorted((HERE / "refused").glob("*.py"))
ACCEPTED = sorted((HERE / "accepted").glob("*.py"))
_FOUND = re.compile(r"^(.+?):(\d+): error: (.*)$")


@dataclass
class Statement:
    node: ast.stmt
    first: int
    last: int
    marks: dict[str, str] = field(default_factory=dict)


def statements(path: Path) -> Iterator[Statement]:
    """Yield a module's statements with the comments above them."""
    lines = path.read_text().splitlines()
    for node in ast.parse(path.read_text()).body:
        found = Statement(node, node.lineno, node.end_lineno or node.lineno)
        at = found.first - 2
        while at >= 0 and (mark := re.match(r"# ([ER]): (.*)", lines[at])):
            found.marks[mark[1]] = mark[2]
            at -= 1
        yield found


@pytest.fixture(scope="module")
def errors() -> dict[Path, list[tuple[int, str]]]:
    """Return mypy's errors by file: line and message."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, REFUSED + ACCEPTED)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not run.stderr, run.stderr
    found: dict[Path, list[tuple[int, str]]] = {path: [] for path in REFUSED + ACCEPTED}
    for line in run.stdout.splitlines():
        if error := _FOUND.match(line):
            found[ROOT / error[1]].append((int(error[2]), error[3]))
    return found


@pytest.mark.parametrize("path", REFUSED, ids=lambda path: path.stem)
def test_mypy_refuses_wrong_programs(path: Path, errors: dict[Path, list[tuple[int, str]]]) -> None:
    for each in statements(path):
        found = [text for line, text in errors[path] if each.first <= line <= each.last]
        wanted = each.marks.get("E")
        if wanted is None:
            assert not found, f"{path.name}:{each.first}: {found}"
        else:
            matching = [text for text in found if wanted in text]
            assert matching, f"{path.name}:{each.first}: {wanted!r} is not in {found}"


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_mypy_accepts_right_programs(path: Path, errors: dict[Path, list[tuple[int, str]]]) -> None:
    assert errors[path] == []


@pytest.mark.parametrize("path", REFUSED, ids=lambda path: path.stem)
def test_wrong_programs_are_refused_when_they_are_built(path: Path) -> None:
    space: dict[str, object] = {"__name__": path.stem}
    for each in statements(path):
        code = compile(ast.Module([each.node], []), str(path), "exec", dont_inherit=True)
        wanted = each.marks.get("R")
        if wanted is None:
            exec(code, space)  # noqa: S102 - a test's own file, statement by statement
            continue
        with pytest.raises((StreamlogError, TypeError), match=wanted):
            exec(code, space)  # noqa: S102 - as above


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_accepted_programs_run(path: Path) -> None:
    spec = spec_from_file_location(f"accepted_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        module.main()
    finally:
        del sys.modules[spec.name]
