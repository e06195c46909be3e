"""docs/tutorial.md: its test passes, its commands exist; and, at length, each prints what it shows.

`make tutorial` runs the whole page in one shell, from the first command to the last.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.commands import check
from tests.docs.transcripts import Shell, agree, run, steps
from tests.worker.commit_steps import IS_THOROUGH

ROOT = Path(__file__).parent.parent.parent
STEPS = list(steps((ROOT / "docs/tutorial.md").read_text()))
FILES = {step.file: step.text for step in STEPS if step.file}
COMMANDS = sorted(
    {
        found
        for step in STEPS
        for found in re.findall(r"\bstreamlog (?:-A \w+ )?([a-z].*?)(?: [|>&]|$)", step.text)
        if not step.file
    }
)


def test_the_page_has_files_and_commands() -> None:
    assert len(COMMANDS) >= 20
    assert {"hello.py", "bakery.py", "test_bakery.py", "sales.txt", "prices.txt"} <= {*FILES}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_exists_with_its_options(line: str) -> None:
    check(line)


def test_the_test_of_the_page_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bakery.py").write_text(FILES["bakery.py"])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bakery", raising=False)
    space: dict[str, object] = {}
    exec(compile(FILES["test_bakery.py"], "test_bakery.py", "exec"), space)  # noqa: S102 - our own
    tests = [fn for name, fn in space.items() if name.startswith("test_")]
    assert len(tests) == 2
    for fn in tests:
        assert callable(fn)
        fn()


@pytest.mark.skipif(not IS_THOROUGH, reason="two minutes: `make tutorial`")
@pytest.mark.timeout(900)
def test_each_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    try:
        for step in STEPS:
            printed = run(step, shell)
            assert step.file or agree(step, printed), "\n".join([f"$ {step.text}", *printed])
    finally:
        shell.close()
