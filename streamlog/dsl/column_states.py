"""How the state of one built-in column is written down, and what its function may give.

A state is MessagePack. The parts that are the user's values come back by themselves (plain types),
by their declared type, or packed with their types where none is declared; models of pydantic are
bytes of their own serde. Rule of the file: what is stored keeps its form (`form`), or a newer
program could not go on with what an older one has written.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, cast

from streamlog.dsl.column_types import is_decimal
from streamlog.dsl.fields import bare, field_type, is_union
from streamlog.dsl.shapes import returned
from streamlog.errors import SerdeError
from streamlog.serdes import PACKED, serde_for, type_name
from streamlog.serdes.json_values import outer_classes
from streamlog.serdes.models import has_model
from streamlog.serdes.packed import PACKABLE
from streamlog.topology import Aggregator

_PLAIN = (int, float, bool, str, bytes, None, type(None))
"""Types whose values come back from MessagePack exactly as they were without being told."""
_NUMBERS = (float, int, bool, Decimal)
_FLOATING = (int, float, bool)
_PLAIN_CLASSES = (int, float, bool, str, bytes, type(None))
_STATES: Mapping[str, Any] = {
    "count": Any,
    "mean": tuple[int | float, int],
    "var": tuple[int, float, float],
    "distinct": bytes,
    "quantile": tuple[int, dict[int, int], dict[int, int]],
}
"""States that are always of one type, as MessagePack."""
_MEAN = tuple[int | float | Decimal, int]
_COMPARED = frozenset({"min", "max"})

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class StateForm:
    """How a state is written down."""

    kind: Any
    """Its type as MessagePack; Any if it comes back by itself."""
    told: Any
    """The type by which `form` tells it, if that is another one."""
    convert: tuple[Convert, Convert] | None = None
    """To what is written, and back, if that is not the state itself."""
    is_packed: bool = False
    """The whole state is packed with its types."""


def state_form(column: Aggregator[Any, Any], hint: object, value: object) -> StateForm:
    """How the state of a column is written down.

    Args:
        column: which.
        hint: the type of the field that it fills.
        value: that of the stream's values, as far as it is known.
    """
    if column.name == "mean":
        kind: Any = tuple[Decimal, int] if is_decimal(hint) else _MEAN
        return StateForm(kind, kind if is_decimal(hint) else _STATES["mean"])
    if column.name in _STATES:
        return StateForm(_STATES[column.name], _STATES[column.name])
    if column.name == "sum":
        if bare(hint) is None:
            hint = found_type(column.field, value)
            hint = Any if hint is object else hint
        kind = Any if is_plain(hint) or hint is Any else hint
        return StateForm(kind, kind)
    if column.name in _COMPARED:
        return _of_extreme(hint)
    return _of_values(column, hint, value)


def classes_of(
    column: Aggregator[Any, Any], hint: object, value: object
) -> tuple[type, ...] | None:
    """What the function of a column may give; None: anything, or its type is declared.

    A value of another class would not come back from its bytes as it was.
    """
    if column.field is None or column.name == "distinct":
        return None
    if found_type(column.field, value) is not object:
        return None
    if column.name in ("mean", "var", "quantile"):
        return _NUMBERS
    if column.name in ("collect", "top"):
        args = typing.get_args(hint)
        hint = args[0] if args else Any
    if is_plain(hint) or bare(hint) is None:
        unknown = _FLOATING if column.name == "sum" else PACKABLE
        own = (hint,) if isinstance(hint, type) else ()  # First, as it is most often.
        return (*own, *_PLAIN_CLASSES) if is_plain(hint) else unknown
    classes = outer_classes(bare(hint))
    known = (*classes, int) if is_decimal(hint) else classes
    return None if object in known else (*known, type(None))


def checking(what: str, classes: tuple[type, ...]) -> Callable[[Any], None]:
    """Refuses what a column's function gives if that could not be stored as it is.

    To be asked of values of other classes only: those of a class derived from one of these, and
    enumerations, may do.
    """
    # MessagePack takes no classes that are derived from those of plain values.
    derived = () if classes is PACKABLE else (Enum, *({*classes} - {*_PLAIN_CLASSES}))

    def check(found: Any) -> None:  # noqa: ANN401 - the user's
        if isinstance(found, derived):
            return
        if classes is PACKABLE:
            raise SerdeError(
                f"{what}: a {type_name(type(found))} can't be stored without its type, and the "
                "type of what the function gives is not known: annotate it (a lambda can't be), "
                "or name a field"
            )
        names = " | ".join(
            type_name(each) for each in dict.fromkeys(classes) if each is not type(None)
        )
        raise SerdeError(
            f"{what} takes {names}, and its function gave a {type_name(type(found))}: convert it "
            "there, or declare the column's field as that"
        )

    return check


def is_plain(hint: object) -> bool:
    """Whether MessagePack gives values of this type back without being told of it."""
    if is_union(hint):
        return all(map(is_plain, typing.get_args(hint)))
    return hint in _PLAIN


def found_type(field: object, value: object) -> object:
    """The type of what a field gives, as far as it is known; object if not."""
    if isinstance(field, str):
        return field_type(value, field, "a column") or object
    return returned(cast("Any", field)).declared or object


def _of_extreme(hint: object) -> StateForm:
    kind = _kept(hint)
    if kind is None:
        return _PACKED_STATE
    if has_model(kind):
        return StateForm(bytes | None, bytes | None, _through(_serde_pair(kind)))
    kind = kind if kind is Any else kind | None
    return StateForm(kind, kind)


def _of_values(column: Aggregator[Any, Any], hint: object, value: object) -> StateForm:
    """Of columns that keep values, each by itself or behind what it is ordered by."""
    is_one = column.name in ("first", "last")
    args = typing.get_args(hint)
    kinds = [_kept(hint if is_one else args[0] if args else Any)]
    if column.by is not None:
        kinds.insert(0, _kept(found_type(column.by, value)))
    if None in kinds and all(map(_packs, kinds)):
        return _PACKED_STATE
    pairs = [_part_pair(kind) for kind in kinds]
    written = [kind if pair is None else bytes for kind, pair in zip(kinds, pairs, strict=True)]
    part = cast("Any", tuple)[tuple(written)] if is_one or len(kinds) > 1 else written[0]
    kind = part | None if is_one else cast("Any", list)[part]
    if not any(pairs):
        return StateForm(kind, kind)
    one = _each(pairs) if is_one or len(kinds) > 1 else pairs[0]
    return StateForm(kind, kind, _through(one) if is_one else _listed(cast("Any", one)))


def _kept(hint: object) -> Any:  # noqa: ANN401 - a type form
    """As what a value of the user's is read; None if nothing is known of it."""
    if is_plain(hint):
        return Any
    return None if bare(hint) is None else hint


def _packs(kind: object) -> bool:
    """Whether values may be packed with their types; nothing is known of None."""
    if kind is None or kind is Any or is_plain(kind) or kind is datetime:
        return True
    parts = typing.get_args(kind)
    containers = (list, dict, tuple)
    return (typing.get_origin(kind) in containers or is_union(kind)) and all(map(_packs, parts))


def _part_pair(kind: Any) -> tuple[Convert, Convert] | None:  # noqa: ANN401 - a type form
    if kind is None:
        return PACKED.dumps, PACKED.loads
    return _serde_pair(kind) if has_model(kind) else None


def _serde_pair(kind: Any) -> tuple[Convert, Convert]:  # noqa: ANN401 - a type form
    serde = serde_for(kind)
    return serde.dumps, serde.loads


def _through(pair: tuple[Convert, Convert] | None) -> tuple[Convert, Convert]:
    """Of a state that may be None."""
    dump, load = cast("tuple[Convert, Convert]", pair)
    return (
        lambda state: None if state is None else dump(state),
        lambda data: None if data is None else load(data),
    )


def _each(pairs: list[tuple[Convert, Convert] | None]) -> tuple[Convert, Convert]:
    """Of a tuple, part by part."""
    dumps = [pair and pair[0] for pair in pairs]
    loads = [pair and pair[1] for pair in pairs]

    def converted(with_: list[Convert | None], parts: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a state
        return tuple(
            part if fn is None or part is None else fn(part)
            for fn, part in zip(with_, parts, strict=True)
        )

    return lambda parts: converted(dumps, parts), lambda parts: converted(loads, parts)


def _listed(pair: tuple[Convert, Convert]) -> tuple[Convert, Convert]:
    dump, load = pair
    return lambda items: [dump(item) for item in items], lambda datas: [load(d) for d in datas]


_PACKED_STATE = StateForm(bytes, bytes, (PACKED.dumps, PACKED.loads), is_packed=True)
