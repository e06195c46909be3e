"""`make quick`: the tests that import nothing but pure modules, directly or through their helpers.

Pure modules do no I/O and read no clock (the import contract in `pyproject.toml` names them), so
these tests need neither a broker nor a disk, and all of them together take less than a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.modules import PACKAGES, Module, imports_of, pure_modules, read_modules

ROOT = Path(__file__).parent.parent


def is_ours(name: str) -> bool:
    """Whether a module belongs to this project."""
    return name.partition(".")[0] in {*PACKAGES, "tests", "simulation", "chaos", "conformance"}


def pure_tests(tests: Mapping[str, Module], pure: Iterable[str]) -> list[Module]:
    """Return the files of tests that reach pure modules alone; `tests` has the helpers, too."""
    allowed = set(pure)
    names = {*tests, *allowed}
    direct = {name: {*filter(is_ours, imports_of(each, names))} for name, each in tests.items()}
    impure = {name for name, found in direct.items() if not found <= names}
    while True:
        more = {name for name, found in direct.items() if found & impure} - impure
        if not more:
            break
        impure |= more
    chosen = [name for name, found in direct.items() if name not in impure and found & allowed]
    return [tests[name] for name in chosen if tests[name].path.stem.startswith("test_")]


def main() -> int:
    """Print the files, one a line."""
    pure = pure_modules(ROOT, read_modules(ROOT))
    for module in pure_tests(read_modules(ROOT, ["tests"]), pure):
        print(module.path.relative_to(ROOT).as_posix())
    return 0


if __name__ == "__main__":
    sys.exit(main())
