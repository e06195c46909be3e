"""The modules that `streamlog doctor` calls hot are the ones that `setup.py` compiles.

They keep to what the compiled form does as Python does.
"""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streamlog.metrics.build_info import HOT_MODULES

ROOT = Path(__file__).parent.parent.parent
TYPES = sorted((ROOT / "streamlog").rglob("*.pxd"))


def test_doctor_and_setup_name_equal_modules() -> None:
    line = re.search(r"HOT_MODULES = \((.*?)\)", (ROOT / "setup.py").read_text(), re.DOTALL)
    assert line is not None
    compiled = [path.replace("/", ".") for path in re.findall(r'"([^"]+)"', line[1])]
    assert list(HOT_MODULES) == compiled
    for path in compiled:
        assert (ROOT / path.replace(".", "/")).with_suffix(".pxd").exists()


def negative_indexes(source: str) -> list[str]:
    """Return the subscripts that count from the end, by index or as a bound of a slice."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Subscript):
            continue
        indexes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for index in indexes:
            bounds = [index]
            if isinstance(index, ast.Slice):
                bounds = [each for each in (index.lower, index.upper) if each is not None]
            if any(
                isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.USub) for each in bounds
            ):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("types", TYPES, ids=lambda path: path.stem)
def test_a_compiled_module_does_not_count_from_the_end(types: Path) -> None:
    """Without `wraparound`, `items[-1]` reads in front of the first item."""
    assert negative_indexes(types.with_suffix(".py").read_text()) == []


@pytest.mark.parametrize(
    "text", ["a[-1]", "a[-1:]", "a[:-2]", "a[1:-1]", "a[0, -1]", "a[-n]", "a[b[-1]]", "del a[-1]"]
)
def test_the_rule_finds_indexes_that_count_from_the_end(text: str) -> None:
    assert len(negative_indexes(text)) == 1


@pytest.mark.parametrize("text", ["a[1]", "a[::-1]", "a[n - 1]", "a[:]", "range(n, -1, -1)"])
def test_the_rule_allows_other_indexes(text: str) -> None:
    assert negative_indexes(text) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only here, compiled modules have our ids")
def test_a_module_that_was_compiled_from_another_source_is_stale(tmp_path: Path) -> None:
    """The linker decides what is in the file: a copy of `setup.py` links a library of its own."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: apt-get install gcc")
    shutil.copy(ROOT / "setup.py", tmp_path)
    folder = tmp_path / "streamlog/records"
    folder.mkdir(parents=True)
    (folder / "varint.py").write_text("A = 1\n")
    (folder / "varint.pxd").write_text("")
    setup = runpy.run_path(str(tmp_path / "setup.py"))
    path = "streamlog/records/varint"
    link = f"-Wl,--build-id=0x{setup['build_id'](path)}"
    command = ["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(folder / "varint.abi3.so")]
    subprocess.run([*command, link], check=True)
    assert setup["stale_modules"]() == []
    (folder / "varint.py").write_text("A = 2\n")
    assert setup["stale_modules"]() == [f"{path}.abi3.so"]
    (folder / "varint.py").write_text("A = 1\n")
    (folder / "varint.pxd").write_text("cdef int f()\n")
    assert setup["stale_modules"]() == [f"{path}.abi3.so"]
    # Without an id of ours, nothing is known.
    subprocess.run(command, check=True)
    assert setup["stale_modules"]() == []
