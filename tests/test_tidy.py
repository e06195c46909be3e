"""The limits and habits of CONTRIBUTING.md, measured."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import stale_modules
from tools import shape
from tools.modules import Module

ROOT = Path(__file__).parent.parent
CODE_LINES_MAX = 700
"""The limit for a file, without imports."""
FUNCTION_LINES_MAX = 50
NESTING_MAX = 3
POSITIONAL_MAX = 5
TABLES = ROOT / "streamlog/protocol/messages"
"""Tables of the wire protocol: one declaration per field, split by Kafka's own areas."""
VAGUE = {"utils", "util", "helpers", "common", "misc", "manager", "base"}
COMPOUND = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.Match)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[Module, shape.Lines], Iterator[str]]
"""Yields the violations of a rule in a module, one line each."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def tree() -> shape.Tree:
    return shape.Tree(ROOT)


def functions(module: Module) -> Iterator[Function]:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def nesting(body: list[ast.stmt], level: int = 0) -> int:
    deepest = level
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inner = level + isinstance(statement, COMPOUND)
        blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
        # An `elif` is an If in orelse, but reads as one level.
        match statement:
            case ast.If(orelse=[ast.If()]):
                deepest = max(deepest, nesting(statement.orelse, level))
                blocks[1] = []
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        blocks += [case.body for case in getattr(statement, "cases", [])]
        deepest = max([deepest, *(nesting(block, inner) for block in blocks if block)])
    return deepest


def a_module_says_what_it_is(module: Module, _: shape.Lines) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield "no module docstring"


def a_file_fits_its_room(module: Module, lines: shape.Lines) -> Iterator[str]:
    if module.path.parent != TABLES and lines.body > CODE_LINES_MAX:
        yield f"{lines.body} lines"


def a_function_fits_a_screen(module: Module, lines: shape.Lines) -> Iterator[str]:
    for function in functions(module):
        own = {*range(function.lineno, (function.end_lineno or 0) + 1)} & lines.numbers
        if len(own) > FUNCTION_LINES_MAX:
            yield f"{function.name}: {len(own)} lines"
        if nesting(function.body) > NESTING_MAX:
            yield f"{function.name} is nested too deep"
        positional = function.args.posonlyargs + function.args.args
        count = sum(argument.arg not in {"self", "cls"} for argument in positional)
        if count > POSITIONAL_MAX:
            yield f"{function.name}: {count} positional parameters"


def names_are_nouns_of_the_field(module: Module, _: shape.Lines) -> Iterator[str]:
    if module.path.stem in VAGUE:
        yield module.path.stem
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            vague = re.search(r"(Impl|Manager|Helper|Utils?)$", node.name)
            yield from [node.name] if vague else []


def nothing_is_left_open(module: Module, _: shape.Lines) -> Iterator[str]:
    yield from re.findall(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", module.text)


def a_broad_except_passes_the_error_on_or_says_why_not(
    module: Module, _: shape.Lines
) -> Iterator[str]:
    lines = module.text.splitlines()
    for node in module.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        broad = node.type is None or re.search(r"\b(Base)?Exception\b", ast.unparse(node.type))
        passed_on = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        reason = re.search(r"noqa: BLE001 - \w", lines[node.lineno - 1])
        if broad and not passed_on and not reason:
            yield f"line {node.lineno}"


RULES: list[Rule] = [
    a_module_says_what_it_is,
    a_file_fits_its_room,
    a_function_fits_a_screen,
    names_are_nouns_of_the_field,
    nothing_is_left_open,
    a_broad_except_passes_the_error_on_or_says_why_not,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_follows_the_rule(rule: Rule, tree: shape.Tree) -> None:
    problems = [
        f"{name(module.path)}: {problem}"
        for module in tree.modules.values()
        for problem in rule(module, tree.lines[module.name])
    ]
    assert problems == []


def test_every_path_in_the_documents_exists() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    rooms = "streamlog|spark_bridge|tests|docs|examples|benchmarks|simulation|chaos"
    pattern = re.compile(rf"`((?:{rooms})/[\w./-]*\w)/?`")
    missing = [
        f"{name(document)}: {path}"
        for document in documents
        for path in pattern.findall(document.read_text())
        if not (ROOT / path).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("figure", shape.FIGURES)
def test_the_tree_is_in_shape(figure: str, tree: shape.Tree) -> None:
    """`make shape` prints all figures; `python -m tools.shape -v FIGURE` lists what counts."""
    found = shape.FIGURES[figure].measure(tree)
    value, bar = shape.rated(found), shape.BARS[figure]
    assert shape.FIGURES[figure].reaches(value, bar), f"{value}, the bar is at {bar}: {found}"


def test_compiled_modules_are_those_of_their_sources() -> None:
    """Another source fails in misleading ways: run `python setup.py build_ext --inplace`."""
    assert stale_modules() == []


def test_changelog_fragments_have_names_that_a_release_collects() -> None:
    types = {"added", "changed", "deprecated", "removed", "fixed", "security"}
    known = re.compile(rf"(\+[a-z0-9-]+|\d+)\.({'|'.join(sorted(types))})\.md")
    fragments = [each for each in ROOT.glob("changelog.d/*") if each.name != "README.md"]
    assert [each.name for each in fragments if not known.fullmatch(each.name)] == []
    assert [each.name for each in fragments if len(each.read_text().splitlines()) != 1] == []


def test_tests_mirror_the_package(tree: shape.Tree) -> None:
    sources = [module.path for module in tree.modules.values()]
    places = {place for path in sources for place in (path.parent, path.with_suffix(""))}
    rooms = {name(place).removeprefix("streamlog").strip("/") for place in places}
    for test in ROOT.glob("tests/**/test_*.py"):
        room = name(test.parent).removeprefix("tests").strip("/")
        apart = {
            "attack",
            "builds",
            "chaos",
            "compatibility",
            "cluster",
            "conformance",
            "equality",
            "fuzz",
            "examples",
            "golden",
            "oracle",
            "ports",
            "servers",
            "simulation",
            "spark_bridge",
            "docs",
            "tools",
            "typed",
        }
        assert room in rooms or room.split("/")[0] in apart, f"{name(test)} mirrors no room"
