"""Rows of built-in columns: what `agg(into, ...)` comes to as an `Aggregation`.

Columns and fields are held against the types that are known, so that a misspelt name or a column
of another type than its field is refused before anything runs. Rule of the file: a state comes
back from its bytes as it was. A type that MessagePack does not keep by itself is declared, by the
field of `into` that the column fills; where even that says nothing, states are packed with their
types (`shapes`).
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from numbers import Number
from operator import attrgetter
from typing import Any, cast, is_typeddict

import msgspec

from streamlog.dsl.fields import bare, field_type, getter, is_union, may_be_none, nearest
from streamlog.dsl.fits import takes
from streamlog.dsl.shapes import UNKNOWN, Shape, TypedPackedSerde, returned
from streamlog.errors import TopologyError
from streamlog.serdes import PACKED, serde_for, type_name
from streamlog.serdes.json_values import is_model
from streamlog.tables.folding import Column, Columns, Fold
from streamlog.tables.folds import Collected, First, Last, Top, Variance
from streamlog.tables.sketches import Distinct, Quantile
from streamlog.topology import Aggregation, Aggregator, WholeNumbers

_PLAIN = (int, float, bool, str, bytes, None, type(None))
"""Types whose values come back from MessagePack exactly as they were without being told."""
_GIVES: Mapping[str, type] = {
    "count": int,
    "distinct": int,
    "mean": float,
    "var": float,
    "quantile": float,
    "collect": list,
    "top": list,
}
"""What columns result in that are always of one type."""
_STATES: Mapping[str, Any] = {
    "count": Any,
    "mean": tuple[int | float, int],
    "var": tuple[int, float, float],
    "distinct": bytes,
    "quantile": tuple[int, dict[int, int], dict[int, int]],
}
"""States that are always of one type, as MessagePack."""
_OF_NUMBERS = frozenset({"sum", "mean", "var", "quantile"})
_COMPARED = frozenset({"min", "max"})
WHOLE = frozenset({"count", "sum", "min", "max"})
"""Columns whose states are whole numbers if what they take is, in whatever order it comes."""
_KEPT_OPTIONS = {"top": ("n",), "collect": ("limit",), "distinct": ("precision",)}
"""Settings that what is stored depends on."""

_FOLDS: Mapping[str, Callable[[Aggregator[Any, Any]], Fold]] = {
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
    into: type[Any],
    columns: Mapping[str, Aggregator[Any, Any]],
    value: Shape = UNKNOWN,
) -> Aggregation:
    """The columns folded together, their results as an `into`.

    Raises:
        TopologyError: a column is not a field of `into` or not of its type, a field has no
            column, or the values have no such field.
        SerdeError: `into` is no type that can be written down.
    """
    serde_for(cast("Any", into))
    hints = typing.get_type_hints(into)
    _check_columns(name, into, columns, hints)
    for column, aggregator in columns.items():
        _check_types(f"column {column!r} of {name!r}", aggregator, hints[column], value.known)
    made = [_Made(each, hints[column], value.known) for column, each in columns.items()]
    # States are written in the order of the columns, whatever that of the fields is.
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
    columns: Mapping[str, Aggregator[Any, Any]], hints: Mapping[str, object], value: Shape
) -> WholeNumbers | str:
    """The columns as numbers, if they are whole ones as far as is declared; else why not."""
    for name, column in columns.items():
        if column.name not in WHOLE or column.by is not None:
            return f"column {name!r} is agg.{column.name}"
        if column.name != "count" and hints[name] is not int:
            return f"column {name!r} is declared as {type_name(hints[name])}, not as int"
    fields = tuple(_field(column, value.known) for column in columns.values())
    return WholeNumbers((*columns.values(),), fields, is_row=True)


class _Made:
    """A column at work, and how its state is written down."""

    __slots__ = ("column", "dump", "form", "kind", "load")

    def __init__(self, aggregator: Aggregator[Any, Any], hint: object, value: object) -> None:
        make = _FOLDS.get(aggregator.name)
        fold: Any = None if make is None else make(aggregator)
        self.column = Column(aggregator.name, _field(aggregator, value), fold)
        self.kind: Any = _state_type(aggregator, hint, value)
        """The state's type as MessagePack; Any if it comes back by itself."""
        self.dump: Callable[[Any], Any] = _same
        self.load: Callable[[Any], Any] = _same
        """Between the state and what is written, if that is something else."""
        self.form: list[object] = [aggregator.name]
        kept = _KEPT_OPTIONS.get(aggregator.name, ())
        self.form += [aggregator.options[each] for each in kept if each in aggregator.options]
        if hasattr(fold, "dump"):
            self.dump, self.load = fold.dump, fold.load
        elif self.kind is None:
            self.kind, self.dump, self.load = bytes, PACKED.dumps, PACKED.loads
        if self.is_converted or aggregator.by is not None:
            self.form.append("packed" if self.kind is bytes else "by")

    @property
    def is_converted(self) -> bool:
        """Whether what is written is not the state itself."""
        return self.dump is not _same


class _RowSerde(TypedPackedSerde[Any]):
    """The states of all columns; they come back as the list that is folded into."""

    def __init__(self, columns: Mapping[str, Aggregator[Any, Any]], made: list[_Made]) -> None:
        super().__init__(cast("Any", tuple)[tuple(each.kind for each in made)])
        self._columns = [[name, *each.form] for name, each in zip(columns, made, strict=True)]

    @property
    def form(self) -> object:
        """What the bytes look like, as plain data (`serdes.form_of`)."""
        return {"columns": self._columns, "row": super().form}

    def loads(self, data: bytes) -> list[Any]:
        """The states."""
        return list(super().loads(data))


class _ConvertedRowSerde:
    """The states of all columns, some of which are written as something else."""

    def __init__(self, written: _RowSerde, made: list[_Made]) -> None:
        self._written = written
        self._dumps = [each.dump for each in made]
        self._loads = [each.load for each in made]

    @property
    def form(self) -> object:
        """See `_RowSerde`."""
        return self._written.form

    def dumps(self, obj: list[Any]) -> bytes:
        """The states as bytes."""
        pairs = zip(self._dumps, obj, strict=True)
        return self._written.dumps([dump(state) for dump, state in pairs])

    def loads(self, data: bytes) -> list[Any]:
        """The states."""
        pairs = zip(self._loads, self._written.loads(data), strict=True)
        return [load(state) for load, state in pairs]


def _same(state: Any) -> Any:  # noqa: ANN401 - a state
    return state


def _field(aggregator: Aggregator[Any, Any], value: object) -> Callable[[Any], Any] | str | None:
    """What the column folds, taken of a value."""
    field, by = aggregator.field, aggregator.by
    if isinstance(field, str):
        field = getter(value, field)
    if by is None or field is None:
        return field
    order = getter(value, by) if isinstance(by, str) else by
    take = attrgetter(field) if isinstance(field, str) else field
    rank = attrgetter(order) if isinstance(order, str) else order
    return lambda found: (rank(found), take(found))


def _takes_in_order(into: type[Any], names: tuple[str, ...]) -> bool:
    """Whether the class takes these fields by position, which is cheaper than by name."""
    if is_typeddict(into):
        return False
    try:
        parameters = list(inspect.signature(into).parameters.values())[: len(names)]
    except (TypeError, ValueError):
        return False
    given = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return tuple(given) == names


def _state_type(column: Aggregator[Any, Any], hint: object, value: object) -> Any:  # noqa: ANN401 - a type form
    """The type of a state; None if it has to be packed with its types."""
    fixed = _STATES.get(column.name)
    if fixed is not None:
        return fixed
    if column.name == "sum":
        return Any if _is_plain(hint) or hint is Any else hint
    if column.name in _COMPARED:
        kind = _kept(hint)
        return kind if kind in (None, Any) else kind | None
    return _value_state_type(column, hint, value)


def _value_state_type(column: Aggregator[Any, Any], hint: object, value: object) -> Any:  # noqa: ANN401 - as above
    """Of columns that keep values, each by itself or behind what it is ordered by."""
    is_one = column.name in ("first", "last")
    parts = typing.get_args(hint)
    kinds = [_kept(hint if is_one else parts[0] if parts else Any)]
    if column.by is not None:
        kinds.insert(0, _kept(_found_type(column.by, value)))
    if None in kinds:
        return None
    together = cast("Any", tuple)[tuple(kinds)]
    if is_one:
        return together | None
    return cast("Any", list)[kinds[0] if column.by is None else together]


def _kept(hint: object) -> Any:  # noqa: ANN401 - a type form
    """As what a value of the user's is read; None if nothing is known of it."""
    if _is_plain(hint):
        return Any
    return None if bare(hint) is None else hint


def _is_plain(hint: object) -> bool:
    if is_union(hint):
        return all(map(_is_plain, typing.get_args(hint)))
    return hint in _PLAIN


def _found_type(field: Callable[[Any], Any] | str, value: object) -> object:
    """The type of what a field gives, as far as it is known; object if not."""
    if isinstance(field, str):
        return field_type(value, field, "a column") or object
    return returned(field).declared or object


def _check_columns(
    name: str, into: type[Any], columns: Mapping[str, object], hints: Mapping[str, object]
) -> None:
    for column, aggregator in columns.items():
        if not isinstance(aggregator, Aggregator):
            raise TopologyError(
                f"column {column!r} of {name!r} must be one of agg.count(), agg.sum(...) and so "
                f"on, not {aggregator!r}"
            )
        if column not in hints:
            raise TopologyError(
                f"{type_name(into)} has no field {column!r}, which {name!r} aggregates"
                f"{nearest(column, hints)}"
            )
    missing = sorted(_required(into, hints) - {*columns})
    if missing:
        raise TopologyError(
            f"{name!r} gives no value for {', '.join(missing)} of {type_name(into)}: add a "
            "column for each, or give the field a default"
        )


def _check_types(what: str, column: Aggregator[Any, Any], hint: object, value: object) -> None:
    """Refuse a column over a field that is not there, or that gives what it can't take."""
    gives: object = _GIVES.get(column.name)
    if isinstance(column.field, str):
        found = field_type(value, column.field, what)
        _check_values(what, column, column.field, found)
        gives = gives or bare(found)
    if isinstance(column.by, str):
        _check_present(what, column.by, field_type(value, column.by, what))
    if isinstance(gives, type) and not takes(hint, gives):
        raise TopologyError(
            f"{what} is declared as {type_name(hint)}, and agg.{column.name} gives "
            f"{type_name(gives)}: declare the field as that"
        )


def _check_values(what: str, column: Aggregator[Any, Any], field: str, found: object) -> None:
    if column.name in _OF_NUMBERS | _COMPARED or (column.name == "top" and column.by is None):
        _check_present(what, field, found)
    kind = bare(found)
    if column.name in _OF_NUMBERS and isinstance(kind, type) and not issubclass(kind, Number):
        raise TopologyError(
            f"{what}: field {field!r} is {type_name(found)}, and agg.{column.name} takes numbers"
        )


def _check_present(what: str, field: str, found: object) -> None:
    if found is not None and may_be_none(found):
        raise TopologyError(
            f"{what}: field {field!r} is {type_name(found)}, and None has no order and adds to "
            f"nothing: say what is to count then, as in lambda v: v.{field} or 0"
        )


def _required(into: type[Any], hints: Mapping[str, object]) -> set[str]:
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
        fields = cast("Any", into).model_fields
        return {name for name, field in fields.items() if field.is_required()}
    if is_typeddict(into):
        # Not `__required_keys__`: it can't see through annotations that are text.
        marked = typing.get_type_hints(into, include_extras=True).items()
        kind = typing.Required if not into.__total__ else None
        return {
            field
            for field, hint in marked
            if typing.get_origin(hint) is not typing.NotRequired
            and (kind is None or typing.get_origin(hint) is kind)
        }
    return {*hints}
