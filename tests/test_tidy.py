"""The limits and habits of CONTRIBUTING.md, measured."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools import shape

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("streamlog/**/*.py"), *ROOT.glob("spark_bridge/**/*.py")])
CODE_LINES_MAX = 700
FUNCTION_LINES_MAX = 50
NESTING_MAX = 3
POSITIONAL_MAX = 5
# Tables of the wire protocol: one declaration a field, split by Kafka's own areas.
TABLES = {"streamlog/protocol/messages"}
VAGUE = {"utils", "util", "helpers", "common", "misc", "manager", "base"}
COMPOUND = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.Match)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


every_source = pytest.mark.parametrize("path", SOURCES, ids=name)


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


@cache
def code_lines(path: Path) -> set[int]:
    text = path.read_text()
    skip = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(parsed(path))


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def nesting(body: list[ast.stmt], level: int = 0) -> int:
    deepest = level
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inner = level + isinstance(statement, COMPOUND)
        blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
        # `elif` is an If inside orelse: it reads as one level.
        match statement:
            case ast.If(orelse=[ast.If()]):
                deepest = max(deepest, nesting(statement.orelse, level))
                blocks[1] = []
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        blocks += [case.body for case in getattr(statement, "cases", [])]
        deepest = max([deepest, *(nesting(block, inner) for block in blocks if block)])
    return deepest


@every_source
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), "no module docstring"


@every_source
def test_a_file_fits_its_room(path: Path) -> None:
    if name(path.parent) not in TABLES:
        assert len(code_lines(path)) <= CODE_LINES_MAX


@every_source
def test_a_function_fits_a_screen(path: Path) -> None:
    code = code_lines(path)
    for function in functions(parsed(path)):
        lines = {*range(function.lineno, (function.end_lineno or 0) + 1)} & code
        assert len(lines) <= FUNCTION_LINES_MAX, f"{function.name}: {len(lines)} lines"
        assert nesting(function.body) <= NESTING_MAX, f"{function.name} is nested too deep"
        positional = function.args.posonlyargs + function.args.args
        count = sum(argument.arg not in {"self", "cls"} for argument in positional)
        assert count <= POSITIONAL_MAX, f"{function.name}: {count} positional parameters"


@every_source
def test_names_are_nouns_of_the_field(path: Path) -> None:
    assert path.stem not in VAGUE
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef):
            assert not re.search(r"(Impl|Manager|Helper|Utils?)$", node.name), node.name


@every_source
def test_nothing_is_left_open(path: Path) -> None:
    left = re.search(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", path.read_text())
    assert left is None, left


@every_source
def test_a_broad_except_passes_the_error_on_or_says_why_not(path: Path) -> None:
    lines = path.read_text().splitlines()
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        broad = node.type is None or re.search(r"\b(Base)?Exception\b", ast.unparse(node.type))
        passed_on = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        reason = re.search(r"noqa: BLE001 - \w", lines[node.lineno - 1])
        assert not broad or passed_on or reason, f"line {node.lineno}"


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


@pytest.fixture(scope="module")
def tree() -> shape.Tree:
    return shape.Tree(ROOT)


@pytest.mark.parametrize("figure", shape.FIGURES)
def test_the_tree_is_in_shape(figure: str, tree: shape.Tree) -> None:
    """`make shape` prints all figures, and `python -m tools.shape -v FIGURE` what counts."""
    found = shape.FIGURES[figure].measure(tree)
    value, bar = shape.rated(found), shape.BARS[figure]
    assert shape.FIGURES[figure].reaches(value, bar), f"{value}, the bar is at {bar}: {found}"


def test_changelog_fragments_have_names_that_a_release_collects() -> None:
    types = {"added", "changed", "deprecated", "removed", "fixed", "security"}
    known = re.compile(rf"(\+[a-z0-9-]+|\d+)\.({'|'.join(sorted(types))})\.md")
    fragments = [each for each in ROOT.glob("changelog.d/*") if each.name != "README.md"]
    assert [each.name for each in fragments if not known.fullmatch(each.name)] == []
    assert [each.name for each in fragments if len(each.read_text().splitlines()) != 1] == []


def test_tests_mirror_the_package() -> None:
    places = {place for path in SOURCES for place in (path.parent, path.with_suffix(""))}
    rooms = {name(place).removeprefix("streamlog").strip("/") for place in places}
    for test in ROOT.glob("tests/**/test_*.py"):
        room = name(test.parent).removeprefix("tests").strip("/")
        apart = {
            "attack",
            "builds",
            "chaos",
            "cluster",
            "conformance",
            "equality",
            "fuzz",
            "examples",
            "golden",
            "oracle",
            "ports",
            "simulation",
            "spark_bridge",
            "docs",
            "tools",
            "typed",
        }
        assert room in rooms or room.split("/")[0] in apart, f"{name(test)} mirrors no room"
