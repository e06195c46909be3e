"""`make mutants`: change pure modules in one place at a time; their tests must fail each time.

A mutant is a module with one change: `<` for `<=`, `and` for `or`, a number plus one, a condition
negated, a statement left out. If the tests of the package still pass with it, either they miss
something or the change means nothing. The run draws a sample of all mutants, runs for each the
tests that reach the changed line (measured by coverage beforehand), and prints the survivors.

Most mutants fail with a few examples of each property (the profile "quick"), so only those that
survive them are tried with all. Messages, log lines, annotations, decorators, type variables, `del`
of a name and the keywords of classes are left alone. A run that takes longer than `TIMEOUT_S`
counts as a failure: the change made a loop endless.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from coverage import Coverage, CoverageData

ROOT = Path(__file__).parent.parent
ROOMS = ("streamlog/connect",)
TESTS = ("tests/connect", "tests/connect_tasks")
TIMEOUT_S = 60
"""The longest run of one mutant's tests."""
OUT_OF_TIME = {-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL}
"""The exit codes of runs that were ended."""
PROGRESS_EVERY = 50
TESTS_MAX = 400
"""The most tests that are run for one mutant: those of its module's own file first."""

_OTHER: dict[type[ast.AST], Callable[[], Any]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    path: str
    line: int
    change: str
    number: int
    """The number of the change among those of its module."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"


class Changes(ast.NodeTransformer):
    """Visits every place that can be changed, and changes the one with this number."""

    def __init__(self, chosen: int = -1) -> None:
        self.found: list[tuple[int, str]] = []
        """Line and description of each change, by its number."""
        self._chosen = chosen

    def visit(self, node: ast.AST) -> ast.AST:
        """Change the node if it has the chosen number; then what is in it."""
        if _is_left_alone(node):
            return node
        for description, changed in _changes(node):
            self.found.append((getattr(node, "lineno", 0), description))
            if len(self.found) - 1 == self._chosen:
                return ast.copy_location(changed, node)
        left_alone = {"annotation", "returns", "decorator_list", "type_params"}
        if isinstance(node, ast.ClassDef):
            # `frozen=True` of a Struct, as that of a dataclass's decorator.
            left_alone.add("keywords")
        for name, value in ast.iter_fields(node):
            if name not in left_alone:
                setattr(node, name, self._visited(value))
        return node

    def _visited(self, value: object) -> object:
        if isinstance(value, ast.AST):
            return self.visit(value)
        if isinstance(value, list):
            return [self.visit(each) if isinstance(each, ast.AST) else each for each in value]
        return value


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.AnnAssign(value=None):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case (
            ast.Expr(value=ast.Constant()) | ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar")))
        ):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="_log")))):
            return True
    return False


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield what the node may become, with a description."""
    if isinstance(node, ast.stmt):
        yield from _statement_changes(node)
    if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(
        node.test, ast.Name | ast.Attribute | ast.Call
    ):
        changed = copy.copy(node)
        changed.test = ast.UnaryOp(ast.Not(), node.test)
        yield "the condition is negated", changed
    elif isinstance(node, ast.expr):
        yield from _expression_changes(node)


def _statement_changes(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "None is returned", ast.Return(ast.Constant(None))
        case ast.Delete(targets=targets) if all(isinstance(each, ast.Name) for each in targets):
            return  # `del context` tells readers that a method does not need it.
        case ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Break():
            yield f"{type(node).__name__.lower()} is left out", ast.Pass()
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "the call is left out", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "the assignment is left out", ast.Pass()


def _expression_changes(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=values) if other := _OTHER.get(type(op)):
            changed = ast.Compare(left, [other()], values)
            yield f"{type(op).__name__} becomes {other.__name__}", changed
        case ast.BoolOp(op=op, values=values) if other := _OTHER.get(type(op)):
            yield f"{type(op).__name__} becomes {other.__name__}", ast.BoolOp(other(), values)
        case ast.BinOp(left=left, op=op, right=right) if other := _OTHER.get(type(op)):
            yield f"{type(op).__name__} becomes {other.__name__}", ast.BinOp(left, other(), right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not is left out", operand
        case ast.Constant(value=bool(value)):
            yield f"{value} becomes {not value}", ast.Constant(not value)
        case ast.Constant(value=int(number)):
            yield f"{number} becomes {number + 1}", ast.Constant(number + 1)


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return all mutants of a module."""
    changes = Changes()
    changes.visit(ast.parse(source))
    return [
        Mutant(path, line, description, number)
        for number, (line, description) in enumerate(changes.found)
    ]


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """Return the module's tree with the change."""
    tree = Changes(mutant.number).visit(ast.parse(source))
    if not isinstance(tree, ast.Module):
        raise TypeError(f"{mutant.path}: a module is changed into {type(tree).__name__}")
    return ast.fix_missing_locations(tree)


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from its changed tree, and leaves all others to Python."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `MetaPathFinder.find_spec`."""
        del path, target
        if fullname != self._name:
            return None
        where = ROOT / self._mutant.path
        is_package = where.name == "__init__.py"
        spec = importlib.util.spec_from_loader(fullname, self, is_package=is_package)
        if spec is not None:
            spec.origin, spec.has_location = str(where), True
            if is_package:
                spec.submodule_search_locations = [str(where.parent)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """See `Loader.exec_module`."""
        where = ROOT / self._mutant.path
        tree = mutated(where.read_text("utf-8"), self._mutant)
        exec(compile(tree, where, "exec"), module.__dict__)  # noqa: S102 - our own source


def survivors_of(
    mutants: Sequence[Mutant],
    tests: Callable[[Mutant], Sequence[str]],
    jobs: int,
    profile: str = "default",
) -> Iterator[Mutant]:
    """Run the tests of each mutant in a process of its own; yield those whose tests all pass.

    `profile` is hypothesis's: how many examples a property gets.
    """
    waiting, running, done = [*reversed(mutants)], dict[int, Mutant](), 0
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            chosen = tests(mutant)
            child = os.fork()
            if not child:
                _run_child(mutant, chosen, profile)
            running[child] = mutant
        child, status = os.wait()
        mutant = running.pop(child)
        code = os.waitstatus_to_exitcode(status)
        done += 1
        if done % PROGRESS_EVERY == 0:
            print(f"{done} of {len(mutants)} tried", flush=True)
        if code in OUT_OF_TIME:
            print(f"caught because its tests do not end: {mutant}", flush=True)
        if code == pytest.ExitCode.OK:
            yield mutant
        # A usage error: a test of before is not there, as its file can't be imported any more.
        elif code == pytest.ExitCode.INTERNAL_ERROR:
            raise SystemExit(f"{mutant}: pytest itself ends with code {code}")


def _run_child(mutant: Mutant, tests: Sequence[str], profile: str) -> None:
    """Never returns: the process ends with pytest's exit code."""
    code = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        # A loop without an end uses up its time; a wait without an end is woken by the alarm.
        resource.setrlimit(resource.RLIMIT_CPU, (TIMEOUT_S, TIMEOUT_S))
        signal.alarm(2 * TIMEOUT_S)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        sys.meta_path.insert(0, _Changed(mutant))
        os.environ["STREAMLOG_PROFILE"] = profile
        options = ["-x", "-q", "--no-header", "-p", "no:xdist", "-o", "timeout=0"]
        code = int(pytest.main([*options, *tests]))
    finally:
        os._exit(code)


class _Contexts:
    """A plugin of pytest that names the running test to coverage."""

    def __init__(self, measured: Coverage) -> None:
        self._measured = measured

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        """See pytest."""
        self._measured.switch_context(item.nodeid)
        return (yield)


def measure(file: Path, rooms: Sequence[str], tests: Sequence[str]) -> int:
    """Run the tests; write to the file which lines of the rooms each of them reaches."""
    # A star of coverage ends at a slash: a package has a pattern of its own.
    measured = Coverage(str(file), include=[part for each in rooms for part in (each, f"{each}/*")])
    measured.start()
    code = pytest.main(["-q", "-p", "no:xdist", *tests], plugins=[_Contexts(measured)])
    measured.stop()
    measured.save()
    return int(code)


def reaching(rooms: Sequence[str], tests: Sequence[str]) -> dict[tuple[str, int], list[str]]:
    """Return for each line of the rooms the tests that reach it."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "coverage")
        # In a process of its own: this one must not have imported what it changes later.
        child = os.fork()
        if not child:
            os._exit(measure(file, rooms, tests))
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status):
            raise SystemExit("the tests fail without a change: mend them first")
        data = CoverageData(str(file))
        data.read()
        return {
            (str(Path(name).relative_to(ROOT)), line): [each for each in contexts if each]
            for name in data.measured_files()
            for line, contexts in data.contexts_by_lineno(name).items()
        }


def chosen_tests(
    mutant: Mutant, reached: Mapping[tuple[str, int], Sequence[str]], tests: Sequence[str]
) -> list[str]:
    """Return the tests that can see the change, those of the module's own file first.

    Lines that run when a module is imported belong to no test: all tests see them.
    """
    found = reached.get((mutant.path, mutant.line), ())
    own = f"test_{Path(mutant.path).stem}.py"
    if not found:
        files = sorted({each.partition("::")[0] for many in reached.values() for each in many})
        return sorted(files, key=lambda file: Path(file).name != own) or [*tests]
    return sorted(found, key=lambda test: Path(test.partition("::")[0]).name != own)[:TESTS_MAX]


def main() -> int:
    """Return 0 if the tests catch this share of the mutants, else 1."""
    parser = argparse.ArgumentParser(prog="tools.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("rooms", nargs="*", default=[*ROOMS], help="packages or files to change")
    parser.add_argument("--tests", nargs="+", default=[*TESTS], help="where their tests are")
    parser.add_argument("--sample", type=int, default=400, help="the number of mutants; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="which sample is drawn")
    parser.add_argument("--share", type=float, default=0.95, help="the share that must be caught")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at the same time")
    options = parser.parse_args()
    os.chdir(ROOT)
    mutants = [
        mutant
        for room in options.rooms
        for file in ([Path(room)] if room.endswith(".py") else sorted(Path(room).rglob("*.py")))
        for mutant in mutants_of(str(file), file.read_text("utf-8"))
    ]
    print(f"{len(mutants)} mutants of {', '.join(options.rooms)}", flush=True)
    reached = reaching(options.rooms, options.tests)
    drawn = random.Random(options.seed).sample(  # noqa: S311 - a sample, no secret
        mutants, min(options.sample or len(mutants), len(mutants))
    )

    def chosen(mutant: Mutant) -> Sequence[str]:
        return chosen_tests(mutant, reached, options.tests)

    alive = 0
    doubtful = [*survivors_of(drawn, chosen, options.jobs, "quick")]
    print(f"{len(doubtful)} survive a few examples; they are tried with all", flush=True)
    for mutant in survivors_of(doubtful, chosen, options.jobs):
        alive += 1
        print(f"survives: {mutant}", flush=True)
    share = 1 - alive / max(len(drawn), 1)
    caught = f"{len(drawn) - alive} of {len(drawn)} mutants caught"
    print(f"{caught}: {share:.1%} (bar: {options.share:.0%})")
    return 0 if share >= options.share else 1


if __name__ == "__main__":
    sys.exit(main())
