"""What is known of types while a topology is put together: what can't fit is refused there.

A type checker sees more of it, and sooner; this is for programs that nobody has checked. Rule of
the file: only what both sides have declared is held against each other, by the classes outermost
in it, and in doubt it fits.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar, is_typeddict

from streamlog.dsl.fields import bare, is_union, may_be_none
from streamlog.dsl.place import Place
from streamlog.dsl.topic import Topic, refuse_other
from streamlog.errors import TopologyError
from streamlog.serdes import declared_by, type_name

F = TypeVar("F", bound=Callable[..., Any])
"""A function of the user's."""


def takes(declared: object, given: object) -> bool:
    """Whether a place of one type takes values of another; in doubt it does."""
    declared, given = bare(declared), bare(given)
    if is_union(declared):
        return any(takes(each, given) for each in typing.get_args(declared))
    if is_union(given):
        return any(takes(declared, each) for each in typing.get_args(given))
    wanted = typing.get_origin(declared) or declared
    found = typing.get_origin(given) or given
    if not isinstance(wanted, type) or not isinstance(found, type) or wanted is found:
        return True
    if is_typeddict(wanted) or is_typeddict(found):
        return _is_dict(wanted) and _is_dict(found)
    try:
        return issubclass(found, wanted) or (wanted is float and found is int)
    except TypeError:
        return True  # A protocol with fields: only values tell.


def check_topic(place: Place, topic: Topic[Any, Any]) -> None:
    """Refuse a topic whose types are others than those of the stream, and what is none."""
    refuse_other(topic)
    for what, here, there in (
        ("keys", place.key, topic.spec.key),
        ("values", place.value, topic.spec.value),
    ):
        given, wanted = here.known, declared_by(there)
        if not takes(wanted, given):
            raise TopologyError(
                f"the {what} at {place.node!r} are {type_name(given)}, and topic "
                f"{topic.spec.name!r} takes {type_name(wanted)}: map them before, or declare the "
                "topic as what they are"
            )


def check_alike(place: Place, other: Place) -> None:
    """Refuse to make one stream of records of different types."""
    for what, here, there in (("keys", place.key, other.key), ("values", place.value, other.value)):
        mine, theirs = here.known, there.known
        if not takes(mine, theirs) and not takes(theirs, mine):
            raise TopologyError(
                f"can't merge {place.node!r}, whose {what} are {type_name(mine)}, with "
                f"{other.node!r}, whose are {type_name(theirs)}: map them to one type before"
            )


def takes_none(fn: F, *places: int, where: str) -> F:
    """The function, if it may be given None at these places as far as it is annotated.

    Raises:
        TopologyError: it is annotated to take no None at one of them.
    """
    try:
        hints = typing.get_type_hints(fn)
        names = list(inspect.signature(fn).parameters)
    except (NameError, TypeError, ValueError, AttributeError):
        return fn
    for place in places:
        hint = hints.get(names[place]) if place < len(names) else None
        if bare(hint) is None or isinstance(bare(hint), TypeVar) or may_be_none(hint):
            continue
        raise TopologyError(
            f"{getattr(fn, '__name__', fn)!r} must take None for its {place + 1}. argument "
            f"{names[place]!r}, as {where} calls it also where there is no such row: annotate it "
            f"as {type_name(hint)} | None, and say what is to come of it then"
        )
    return fn


def _is_dict(kind: type) -> bool:
    return is_typeddict(kind) or issubclass(kind, typing.Mapping)
