"""The README is true: its programs type-check, and hello says hello."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SHELL_LINES = [
    line
    for text in re.findall(
        r"```\n(.*?)```\n",
        re.sub(r"```python\n.*?```\n", "", (ROOT / "README.md").read_text(), flags=re.DOTALL),
        re.DOTALL,
    )
    for line in text.splitlines()
]
FLIGHTS = (ROOT / "examples/flights/app.py").read_text()
SHOP = (ROOT / "examples/shop/app.py").read_text()


def block(words: str) -> str:
    """Return the only block that contains these words."""
    (found,) = [text for text in BLOCKS if words in text]
    return found


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    path = tmp_path / "hello.py"
    path.write_text(block('App("hello")'))
    return path


def test_hello_says_hello(hello: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    streamlog = [sys.executable, "-m", "streamlog", "-A", "hello"]
    with subprocess.Popen(
        [sys.executable, hello],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=hello.parent,
        env=environment,
    ) as worker:
        lines = iter(worker.stdout or ())
        try:
            output = [next(line for line in lines if "tasks" in line)]
            subprocess.run(
                [*streamlog, "send", "greetings", "world"],
                check=True,
                capture_output=True,
                cwd=hello.parent,
                env=environment,
            )
            output.append(next(line for line in lines if "hello," in line))
        finally:
            worker.terminate()
            output += lines
    assert "hello, world\n" in output
    assert worker.returncode == 0, "".join(output)


def bare(text: str) -> str:
    return re.sub(r"\s+|#.*", "", text)


def test_the_topology_shown_is_the_examples_topology() -> None:
    assert bare(block("per_hour = (")) in bare(FLIGHTS)


def test_the_connectors_shown_are_those_of_the_shop() -> None:
    sources, streams = block("PostgresCdc(").split("app.stream(lines)")
    assert bare(sources) in bare(SHOP)
    assert bare(streams.split("app.sink(")[0]) in bare(SHOP)


@pytest.mark.parametrize("line", SHELL_LINES)
def test_a_shell_line_can_be_pasted_into_zsh(line: str) -> None:
    """An interactive zsh has no comments, and expands `?`, `*` and `[`."""
    bare = re.sub(r"'[^']*'", "", line)
    assert bare.count("'") == 0
    assert not set(bare) & set("#?*[")


def test_every_named_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert named <= targets
