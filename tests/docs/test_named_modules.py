"""Documents name only modules that exist: a move that leaves an old name behind fails here."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPS = (
    "streamlog",
    "spark_bridge",
    "simulation",
    "chaos",
    "conformance",
    "benchmarks",
    "examples",
    "tests",
    "tools",
)
MODULES = {
    path.relative_to(ROOT).with_suffix("").as_posix()
    for top in TOPS
    for path in (ROOT / top).rglob("*.py")
}
PATHS = (
    MODULES
    | {path.rpartition("/")[0] for path in MODULES}
    | {"simulation/results", "chaos/results"}
)
NAMES = {path.rpartition("/")[2] for path in MODULES} | {"setup"}
PAGES = [
    ROOT / "CONTRIBUTING.md",
    *(path for path in ROOT.glob("docs/**/*.md") if path.name != "cookbook.md"),
]
OF_READERS = {"bakery", "billing", "hello", "many", "test_bakery"}
"""Modules that a page asks its readers to write."""
OTHERS = {"silence/last_seen"}
"""A store, not a module."""


def exists(named: str) -> bool:
    return any(known_path == named or known_path.endswith(f"/{named}") for known_path in PATHS)


def test_modules_named_in_documents_exist() -> None:
    wrong = []
    for page in PAGES:
        text = page.read_text()
        paths = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)(?:\.py)?(?:::\w+)?`", text)) - OTHERS
        files = set(re.findall(r"`([a-z_]+)\.py(?:::\w+)?`", text)) - OF_READERS
        wrong += [f"{page.name}: {path}" for path in sorted(paths) if not exists(path)]
        wrong += [f"{page.name}: {name}.py" for name in sorted(files - NAMES)]
    assert wrong == []
