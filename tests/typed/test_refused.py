"""Programs that are wrong are refused by mypy, and by a clear error when they are put together.

A comment above a statement says what is found in it: `E:` by mypy, literally, and `R:` when it is
run, as a pattern; where one is missing nothing is. One run of mypy for all files, those of
`accepted` too.
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
    """Those of a module, each with what the comments above it say."""
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
    """What mypy says, by file: line and message."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, REFUSED + ACCEPTED)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not run.stderr, run.stderr
    found: dict[Path, list[tuple[int, str]]] = {path: [] for path in REFUSED + ACCEPTED}
    for line in run.stdout.splitlines():
        if error := _FOUND.match(line):
            found[ROOT / error[1]].append((int(error[2]), error[3]))
    return found


@pytest.mark.parametrize("path", REFUSED, ids=lambda path: path.stem)
def test_mypy_refuses(path: Path, errors: dict[Path, list[tuple[int, str]]]) -> None:
    for each in statements(path):
        found = [text for line, text in errors[path] if each.first <= line <= each.last]
        wanted = each.marks.get("E")
        if wanted is None:
            assert not found, f"{path.name}:{each.first}: {found}"
        else:
            matching = [text for text in found if wanted in text]
            assert matching, f"{path.name}:{each.first}: {wanted!r} is not in {found}"


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_mypy_accepts(path: Path, errors: dict[Path, list[tuple[int, str]]]) -> None:
    assert errors[path] == []


@pytest.mark.parametrize("path", REFUSED, ids=lambda path: path.stem)
def test_what_is_put_together_wrong_is_refused(path: Path) -> None:
    space: dict[str, object] = {"__name__": path.stem}
    for each in statements(path):
        code = compile(ast.Module([each.node], []), str(path), "exec", dont_inherit=True)
        wanted = each.marks.get("R")
        if wanted is None:
            exec(code, space)  # noqa: S102 - a file of ours, statement by statement
            continue
        with pytest.raises((StreamlogError, TypeError), match=wanted):
            exec(code, space)  # noqa: S102 - as above


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_what_is_accepted_runs(path: Path) -> None:
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
