"""Makers: the functions that values of unknown types come from, as messages name them.

A lambda can't be annotated, and an annotation may name what only a type checker sees. What such a
function returns is not known, but its source says more: that it hands on a parameter of a known
class, or calls one. Rule of the file: this refuses what is certain to fail and names the place; it
never decides how anything is written down.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, cast

import msgspec

from streamlog.dsl.fields import field_type
from streamlog.errors import TopologyError
from streamlog.serdes import type_name
from streamlog.serdes.json_values import is_model


@dataclass(frozen=True, slots=True)
class Maker:
    """A function that returns values of a type that is not declared."""

    told: str
    """Which function it is, and where."""
    gives: str = ""
    """What it is certain to return that can't be stored without a declared type; "": nothing."""
    advice: str = ""

    def refusal(self) -> str:
        """Why its values can't be stored."""
        return f"{self.told} returns {self.gives}, which has to be stored behind it: {self.advice}"


def place_of(fn: Callable[..., Any]) -> str:
    """A function, and the file and line where it is defined."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    name = getattr(fn, "__name__", type(fn).__name__)
    shown = "the lambda" if name == "<lambda>" else f"the function {name!r}"
    if code is None:
        return shown
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{shown} at {file}:{code.co_firstlineno}"


def maker_of(
    fn: Callable[..., Any],
    given: Sequence[object],
    pick: Callable[[object], object] | None,
    unresolved: str = "",
) -> Maker:
    """What is known of a function whose return type is not.

    Args:
        fn: the function.
        given: the types of its parameters, None where they are not known.
        pick: takes the part that matters out of what it returns.
        unresolved: why its annotation says nothing.
    """
    told = place_of(fn)
    if unresolved:
        advice = f"{unresolved}; import it at the top of the module, outside `if TYPE_CHECKING`"
        return Maker(told, "what its annotation does not tell", advice)
    returned = _returned(fn, given)
    if pick is not None and returned is not None:
        returned = pick(returned)
    found = _undeclared(returned)
    if found is None:
        return Maker(told)
    name = type_name(found)
    return Maker(
        told,
        f"a {name}" if found is returned else f"a {name} inside of {type_name(returned)}",
        "use a function that is annotated with what it returns, as in `def made(...) -> "
        f"{name if found is returned else '...'}` (a lambda can't be annotated)",
    )


def _undeclared(kind: object) -> type[Any] | None:
    """A class in a type whose instances can't be stored without a declared type."""
    if isinstance(kind, type) and not typing.get_args(kind):
        is_record = dataclasses.is_dataclass(kind) or is_model(kind) or hasattr(kind, "_fields")
        return kind if is_record or issubclass(kind, msgspec.Struct | Enum) else None
    origin = typing.get_origin(kind)
    if isinstance(origin, type) and dataclasses.is_dataclass(origin):
        return origin
    if origin in (typing.Union, types.UnionType):
        return None  # It may be the other one.
    parts = (_undeclared(part) for part in typing.get_args(kind))
    return next((part for part in parts if part is not None), None)


def _returned(fn: Callable[..., Any], given: Sequence[object]) -> Any:  # noqa: ANN401 - a type form
    """The type of what a lambda returns, as far as its source says it; None if not."""
    if not isinstance(fn, types.LambdaType) or fn.__name__ != "<lambda>":
        return None
    node = _node_of(fn)
    if node is None:
        return None
    names: dict[str, object] = {}
    for parameter, kind in zip(node.args.args, given, strict=False):
        names[parameter.arg] = kind
    return _Expression(fn, names).type_of(node.body)


def _node_of(fn: types.LambdaType) -> ast.Lambda | None:
    """The lambda in the source, by the place of its body."""
    code = fn.__code__
    try:
        lines, _ = inspect.findsource(code)
    except (OSError, TypeError):
        return None
    spans = [each for each in code.co_positions() if None not in each and each[2] != each[3]]
    body = max(spans, key=lambda each: (each[1], each[3], -each[0], -each[2]), default=None)  # type: ignore[operator]
    for node in _lambdas(tuple(lines)):
        place = node.body
        own = (place.lineno, place.end_lineno, place.col_offset, place.end_col_offset)
        if own == body:
            return node
    return None


@lru_cache(maxsize=32)
def _lambdas(lines: tuple[str, ...]) -> tuple[ast.Lambda, ...]:
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Lambda))


class _Expression:
    """The types of the expressions in a lambda; None is one that is not known."""

    def __init__(self, fn: types.LambdaType, names: Mapping[str, object]) -> None:
        self._names = names
        closed = inspect.getclosurevars(fn)
        self._around: dict[str, object] = {**closed.builtins, **closed.globals, **closed.nonlocals}

    def type_of(self, node: ast.expr) -> Any:  # noqa: ANN401 - a type form
        """The type of an expression."""
        found: Any = None
        match node:
            case ast.Name(id=name):
                found = self._names.get(name)
            case ast.Constant(value=value):
                found = None if value is None else type(value)
            case ast.Attribute(value=of, attr=name):
                found = self._field(self.type_of(of), name)
            case ast.Tuple(elts=parts) if not any(isinstance(p, ast.Starred) for p in parts):
                found = cast("Any", tuple)[tuple(self.type_of(part) or object for part in parts)]
            case ast.List(elts=[part]):
                found = cast("Any", list)[self.type_of(part) or object]
            case ast.Subscript(value=of, slice=ast.Constant(value=int(at))):
                kinds = typing.get_args(self.type_of(of))
                found = kinds[at] if 0 <= at < len(kinds) and Ellipsis not in kinds else None
            case ast.Call(func=ast.Name(id=name)) if name not in self._names:
                found = self._called(self._around.get(name))
        return found

    def _field(self, of: object, name: str) -> object:
        try:
            return None if of is None else field_type(of, name, "a lambda")
        except TopologyError:
            return None

    def _called(self, found: object) -> object:
        if isinstance(found, type):
            return found
        if not isinstance(found, types.FunctionType):
            return None
        try:
            return typing.get_type_hints(found).get("return")
        except (NameError, TypeError, AttributeError):
            return None
