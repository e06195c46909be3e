"""`make shape`: the figures by which the tree is judged, with their bars.

A newcomer finds a module by its name if names are unique, folders small, and modules few. The
figures measure that; `tests/test_tidy.py` holds each of them at its bar in `BARS`. Lower a bar when
its figure has fallen, until it is at the figure's goal.

Not here: limits of single files and functions, which `tests/test_tidy.py` measures itself.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools.modules import Module, imports_of, pure_modules, read_modules

ROOT = Path(__file__).parent.parent
SMALL_LINES = 130
FOLDER_MODULES = 20
ANY_LINES = 250
PRAGMA = re.compile(r"#\s*(noqa|type:|mypy:|pragma:|fmt:|ruff:)")
PHRASES = re.compile(
    r"\b(?:nobody|somebody|whoever|goes on|at hand|in hand|is told|are told|is over\b|"
    r"(?:for|to|by) who\b|so (?:long|many|far) (?:as|that)|stands still|likewise|the same[.,;:])",
    re.IGNORECASE,
)
"""What docs/glossary.md bans from sentences: a reader needs the sentence before, or reads twice."""
WORDS = {
    *("place", "places", "told", "aside", "beside", "dues", "mending", "mended"),
    *("whoever", "somebody", "halt", "halts", "halted", "standstill", "doubts", "doubting"),
    *("outlet", "surroundings"),
}
"""What docs/glossary.md bans from names."""
NO_CODE = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Lines:
    """The lines of one module, by kind."""

    numbers: frozenset[int]
    """Which lines have code, imports included, docstrings and comments not."""
    body: int
    """How many lines have code other than imports."""
    comments: int
    """How many comments there are, those for tools not counted."""
    texts: tuple[tuple[int, str], ...]
    """Its strings and comments, each with the line where it begins."""

    @property
    def code(self) -> int:
        """Return how many lines have code."""
        return len(self.numbers)


def count_lines(module: Module) -> Lines:
    """Count the lines of a module."""
    code, comments, texts = set[int](), 0, list[tuple[int, str]]()
    for kind, text, (first, _), (last, _), _ in tokenize.generate_tokens(
        io.StringIO(module.text).readline
    ):
        if kind in {tokenize.COMMENT, tokenize.STRING}:
            texts.append((first, text))
        if kind == tokenize.COMMENT:
            comments += PRAGMA.match(text) is None
        elif kind not in NO_CODE:
            code.update(range(first, last + 1))
    docstrings, imports = set[int](), set[int]()
    for node in module.nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings.update(_lines_of(node))
            case ast.Import() | ast.ImportFrom():
                imports.update(_lines_of(node))
    code -= docstrings
    return Lines(frozenset(code), len(code - imports), comments, tuple(texts))


def _lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def find_circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the sets of nodes that reach each other, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for after in edges.get(node, ()):
            if after not in order:
                visit(after)
                low[node] = min(low[node], low[after])
            elif after in stack:
                low[node] = min(low[node], order[after])
        if low[node] == order[node]:
            circle = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(circle) > 1:
                circles.append(sorted(circle))

    for node in list(edges):
        if node not in order:
            visit(node)
    return circles


def twice(names: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names that more than one owner has, with the owners."""
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for name, owner in names:
        owners[name].append(owner)
    return [f"{name}: {', '.join(found)}" for name, found in owners.items() if len(found) > 1]


class Tree:
    """The modules of a checkout, and what the figures need to know of them."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.modules = read_modules(root)

    @cached_property
    def lines(self) -> dict[str, Lines]:
        """Return the counted lines of each module."""
        return {name: count_lines(module) for name, module in self.modules.items()}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Return the modules of the tree that each module imports."""
        known = self.modules.keys()
        found = {name: {*imports_of(each, self.modules)} for name, each in self.modules.items()}
        return {name: (imported & known) - {name} for name, imported in found.items()}

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Return the modules that import each module."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for name, imported in self.imports.items():
            for each in imported:
                found[each].add(name)
        return found

    @property
    def code(self) -> int:
        """Return the lines of code of all modules."""
        return sum(lines.code for lines in self.lines.values())

    def nodes(self) -> Iterator[tuple[str, ast.AST]]:
        """Yield every node of every module, with the module's name."""
        for name, module in self.modules.items():
            for node in module.nodes:
                yield name, node


def modules(tree: Tree) -> list[str]:
    """Return all modules, packages' own included."""
    return [*tree.modules]


def classes_twice(tree: Tree) -> list[str]:
    """Return the public class names that more than one module defines."""
    found = ((node.name, name) for name, node in tree.nodes() if isinstance(node, ast.ClassDef))
    return twice((name, owner) for name, owner in found if not name.startswith("_"))


def basenames_twice(tree: Tree) -> list[str]:
    """Return the last parts of modules' names that more than one has."""
    return twice((name.rpartition(".")[2], name) for name in tree.modules)


def small_modules(tree: Tree) -> list[str]:
    """Return the modules with one importer and few lines, which could be part of it.

    Compiled modules stay alone, and a pure module is not merged with one that does I/O.
    """
    pure = pure_modules(tree.root, tree.modules)
    found = []
    for name, module in tree.modules.items():
        importers = tree.importers.get(name, set())
        if len(importers) != 1 or module.is_hot or tree.lines[name].body >= SMALL_LINES:
            continue
        (importer,) = importers
        apart = name in pure and importer not in pure
        if not apart and not tree.modules[importer].is_hot:
            found.append(f"{name} ({tree.lines[name].body}) -> {importer}")
    return found


def large_folders(tree: Tree) -> list[str]:
    """Return the folders with more modules at one level than a glance takes in."""
    counts = Counter(each.path.parent for each in tree.modules.values() if not each.is_package)
    large = {folder: count for folder, count in counts.items() if count > FOLDER_MODULES}
    return [f"{folder.relative_to(tree.root)}: {count}" for folder, count in large.items()]


def circles(tree: Tree) -> list[str]:
    """Return the circles of imports between siblings: modules or packages of one folder."""
    levels: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, imported in tree.imports.items():
        for other in imported:
            mine, theirs = name.split("."), other.split(".")
            same = 0
            while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
                same += 1
            if same < min(len(mine), len(theirs)):
                levels[".".join(mine[:same])][mine[same]].add(theirs[same])
    return [
        f"{level or 'top'}: {', '.join(circle)}"
        for level, edges in levels.items()
        for circle in find_circles(edges)
    ]


def broker_floors(tree: Tree) -> list[str]:
    """Return the layers of the broker, top to bottom."""
    settings = tomllib.loads((tree.root / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    return [
        layer
        for contract in contracts
        if contract.get("containers") == ["streamlog.broker"]
        for layer in contract["layers"]
    ]


def produce_walk(tree: Tree) -> list[str]:
    """Return the modules through which a Produce request goes in the broker, from a trace."""
    command = [sys.executable, "-m", "tools.journeys", "produce"]
    done = subprocess.run(command, cwd=tree.root, capture_output=True, text=True, check=True)
    walk: list[str] = json.loads(done.stdout)
    return walk


def banned_names(tree: Tree) -> list[str]:
    """Return the names of functions, classes, and parameters with a banned word."""
    found = []
    for module, node in tree.nodes():
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.ClassDef(name=name) | ast.arg(arg=name) | ast.Name(name, ast.Store()):
                pass
            case _:
                continue
        words = re.findall(r"[A-Z]?[a-z]+", name)
        if not WORDS.isdisjoint(word.lower() for word in words):
            found.append(f"{module}:{node.lineno}: {name}")
    return found


def banned_phrases(tree: Tree) -> list[str]:
    """Return the docstrings, comments, and messages with a banned phrase."""
    return [
        f"{name}:{line}: {match[0]}"
        for name, lines in tree.lines.items()
        for line, text in lines.texts
        for match in PHRASES.finditer(" ".join(text.split()))
    ]


def comment_rate(tree: Tree) -> float:
    """Return comments per 100 lines of code."""
    return 100 * sum(lines.comments for lines in tree.lines.values()) / tree.code


def any_rate(tree: Tree) -> float:
    """Return uses of `Any` per 250 lines of code."""
    uses = sum(isinstance(node, ast.Name) and node.id == "Any" for _, node in tree.nodes())
    return ANY_LINES * uses / tree.code


@dataclass(frozen=True)
class Figure:
    """One figure: how it is measured, and where it has to arrive."""

    what: str
    measure: Callable[[Tree], list[str] | float]
    goal: float
    rises: bool = False
    """Whether more is better."""

    def reaches(self, value: float, bar: float) -> bool:
        """Whether a value is at least as good as the bar."""
        return value >= bar if self.rises else value <= bar


FIGURES = {
    "modules": Figure("modules", modules, 400),
    "classes": Figure("public class names used twice", classes_twice, 0),
    "basenames": Figure("module names used twice", basenames_twice, 24),
    "small": Figure(f"modules with one importer, < {SMALL_LINES} lines", small_modules, 58),
    "folders": Figure(f"folders with more than {FOLDER_MODULES} modules", large_folders, 0),
    "circles": Figure("circles of imports between siblings", circles, 0),
    "floors": Figure("layers of the broker", broker_floors, 8),
    "produce": Figure("modules that a Produce request walks through", produce_walk, 20),
    "comments": Figure("comments per 100 lines of code", comment_rate, 4, rises=True),
    "any": Figure(f"`Any` per {ANY_LINES} lines of code", any_rate, 1),
    "names": Figure("names with a banned word", banned_names, 0),
    "phrases": Figure("banned phrases in texts", banned_phrases, 0),
}
BARS: dict[str, float] = {
    "modules": 1048,
    # The ports of connectors have the names that Kafka Connect gives them (Schema, Field, ...).
    "classes": 7,
    # `worker/connect` is what `connect` is in the worker.
    "basenames": 25,
    "small": 66,
    "folders": 0,
    "circles": 1,
    "floors": 8,
    "produce": 33,
    "comments": 4,
    "any": 1,
    "names": 1,
    "phrases": 0,
}
"""Where each figure is held today; lower a bar when its figure falls."""


def rated(found: list[str] | float) -> float:
    """Return a figure as a number: how many were found, or the rate to two places."""
    return len(found) if isinstance(found, list) else round(found, 2)


def main() -> int:
    """Print the figures; with `-v NAME`, also what counts for one of them."""
    parser = argparse.ArgumentParser(description="Print the figures of the tree.")
    parser.add_argument("-v", "--verbose", choices=FIGURES, help="list what counts for a figure")
    options = parser.parse_args()
    tree = Tree()
    for name, figure in FIGURES.items():
        found = figure.measure(tree)
        value = rated(found)
        mark = "" if figure.reaches(value, figure.goal) else "  <-"
        print(f"{name:10} {value:8g}  goal {figure.goal:4g}  {figure.what}{mark}")
        if options.verbose == name and isinstance(found, list):
            print(*(f"    {line}" for line in found), sep="\n")
    print(f"{'code':10} {tree.code:8d}             lines of code, without docstrings and comments")
    return 0


if __name__ == "__main__":
    sys.exit(main())
