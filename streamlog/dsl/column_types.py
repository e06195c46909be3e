"""Which types a column takes: numbers to be added, and what can be compared.

Rule of the file: only what is certain is refused. Of a type that says nothing of itself, values
tell, and a record on which a column fails is one for the error policy.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from numbers import Number
from typing import Any, Literal, is_typeddict

import msgspec

from streamlog.dsl.fields import bare, is_union

_SEQUENCES = (list, tuple)


def are_numbers(declared: object) -> bool:
    """Whether values of this type may be numbers."""
    kind = bare(declared)
    if is_union(kind):
        return all(map(are_numbers, typing.get_args(kind)))
    if typing.get_origin(kind) is Literal:
        return all(isinstance(value, Number) for value in typing.get_args(kind))
    known = _class_of(kind)
    return known is None or issubclass(known, Number)


def is_decimal(declared: object) -> bool:
    """Whether values of this type are decimals."""
    return bare(declared) is Decimal


def are_ordered(declared: object) -> bool:
    """Whether any two values of this type may be compared."""
    kind = bare(declared)
    if is_union(kind):
        parts = typing.get_args(kind)
        return all(map(are_ordered, parts)) and (all(map(are_numbers, parts)) or len(parts) == 1)
    if typing.get_origin(kind) is Literal:
        return len({type(value) for value in typing.get_args(kind)}) == 1
    known = _class_of(kind)
    if known is None:
        return True
    if issubclass(known, _SEQUENCES) and typing.get_origin(kind) in _SEQUENCES:
        return all(are_ordered(part) for part in typing.get_args(kind) if part is not Ellipsis)
    return not issubclass(known, Mapping | AbstractSet | complex) and _compares(known)


def _compares(kind: type[Any]) -> bool:
    """Whether the class has a `<` or `>` of its own."""
    names = ("__lt__", "__gt__")
    if issubclass(kind, msgspec.Struct):
        own = kind.__mro__[: kind.__mro__.index(msgspec.Struct)]
        defines = any(name in vars(each) for each in own for name in names)
        return defines or bool(kind.__struct_config__.order)
    return any(getattr(kind, name) is not getattr(object, name) for name in names)


def _class_of(kind: object) -> type[Any] | None:
    """The class outermost in a type; None: it says nothing of its values."""
    if is_typeddict(kind) or is_typeddict(typing.get_origin(kind)):
        return dict
    origin = typing.get_origin(kind) or kind
    return origin if isinstance(origin, type) and origin is not object else None
