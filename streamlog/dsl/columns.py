"""Rows of built-in columns: the aggregation of `agg(into, ...)`, and how its states are stored.

Columns and fields are checked against the known types, so a misspelt name, or a column whose type
is not that of its field, is refused before anything runs. A state is stored as MessagePack: plain
values as they are, the user's values by their declared type, or packed with their types if none is
declared. Models of pydantic are stored as the bytes of their own serde.

Rule: a state is read back exactly, and a stored form never changes, because newer programs read the
states of older ones. Only a column that certainly fails is refused; if a column fails on a record,
the error policy applies.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from numbers import Number
from operator import attrgetter
from typing import Literal, cast, is_typeddict

import msgspec

from streamlog.dsl.stream_position import is_assignable
from streamlog.dsl.value_types import (
    UNKNOWN,
    Shape,
    TypedPackedSerde,
    bare,
    field_type,
    getter,
    is_union,
    list_form,
    may_be_none,
    nearest,
    return_shape,
    tuple_form,
)
from streamlog.errors import SerdeError, TopologyError
from streamlog.nodes.stream_nodes import Aggregation, Aggregator, AnyAggregator, Field, WholeNumbers
from streamlog.serdes import PACKED, schema_of, serde_for, type_name
from streamlog.serdes.erased_types import (
    ANY_TYPE,
    TypeForm,
    UserFunction,
    UserObject,
    UserState,
    UserValue,
)
from streamlog.serdes.json_values import has_model, is_model, outer_classes
from streamlog.serdes.msgpack import PACKABLE
from streamlog.tables.folds.column_folds import (
    Collected,
    DecimalMean,
    Distinct,
    First,
    Last,
    Quantile,
    Top,
    Variance,
)
from streamlog.tables.folds.folding import Column, Columns, Fold

_SEQUENCES = (list, tuple)


def are_numbers(declared: object) -> bool:
    """Return whether values of this type may be numbers."""
    kind = bare(declared)
    if is_union(kind):
        return all(map(are_numbers, typing.get_args(kind)))
    if typing.get_origin(kind) is Literal:
        return all(isinstance(value, Number) for value in typing.get_args(kind))
    known = _class_of(kind)
    return known is None or issubclass(known, Number)


def is_decimal(declared: object) -> bool:
    """Return whether values of this type are decimals."""
    return bare(declared) is Decimal


def are_ordered(declared: object) -> bool:
    """Return whether any two values of this type may have an order."""
    kind = bare(declared)
    if is_union(kind):
        parts = typing.get_args(kind)
        # `int | float` has an order; `int | str` has none, though each of them has one.
        return all(map(are_ordered, parts)) and (all(map(are_numbers, parts)) or len(parts) == 1)
    if typing.get_origin(kind) is Literal:
        return len({type(value) for value in typing.get_args(kind)}) == 1
    known = _class_of(kind)
    if known is None:
        return True
    if issubclass(known, _SEQUENCES) and typing.get_origin(kind) in _SEQUENCES:
        return all(are_ordered(part) for part in typing.get_args(kind) if part is not Ellipsis)
    return not issubclass(known, Mapping | AbstractSet | complex) and _compares(known)


def _compares(kind: type) -> bool:
    """Return whether a class defines `<` or `>` itself."""
    names = ("__lt__", "__gt__")
    if issubclass(kind, msgspec.Struct):
        # Every Struct class has `<`, which raises TypeError unless the class has `order=True`: only
        # what classes below Struct define counts.
        own = kind.__mro__[: kind.__mro__.index(msgspec.Struct)]
        defines = any(name in vars(each) for each in own for name in names)
        return defines or bool(kind.__struct_config__.order)
    return any(getattr(kind, name) is not getattr(object, name) for name in names)


def _class_of(kind: object) -> type | None:
    """Return the class of a type's values; None if the type does not determine it."""
    if is_typeddict(kind) or is_typeddict(typing.get_origin(kind)):
        return dict
    origin = typing.get_origin(kind) or kind
    return origin if isinstance(origin, type) and origin is not object else None


_PLAIN = (int, float, bool, str, bytes, None, type(None))
"""Types whose values MessagePack reads back exactly without a declared type."""
_NUMBERS = (float, int, bool, Decimal)
_FLOATING = (int, float, bool)
_PLAIN_CLASSES = (int, float, bool, str, bytes, type(None))
_STATES: Mapping[str, TypeForm] = {
    "count": ANY_TYPE,
    "mean": tuple[int | float, int],
    "var": tuple[int, float, float],
    "distinct": bytes,
    "quantile": tuple[int, dict[int, int], dict[int, int]],
}
"""The types of states that do not depend on the field, as MessagePack."""
_MEAN = tuple[int | float | Decimal, int]
_COMPARED = frozenset({"min", "max"})

Convert = Callable[[UserState], UserState]


@dataclass(frozen=True, slots=True)
class StateForm:
    """How the state of a column is stored."""

    kind: TypeForm
    """The type for MessagePack; `ANY_TYPE` if the state needs none."""
    form_kind: TypeForm
    """The type that the serde's `form` shows. A form never changes, so it may be an older type."""
    convert: tuple[Convert, Convert] | None = None
    """Converts the state before it is written and after it is read; None if it is written as is."""
    is_packed: bool = False
    """Whether the whole state is packed with its types."""


def state_form(column: AnyAggregator, hint: object, value: object) -> StateForm:
    """Return how the state of a column is stored.

    Args:
        column: the column.
        hint: the type of the field of the row that it fills.
        value: the type of the stream's values, as far as it is known.
    """
    if column.name == "mean":
        kind: TypeForm = tuple[Decimal, int] if is_decimal(hint) else _MEAN
        return StateForm(kind, kind if is_decimal(hint) else _STATES["mean"])
    if column.name in _STATES:
        return StateForm(_STATES[column.name], _STATES[column.name])
    if column.name == "sum":
        # A field declared as Any or object: the sum has the type of the numbers, if that is known.
        if bare(hint) is None:
            hint = type_of_field(column.field, value)
            hint = ANY_TYPE if hint is object else hint
        kind = ANY_TYPE if is_plain(hint) or hint is ANY_TYPE else hint
        return StateForm(kind, kind)
    if column.name in _COMPARED:
        return _of_extreme(hint)
    return _of_values(column, hint, value)


def classes_of(column: AnyAggregator, hint: object, value: object) -> tuple[type, ...] | None:
    """Return the classes of values that a column's function may return; None for any.

    The result is None if the type of the function is declared. A value of another class could not
    be read back with its class.
    """
    if column.field is None or column.name == "distinct":
        return None
    if type_of_field(column.field, value) is not object:
        return None
    if column.name in ("mean", "var", "quantile"):
        return _NUMBERS
    if column.name in ("collect", "top"):
        args = typing.get_args(hint)
        hint = args[0] if args else ANY_TYPE  # The type of the items; a bare `list` names none.
    if is_plain(hint) or bare(hint) is None:
        unknown = _FLOATING if column.name == "sum" else PACKABLE
        own = (hint,) if isinstance(hint, type) else ()  # The most frequent class comes first.
        return (*own, *_PLAIN_CLASSES) if is_plain(hint) else unknown
    classes = outer_classes(bare(hint))
    known = (*classes, int) if is_decimal(hint) else classes
    return None if object in known else (*known, type(None))


def column_check(what: str, classes: tuple[type, ...]) -> Callable[[UserValue], None]:
    """Return a function that refuses a value that could not be read back with its class.

    Call the function only for values whose class is not in `classes`. It accepts enumerations, and
    subclasses of those `classes` that are not plain.

    Args:
        what: the column, for messages.
        classes: the result of `classes_of`.
    """
    # MessagePack takes no classes that are derived from those of plain values.
    derived = () if classes is PACKABLE else (Enum, *({*classes} - {*_PLAIN_CLASSES}))

    def check(found: object) -> None:
        if isinstance(found, derived):
            return
        if classes is PACKABLE:
            raise SerdeError(
                f"{what}: a value of type {type_name(type(found))} can't be stored, because the "
                "function's return type is not known: annotate the function (a lambda can't be "
                "annotated), or name a field"
            )
        names = " | ".join(
            type_name(each) for each in dict.fromkeys(classes) if each is not type(None)
        )
        raise SerdeError(
            f"{what} takes {names}, but its function returned {type_name(type(found))}: convert it "
            "in the function, or declare the column's field with this type"
        )

    return check


def is_plain(hint: object) -> bool:
    """Return whether MessagePack reads values of this type back without a declared type."""
    if is_union(hint):
        return all(map(is_plain, typing.get_args(hint)))
    return hint in _PLAIN


def type_of_field(field: object, value: object) -> object:
    """Return the type of a field, by its name or function; `object` if it is not known."""
    if isinstance(field, str):
        return field_type(value, field, "a column") or object
    return return_shape(cast("UserFunction", field)).declared or object


def _of_extreme(hint: object) -> StateForm:
    kind = _stored_type(hint)
    if kind is None:
        return _PACKED_STATE
    if has_model(kind):
        return StateForm(bytes | None, bytes | None, _optional(_serde_pair(kind)))
    # The state is None until the first value.
    kind = kind if kind is ANY_TYPE else kind | None
    return StateForm(kind, kind)


def _of_values(column: AnyAggregator, hint: object, value: object) -> StateForm:
    """Return how the states of columns that keep values are stored, each perhaps after its rank."""
    is_one = column.name in ("first", "last")
    args = typing.get_args(hint)
    kinds = [_stored_type(hint if is_one else args[0] if args else ANY_TYPE)]
    if column.by is not None:
        kinds.insert(0, _stored_type(type_of_field(column.by, value)))
    # 1. Nothing is known of the values, and the rank is plain or unknown: the whole state is
    #    packed.
    # 2. A part has a declared type that can't be packed: each part is stored by itself.
    if None in kinds and all(map(_packs, kinds)):
        return _PACKED_STATE
    pairs = [_part_pair(kind) for kind in kinds]
    written = [kind if pair is None else bytes for kind, pair in zip(kinds, pairs, strict=True)]
    part = tuple_form(written) if is_one or len(kinds) > 1 else written[0]
    kind = part | None if is_one else list_form(part)
    if not any(pairs):
        return StateForm(kind, kind)
    one = _each(pairs) if is_one or len(kinds) > 1 else pairs[0]
    return StateForm(kind, kind, _optional(one) if is_one else _list_pair(one))


def _stored_type(hint: object) -> TypeForm:
    """Return the type by which a user's value is read back; None if it is not known."""
    if is_plain(hint):
        return ANY_TYPE
    return None if bare(hint) is None else hint


def _packs(kind: object) -> bool:
    """Return whether values of a type may be packed with their types; None is an unknown type."""
    if kind is None or kind is ANY_TYPE or is_plain(kind) or kind is datetime:
        return True
    parts = typing.get_args(kind)
    containers = (list, dict, tuple)
    return (typing.get_origin(kind) in containers or is_union(kind)) and all(map(_packs, parts))


def _part_pair(kind: TypeForm) -> tuple[Convert, Convert] | None:
    if kind is None:
        return PACKED.dumps, PACKED.loads
    return _serde_pair(kind) if has_model(kind) else None


def _serde_pair(kind: TypeForm) -> tuple[Convert, Convert]:
    serde = serde_for(kind)
    return serde.dumps, serde.loads


def _optional(pair: tuple[Convert, Convert] | None) -> tuple[Convert, Convert]:
    """Return the conversion of a state that may be None."""
    dump, load = cast("tuple[Convert, Convert]", pair)
    return (
        lambda state: None if state is None else dump(state),
        lambda data: None if data is None else load(data),
    )


def _each(pairs: list[tuple[Convert, Convert] | None]) -> tuple[Convert, Convert]:
    """Return the conversion of a tuple, part by part."""
    dumps = [pair and pair[0] for pair in pairs]
    loads = [pair and pair[1] for pair in pairs]

    def convert(with_: list[Convert | None], parts: UserState) -> tuple[UserState, ...]:
        return tuple(
            part if fn is None or part is None else fn(part)
            for fn, part in zip(with_, parts, strict=True)
        )

    return lambda parts: convert(dumps, parts), lambda parts: convert(loads, parts)


def _list_pair(pair: tuple[Convert, Convert] | None) -> tuple[Convert, Convert]:
    dump, load = cast("tuple[Convert, Convert]", pair)
    return lambda items: [dump(item) for item in items], lambda datas: [load(d) for d in datas]


_PACKED_STATE = StateForm(bytes, bytes, (PACKED.dumps, PACKED.loads), is_packed=True)


_RESULTS: Mapping[str, type] = {
    "count": int,
    "distinct": int,
    "mean": float,
    "var": float,
    "quantile": float,
    "collect": list,
    "top": list,
}
"""The types of results that do not depend on the field, by column."""
_OF_NUMBERS = frozenset({"sum", "mean", "var", "quantile"})
WHOLE = frozenset({"count", "sum", "min", "max"})
"""Columns whose states are whole numbers if their fields are, in any order of the values."""
_KEPT_OPTIONS = {"top": ("n",), "collect": ("limit",), "distinct": ("precision",)}
"""Options that stored states depend on, by column."""

_FOLDS: Mapping[str, Callable[[AnyAggregator], Fold]] = {
    "var": lambda each: Variance(of_sample=bool(each.options["sample"])),
    "first": lambda each: First(ordered=each.by is not None),
    "last": lambda each: Last(ordered=each.by is not None),
    "collect": lambda each: Collected(cast("int | None", each.options.get("limit"))),
    "top": lambda each: Top(int(each.options["n"]), ordered=each.by is not None),
    "distinct": lambda each: Distinct(int(each.options["precision"])),
    "quantile": lambda each: Quantile(each.options["q"], each.options["accuracy"]),
}


def row_aggregation(
    name: str,
    into: type[UserObject],
    columns: Mapping[str, AnyAggregator],
    value: Shape = UNKNOWN,
) -> Aggregation:
    """Return the aggregation of several columns, whose result is an `into`.

    Args:
        name: the name of the table, for messages.
        into: the type of the rows, with a field for each column.
        columns: the columns by name.
        value: the shape of the stream's values.

    Raises:
        TopologyError: a column is not a field of `into`, or not of its type; a field has no
            column; or the values lack a field.
        SerdeError: values of `into` can't be serialized.
    """
    serde_for(cast("TypeForm", into))
    hints = typing.get_type_hints(into)
    _check_columns(name, into, columns, hints)
    for column, aggregator in columns.items():
        _check_types(f"column {column!r} of {name!r}", aggregator, hints[column], value.known)
    made = [
        _StoredColumn(f"column {column!r} of {name!r}", each, hints[column], value.known)
        for column, each in columns.items()
    ]
    # States are stored in the order of the columns, so reordering the fields changes nothing.
    names = None if _takes_in_order(into, tuple(columns)) else tuple(columns)
    folded = Columns([each.column for each in made], into, names)
    serde = _RowSerde(columns, made)
    return Aggregation(
        folded.initial,
        folded.add,
        folded.result,
        _ConvertedRowSerde(serde, made) if any(each.is_converted for each in made) else serde,
        merge=folded.merge,
        columns=dict(columns),
        numbers=_whole_numbers(columns, hints, value),
    )


def _whole_numbers(
    columns: Mapping[str, AnyAggregator], hints: Mapping[str, object], value: Shape
) -> WholeNumbers | str:
    """Return the columns as whole numbers, or why their states are not whole numbers."""
    for name, column in columns.items():
        if column.name not in WHOLE or column.by is not None:
            return f"column {name!r} is agg.{column.name}"
        if column.name != "count" and hints[name] is not int:
            return f"column {name!r} is declared as {type_name(hints[name])}, not as int"
    fields = tuple(_taken(column, value.known) for column in columns.values())
    return WholeNumbers((*columns.values(),), fields, is_row=True)


class _StoredColumn:
    """A column for the fold, and how its state is stored."""

    __slots__ = ("column", "dump", "form", "form_kind", "kind", "load")

    def __init__(self, what: str, aggregator: AnyAggregator, hint: object, value: object) -> None:
        fold = _fold(aggregator, hint)
        classes = classes_of(aggregator, hint, value)
        field: UserFunction | str | None = _taken(aggregator, value)
        if aggregator.by is not None:
            field = _rank(what, aggregator, value, classes)
            classes = None  # `_rank` checks the field.
        check = None if classes is None else column_check(what, classes)
        self.column = Column(aggregator.name, field, fold, classes=classes, check=check)
        state = state_form(aggregator, hint, value)
        self.kind, self.form_kind = state.kind, state.form_kind
        self.dump: Convert = _same
        self.load: Convert = _same
        """`dump` converts the state before it is written, `load` after it is read."""
        self.form: list[object] = [aggregator.name]
        kept = _KEPT_OPTIONS.get(aggregator.name, ())
        self.form += [aggregator.options[each] for each in kept if each in aggregator.options]
        if isinstance(fold, Distinct | Quantile):
            self.dump, self.load = fold.dump, fold.load
        elif state.convert is not None:
            self.dump, self.load = state.convert
        # Other columns get no entry: it would change the form of states that are stored.
        if self.is_converted or aggregator.by is not None:
            self.form.append("packed" if self.kind is bytes else "by")

    @property
    def is_converted(self) -> bool:
        """Whether the state is converted before it is written."""
        return self.dump is not _same


def _same(state: UserState) -> UserState:
    return state


def _fold(aggregator: AnyAggregator, hint: object) -> Fold | None:
    if aggregator.name == "mean" and is_decimal(hint):
        return DecimalMean()
    make = _FOLDS.get(aggregator.name)
    return None if make is None else make(aggregator)


class _RowSerde(TypedPackedSerde[UserState]):
    """The states of all columns, which are read as a list, because a fold changes it."""

    def __init__(self, columns: Mapping[str, AnyAggregator], made: list[_StoredColumn]) -> None:
        super().__init__(tuple_form(each.kind for each in made))
        self._form_kind = tuple_form(each.form_kind for each in made)
        self._columns = [[name, *each.form] for name, each in zip(columns, made, strict=True)]

    @property
    def form(self) -> object:
        """The columns with their options, and the JSON Schema of the row (`serdes.form_of`)."""
        return {"columns": self._columns, "row": {"msgpack": schema_of(self._form_kind)}}

    def loads(self, data: bytes) -> list[UserState]:
        """Deserialize the states."""
        return list(super().loads(data))


class _ConvertedRowSerde:
    """The states of all columns, some of which are converted before they are written."""

    def __init__(self, written: _RowSerde, made: list[_StoredColumn]) -> None:
        self._written = written
        self._dumps = [each.dump for each in made]
        self._loads = [each.load for each in made]

    @property
    def form(self) -> object:
        """See `_RowSerde`."""
        return self._written.form

    def dumps(self, obj: list[UserState]) -> bytes:
        """Convert and serialize the states."""
        pairs = zip(self._dumps, obj, strict=True)
        return self._written.dumps([dump(state) for dump, state in pairs])

    def loads(self, data: bytes) -> list[UserState]:
        """Deserialize the states and convert them back."""
        pairs = zip(self._loads, self._written.loads(data), strict=True)
        return [load(state) for load, state in pairs]


def _taken(aggregator: AnyAggregator, value: object) -> Field[UserValue] | None:
    """Return the function of a column's field, or the name of an attribute; None for a count."""
    field = aggregator.field
    return getter(value, field) if isinstance(field, str) else field


def _rank(
    what: str,
    aggregator: AnyAggregator,
    value: object,
    classes: tuple[type, ...] | None,
) -> Callable[[UserValue], UserValue]:
    """Return a function of a value whose result is a pair: the rank, then the column's field."""
    field, by = _taken(aggregator, value), aggregator.by
    order = getter(value, by) if isinstance(by, str) else by
    take = attrgetter(field) if isinstance(field, str) else cast("UserFunction", field)
    rank = attrgetter(order) if isinstance(order, str) else cast("UserFunction", order)
    ranks = PACKABLE if type_of_field(by, value) is object else None
    if classes is None and ranks is None:
        return lambda found: (rank(found), take(found))
    check_rank = None if ranks is None else column_check(f"{what}: by", ranks)
    check = None if classes is None else column_check(what, classes)

    def checked(found: UserValue) -> tuple[UserValue, UserValue]:
        # The frequent classes are found by identity; only another class costs a call.
        order_by, taken = rank(found), take(found)
        if check_rank is not None and type(order_by) not in cast("tuple[type, ...]", ranks):
            check_rank(order_by)
        if check is not None and type(taken) not in cast("tuple[type, ...]", classes):
            check(taken)
        return order_by, taken

    return checked


def _takes_in_order(into: type[UserObject], names: tuple[str, ...]) -> bool:
    """Return whether a class takes these fields by position, which is faster than by name."""
    if is_typeddict(into):
        return False
    try:
        parameters = list(inspect.signature(into).parameters.values())[: len(names)]
    except (TypeError, ValueError):
        return False
    # Keyword-only fields drop out here, so the names differ and the columns are passed by name.
    given = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return tuple(given) == names


def _check_columns(
    name: str, into: type[UserObject], columns: Mapping[str, object], hints: Mapping[str, object]
) -> None:
    for column, aggregator in columns.items():
        if not isinstance(aggregator, Aggregator):
            raise TopologyError(
                f"column {column!r} of {name!r} must be an aggregator, such as agg.count() or "
                f"agg.sum(...), not {aggregator!r}"
            )
        if column not in hints:
            raise TopologyError(
                f"{type_name(into)} has no field {column!r}, which {name!r} aggregates"
                f"{nearest(column, hints)}"
            )
    missing = sorted(_required_fields(into, hints) - {*columns})
    if missing:
        raise TopologyError(
            f"{name!r} has no column for {', '.join(missing)} of {type_name(into)}: add "
            "one for each, or give the field a default"
        )


def _check_types(what: str, column: AnyAggregator, hint: object, value: object) -> None:
    """Refuse a column over a field that is missing or of a type that the column can't take."""
    result: object = _RESULTS.get(column.name)
    found = None
    if column.field is not None:
        found = _given_type(what, column.field, value)
        if found is not None:
            _check_values(what, column, column.field, found)
            # These columns return a value of their field: the row's field must take its type.
            result = result or bare(found)
    if column.by is not None:
        rank = _given_type(what, column.by, value)
        _check_present(what, column.by, rank)
        _check_order(what, column, column.by, rank)
    if column.name == "sum" and isinstance(result, type) and issubclass(result, int):
        result = int  # The sum of booleans or enumerations is an int too.
    if column.name == "mean" and is_decimal(hint) and (found is None or is_decimal(found)):
        result = Decimal
    if isinstance(result, type) and not is_assignable(hint, result):
        raise TopologyError(
            f"{what} is declared as {type_name(hint)}, and agg.{column.name} returns "
            f"{type_name(result)}: declare the field with this type"
        )
    if column.name == "sum" and found is None and not are_numbers(hint):
        raise TopologyError(
            f"{what} is declared as {type_name(hint)}, and agg.sum returns a number"
        )


def _given_type(what: str, field: Field[UserValue], value: object) -> object:
    """Return the type of a field, by its name or function; None if it is not known."""
    if isinstance(field, str):
        return field_type(value, field, what)
    return return_shape(field).declared


def _check_values(what: str, column: AnyAggregator, field: Field[UserValue], found: object) -> None:
    is_compared = column.name in _COMPARED or (column.name == "top" and column.by is None)
    if column.name in _OF_NUMBERS or is_compared:
        _check_present(what, field, found)
    if column.name in _OF_NUMBERS and not are_numbers(found):
        raise TopologyError(
            f"{what}: {_format_field(field)} is {type_name(found)},"
            f" and agg.{column.name} takes numbers"
        )
    if is_compared:
        _check_order(what, column, field, found)
    if column.name == "distinct" and has_model(found):
        raise TopologyError(
            f"{what}: {_format_field(field)} is {type_name(found)}, and agg.distinct can't tell "
            "such models apart: count one of their fields, as in lambda v: v.id"
        )


def _check_order(what: str, column: AnyAggregator, field: Field[UserValue], found: object) -> None:
    if found is not None and not are_ordered(found):
        instead = (
            "compare one of its fields, as in by='time'"
            if column.name in ("top", "first", "last")
            else f"take one of its fields, or agg.top(1, ..., by=...) instead of agg.{column.name}"
        )
        raise TopologyError(
            f"{what}: {_format_field(field)} is {type_name(found)}, whose values have no order: "
            f"{instead}"
        )


def _format_field(field: Field[UserValue]) -> str:
    if isinstance(field, str):
        return f"field {field!r}"
    return f"what {getattr(field, '__name__', field)!r} returns"


def _check_present(what: str, field: Field[UserValue], found: object) -> None:
    if found is not None and may_be_none(found):
        name = field if isinstance(field, str) else "field"
        raise TopologyError(
            f"{what}: {_format_field(field)} is {type_name(found)}, and None has no order and "
            f"can't be added: return another value for it, as in lambda v: v.{name} or 0"
        )


def _required_fields(into: type[UserObject], hints: Mapping[str, object]) -> set[str]:
    if dataclasses.is_dataclass(into):
        missing = dataclasses.MISSING
        return {
            field.name
            for field in dataclasses.fields(into)
            if field.init and field.default is missing and field.default_factory is missing
        }
    if issubclass(into, msgspec.Struct):
        return {field.name for field in msgspec.structs.fields(into) if field.required}
    if is_model(into):
        fields = cast("UserObject", into).model_fields
        return {name for name, field in fields.items() if field.is_required()}
    if is_typeddict(into):
        # Not `__required_keys__`, which is wrong for annotations that are text.
        marked = typing.get_type_hints(into, include_extras=True).items()
        kind = typing.Required if not into.__total__ else None
        return {
            field
            for field, hint in marked
            if typing.get_origin(hint) is not typing.NotRequired
            and (kind is None or typing.get_origin(hint) is kind)
        }
    return {*hints}
