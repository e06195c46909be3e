"""RecordFilter: a condition on records, typed by an operator and never run as Python.

    value.amount > 100 and key.startswith("ann") and headers["source"] in ["web", "app"]

Python's own parser parses the text. This module lists what it may contain, translates that into
functions of a record, and refuses everything else, naming its place. Rules of the module: no
attribute of a Python object can be reached (a dot reads a field of JSON), nothing loops, and the
length of the text bounds the work for one record. A comparison with a field that a record lacks is
false, so that records of several shapes can be filtered.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from streamlog.errors import UsageError

TEXT_MAX: Final = 500
"""Characters of a condition."""
NODES_MAX: Final = 150
"""Parts of a condition, in Python's grammar."""
DEPTH_MAX: Final = 40
INTEGER_MAX: Final = 2**64
EXAMPLE: Final = 'value.amount > 100 and key == "ann"'

Value: TypeAlias = object
Evaluate: TypeAlias = "Callable[[FilteredRecord], Value]"


class _Missing:
    """A field that a record lacks: false, and equal to nothing."""

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()
_NO_TEXT: Final = (_Missing, list, dict)


class FilteredRecord(msgspec.Struct, frozen=True):
    """A record as a condition sees it."""

    key: Value
    """Decoded from JSON if it is JSON, else text, else None."""
    value: Value
    headers: Mapping[str, Value]
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""


_COMPARE: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_METHODS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "startswith": str.startswith,
    "endswith": str.endswith,
    "contains": operator.contains,
}
_FUNCTIONS: Final[Mapping[str, Callable[[Value], Value]]] = {
    "len": lambda given: len(given) if isinstance(given, str | list | dict) else MISSING,
    "lower": lambda given: given.lower() if isinstance(given, str) else MISSING,
    "upper": lambda given: given.upper() if isinstance(given, str) else MISSING,
    "number": lambda given: _number(given),  # noqa: PLW0108 - defined below
    # Not of a list or an object: it would be Python's text and not JSON's, and cost by their size.
    "text": lambda given: MISSING if isinstance(given, _NO_TEXT) else str(given)[:TEXT_MAX],
}
_JSON_WORDS: Final[Mapping[str, Value]] = {"true": True, "false": False, "null": None}
"""For those who think in JSON."""
_NAMES: Final = ("key", "value", "headers", "partition", "offset", "timestamp")


class RecordFilter:
    """A condition on records."""

    def __init__(self, text: str) -> None:
        """Parse a condition; an empty one accepts every record.

        Raises:
            UsageError: the condition is too long, malformed, or has a part that is not allowed.
        """
        self.text = text.strip()
        self._accept: Evaluate = lambda _: True
        if not self.text:
            return
        # Before it is parsed: the time of the parser grows with the text.
        if len(self.text) > TEXT_MAX:
            raise UsageError(f"the filter has more than {TEXT_MAX} characters: shorten it")
        try:
            # Parsed, and never compiled: what is not translated below has no effect at all.
            parsed = ast.parse(self.text, mode="eval")
        # Python's parser gives up on deep nesting and on null characters in its own ways.
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = getattr(error, "offset", None)
            at = f" at character {where}" if where else ""
            raise UsageError(f"the filter is not a condition{at}; an example: {EXAMPLE}") from None
        if sum(1 for _ in ast.walk(parsed)) > NODES_MAX:
            raise UsageError(f"the filter has more than {NODES_MAX} parts: shorten it")
        self._accept = _translate(parsed.body, 0)

    def accepts(self, record: FilteredRecord) -> bool:
        """Return whether a record fulfils the condition."""
        return bool(self._accept(record))


def _translate(node: ast.expr, depth: int) -> Evaluate:
    """Return a part of a condition as a function of the record."""
    if depth > DEPTH_MAX:
        raise _refused(node, "nesting this deep")
    inner = depth + 1
    match node:
        case ast.Constant(value=str() | int() | float() | None as constant):
            if isinstance(constant, int) and abs(constant) > INTEGER_MAX:
                raise _refused(node, "a number this large")
            return lambda _: constant
        case ast.Name():
            return _name(node)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            parts = [_translate(each, inner) for each in elements]
            return lambda record: [part(record) for part in parts]
        case _:
            return _operation(node, inner)


def _name(node: ast.Name) -> Evaluate:
    name = node.id
    if name in _NAMES:
        return lambda record: getattr(record, name)
    if name in _JSON_WORDS:
        return lambda _: _JSON_WORDS[name]
    raise _refused(node, f"the name {name!r}")


def _operation(node: ast.expr, depth: int) -> Evaluate:
    match node:
        case ast.Attribute(value=of, attr=field):
            return _field(_translate(of, depth), lambda _: field)
        case ast.Subscript(value=of, slice=at):
            return _field(_translate(of, depth), _translate(at, depth))
        case ast.Compare():
            return _comparison(node, depth)
        case ast.Call():
            return _call(node, depth)
        case _:
            return _logic(node, depth)


def _logic(node: ast.expr, depth: int) -> Evaluate:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [_translate(each, depth) for each in values]
            return lambda record: all(part(record) for part in parts)
        case ast.BoolOp(values=values):
            parts = [_translate(each, depth) for each in values]
            return lambda record: any(part(record) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            of = _translate(operand, depth)
            return lambda record: not of(record)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            of = _translate(operand, depth)
            return lambda record: -found if _is_number(found := of(record)) else MISSING  # type: ignore[operator]
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            return _arithmetic(node, depth)
        case _:
            raise _refused(node, type(node).__name__.lower())


def _arithmetic(node: ast.BinOp, depth: int) -> Evaluate:
    left, right = _translate(node.left, depth), _translate(node.right, depth)
    compute = _ARITHMETIC[type(node.op)]

    def of(record: FilteredRecord) -> Value:
        one, other = left(record), right(record)
        # Of numbers alone: a text times a number, or a format, would cost what a record says.
        if not _is_number(one) or not _is_number(other):
            return MISSING
        try:
            # Floats do not grow, however many factors there are.
            return compute(float(one), float(other))  # type: ignore[arg-type]
        except (ArithmeticError, ValueError):
            return MISSING

    return of


def _comparison(node: ast.Compare, depth: int) -> Evaluate:
    parts = [_translate(each, depth) for each in (node.left, *node.comparators)]
    operators = [_comparer(each, node) for each in node.ops]

    def of(record: FilteredRecord) -> bool:
        # Each part once: in a chain, the one in the middle is compared on both sides.
        values = [part(record) for part in parts]
        return all(
            MISSING not in (one, other) and _holds(compare, one, other)
            for one, compare, other in zip(values, operators, values[1:], strict=False)
        )

    return of


def _comparer(op: ast.cmpop, node: ast.expr) -> Callable[[Value, Value], bool]:
    if isinstance(op, ast.In):
        return lambda one, other: one in other  # type: ignore[operator]
    if isinstance(op, ast.NotIn):
        return lambda one, other: one not in other  # type: ignore[operator]
    if type(op) not in _COMPARE:
        raise _refused(node, "this comparison")
    return _COMPARE[type(op)]


def _holds(compare: Callable[[Value, Value], bool], one: Value, other: Value) -> bool:
    try:
        return compare(one, other)
    # A text is not less than a number: the record has another shape, and does not fit.
    except (TypeError, RecursionError):
        return False


def _field(of: Evaluate, at: Evaluate) -> Evaluate:
    def read(record: FilteredRecord) -> Value:
        found, key = of(record), at(record)
        # Only JSON's own containers: nothing of Python's objects can be reached.
        match found, key:
            case dict(), str():
                # Not found[key]: a record without the field is no error of the filter.
                return found.get(key, MISSING)
            case list(), int() if -len(found) <= key < len(found):
                return found[key]
            case _:
                return MISSING

    return read


def _call(node: ast.Call, depth: int) -> Evaluate:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[only], keywords=[]) if name in _FUNCTIONS:
            function, of = _FUNCTIONS[name], _translate(only, depth)
            return lambda record: function(of(record))
        case ast.Call(func=ast.Attribute(value=of, attr=name), args=[only], keywords=[]) if (
            name in _METHODS
        ):
            method = _METHODS[name]
            text, part = _translate(of, depth), _translate(only, depth)

            def ask(record: FilteredRecord) -> Value:
                whole, piece = text(record), part(record)
                # A list has methods as well, and they would change the record.
                return isinstance(whole, str) and isinstance(piece, str) and method(whole, piece)

            return ask
        case _:
            raise _refused(node, "this call")


def _number(given: Value) -> Value:
    if _is_number(given):
        return given
    try:
        return float(given) if isinstance(given, str) and len(given) <= TEXT_MAX else MISSING
    except ValueError:
        return MISSING


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and (
        isinstance(value, float) or abs(value) <= INTEGER_MAX
    )


def _refused(node: ast.expr, what: str) -> UsageError:
    allowed = ", ".join(
        (*_NAMES, *(f"{name}()" for name in _FUNCTIONS), *(f".{m}()" for m in _METHODS))
    )
    return UsageError(
        f"the filter can't use {what} at character {node.col_offset + 1}; it has {allowed},"
        f" comparisons, and, or, not, in; an example: {EXAMPLE}"
    )
