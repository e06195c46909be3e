"""`make test-changed`: run the tests of the rooms that a change touches.

On a branch, a change is everything since the branch left `main`, with uncommitted and untracked
files. On `main`, it is the uncommitted files or else the last commit. The tests of a room are in
the folder of the same name below `tests`: the script derives the rooms from this mirror.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
TIDY = "tests/test_tidy.py"
LAYERS = "tests/test_layers.py"


def git(*words: str) -> list[str]:
    """Return the lines that a git command prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def fork_of(branch: str) -> str:
    """Return the commit where this branch left another one."""
    return git("merge-base", branch, "HEAD")[0]


def find_base() -> str:
    """Return the commit that a change is compared with."""
    fork = fork_of("main")
    if git("rev-parse", "HEAD") != [fork]:
        return fork
    return "HEAD" if git("status", "--porcelain") else "HEAD~1"


def changed_paths(base: str) -> list[str]:
    """Return the files that differ from `base`, and those that git does not know yet."""
    untracked = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", base), *untracked})


def find_tests(path: str, tests: Iterable[str]) -> list[str]:
    """Return the tests, out of all `tests`, that a change of one file calls for."""
    changed, every = PurePosixPath(path), sorted(tests)
    if path in every:
        return [path]
    match changed.parts:
        case ("tests", *_):
            return [each for each in every if changed.parent in PurePosixPath(each).parents]
        case ("docs", *_) | (_,) if changed.suffix == ".md":
            return [each for each in every if each.startswith("tests/docs/")]
        case (_,):
            return [LAYERS]
    return _tests_of_room(changed, every) if changed.suffix in {".py", ".pxd"} else []


def _tests_of_room(changed: PurePosixPath, tests: list[str]) -> list[str]:
    """Return the tests of a module's room, or of the next room above it that has any.

    The test that is named after the module comes first. A module may have a folder of tests.
    """
    top, *inner = changed.with_suffix("").parts
    parts = inner if top == "streamlog" else [top, *inner]
    own = f"test_{changed.stem}.py"
    while parts:
        room = PurePosixPath("tests", *parts)
        found = [each for each in tests if PurePosixPath(each).parent == room]
        if found:
            return sorted(found, key=lambda each: not each.endswith(f"/{own}"))
        parts.pop()
    outer = [each for each in tests if PurePosixPath(each).parent == PurePosixPath("tests")]
    return [each for each in outer if each.endswith(f"/{own}")] or outer


def select(paths: Iterable[str], tests: Iterable[str]) -> list[str]:
    """Return the tests for a whole change, each once."""
    every = sorted(tests)
    found = [test for path in paths for test in find_tests(path, every)]
    return [*dict.fromkeys([*found, TIDY])] if found else []


def all_tests(root: Path = ROOT) -> list[str]:
    """Return every file of tests, as paths below `root`."""
    return [path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py")]


def main() -> int:
    """Print the rooms and run their tests with pytest; further options are pytest's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", help="the commit to compare with (default: where main was left)")
    parser.add_argument("--list", action="store_true", help="print the tests, run none")
    options, rest = parser.parse_known_args()
    paths = changed_paths(fork_of(options.base) if options.base else find_base())
    tests = select(paths, all_tests())
    if options.list or not tests:
        print("\n".join(tests) or "no change that has tests")
        return 0
    rooms = sorted({PurePosixPath(test).parent.as_posix() for test in tests})
    print(f"{len(paths)} changed files, {len(tests)} files of tests in {', '.join(rooms)}")
    command = [sys.executable, "-m", "pytest", *rest, *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
