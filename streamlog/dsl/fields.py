"""Fields by name: whether a type has one, of which type it is, and how to read it.

Rule of the file: a name that a known type does not have is refused while the topology is built,
with the nearest one that it has; of a type that is not known (`shapes`) nothing is refused, and a
value is asked for its attribute, or for its entry if it is a dict. None among the types is left
aside, as null values do not reach aggregations.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial, reduce
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Union, is_typeddict

from streamlog.errors import TopologyError
from streamlog.serdes import type_name

_BARE = (str, bytes, int, float, bool)
"""Types without fields."""


def field_type(declared: object, path: str, what: str) -> object:
    """The type of a field, by its name or by names with dots between them; None: not known.

    Raises:
        TopologyError: there is no such field.
    """
    for name in path.split("."):
        declared = _step(bare(declared), name, what)
    return declared


def getter(declared: object, path: str) -> Callable[[Any], Any] | str:
    """What reads a field: the name alone if it is an attribute, else a function."""
    steps: list[Callable[[Any], Any] | str] = []
    for name in path.split("."):
        kind = bare(declared)
        steps.append(_reader(kind, name))
        declared = _step(kind, name, path)
    if all(isinstance(step, str) for step in steps):
        return path if len(steps) == 1 else attrgetter(path)
    readers = [attrgetter(step) if isinstance(step, str) else step for step in steps]
    if len(readers) == 1:
        return readers[0]
    return lambda value: reduce(lambda part, read: read(part), readers, value)


def bare(declared: object) -> object:
    """A type without None, notes and names of its own; None if it is not known."""
    while isinstance(declared, typing.NewType):
        declared = declared.__supertype__
    if typing.get_origin(declared) is Annotated:
        return bare(typing.get_args(declared)[0])
    if typing.get_origin(declared) in (typing.Required, typing.NotRequired):
        return bare(typing.get_args(declared)[0])
    if is_union(declared):
        members = [each for each in typing.get_args(declared) if each is not type(None)]
        return bare(members[0]) if len(members) == 1 else Union[tuple(members)]  # noqa: UP007 - built from values
    return None if declared is Any or declared is object else declared


def is_union(declared: object) -> bool:
    """Whether it is one of several types."""
    return typing.get_origin(declared) in (Union, types.UnionType)


def may_be_none(declared: object) -> bool:
    """Whether None is one of the values of a type."""
    while isinstance(declared, typing.NewType):
        declared = declared.__supertype__
    if typing.get_origin(declared) is Annotated:
        return may_be_none(typing.get_args(declared)[0])
    if is_union(declared):
        return any(map(may_be_none, typing.get_args(declared)))
    if typing.get_origin(declared) is typing.Literal:
        return None in typing.get_args(declared)
    return declared is type(None) or declared is None


def is_never_none(declared: object) -> bool:
    """Whether a type is known not to have None among its values."""
    kind = bare(declared)
    is_known = isinstance(kind, type) or typing.get_origin(kind) is not None
    return is_known and not may_be_none(declared)


def nearest(name: str, names: typing.Iterable[str]) -> str:
    """A question for the end of a message, if one of the names is like it."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _step(kind: object, name: str, what: str) -> object:
    """The type of one field of a bare type."""
    if kind is None or isinstance(kind, typing.TypeVar):
        return None
    if is_union(kind):
        found = [_step(bare(each), name, what) for each in typing.get_args(kind)]
        return found[0] if all(each == found[0] for each in found) else None
    origin = typing.get_origin(kind) or kind
    if _is_mapping(origin) and not is_typeddict(origin):
        parts = typing.get_args(kind)
        return parts[1] if len(parts) == 2 else None  # noqa: PLR2004 - dict[K, V]
    hints = _hints(origin)
    if name in hints:
        return _filled(hints[name], kind)
    if not is_typeddict(origin) and not callable(getattr(origin, name, len)):
        return _hints(getattr(origin, name)).get("return")
    if not hints and origin not in _BARE:
        return None  # A class that says nothing of what its instances have.
    raise TopologyError(
        f"{type_name(kind)} has no field {name!r}, which {what} reads{nearest(name, hints)}"
    )


def _hints(described: object) -> Mapping[str, object]:
    """The annotations of a class, or of what a property or method is made of."""
    described = getattr(described, "fget", described)
    try:
        return typing.get_type_hints(described)
    except (NameError, TypeError, AttributeError):
        return dict.fromkeys(getattr(described, "__annotations__", ()))


def _filled(hint: object, kind: object) -> object:
    """A field's type with the arguments of a generic class in place of its variables."""
    names = getattr(typing.get_origin(kind), "__parameters__", ())
    parts = typing.get_args(kind)
    if isinstance(hint, typing.TypeVar) and hint in names and len(parts) == len(names):
        return parts[names.index(hint)]
    return None if _has_variables(hint) else hint


def _has_variables(hint: object) -> bool:
    return isinstance(hint, typing.TypeVar) or any(map(_has_variables, typing.get_args(hint)))


def _is_mapping(origin: object) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _reader(kind: object, name: str) -> Callable[[Any], Any] | str:
    origin = typing.get_origin(kind) or kind
    if is_typeddict(origin) or _is_mapping(origin):
        return itemgetter(name)
    if isinstance(origin, type):
        return name
    return partial(_either, name)


def _either(name: str, value: Any) -> Any:  # noqa: ANN401 - of a type that is not known
    return value[name] if isinstance(value, dict) else getattr(value, name)
