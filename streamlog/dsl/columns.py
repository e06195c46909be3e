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
from decimal import Decimal
from operator import attrgetter
from typing import Any, cast, is_typeddict

import msgspec

from streamlog.dsl.column_states import checking, classes_of, found_type, state_form
from streamlog.dsl.column_types import are_numbers, are_ordered, is_decimal
from streamlog.dsl.fields import bare, field_type, getter, may_be_none, nearest
from streamlog.dsl.fits import takes
from streamlog.dsl.shapes import UNKNOWN, Shape, TypedPackedSerde, returned
from streamlog.errors import TopologyError
from streamlog.serdes import schema_of, serde_for, type_name
from streamlog.serdes.json_values import is_model
from streamlog.serdes.models import has_model
from streamlog.serdes.packed import PACKABLE
from streamlog.tables.folding import Column, Columns, Fold
from streamlog.tables.folds import Collected, DecimalMean, First, Last, Top, Variance
from streamlog.tables.sketches import Distinct, Quantile
from streamlog.topology import Aggregation, Aggregator, WholeNumbers

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
    made = [
        _Made(f"column {column!r} of {name!r}", each, hints[column], value.known)
        for column, each in columns.items()
    ]
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
    fields = tuple(_taken(column, value.known) for column in columns.values())
    return WholeNumbers((*columns.values(),), fields, is_row=True)


class _Made:
    """A column at work, and how its state is written down."""

    __slots__ = ("column", "dump", "form", "kind", "load", "told")

    def __init__(
        self, what: str, aggregator: Aggregator[Any, Any], hint: object, value: object
    ) -> None:
        fold = _fold(aggregator, hint)
        classes = classes_of(aggregator, hint, value)
        field: Any = _taken(aggregator, value)
        if aggregator.by is not None:
            field = _ranked(what, aggregator, value, classes)
            classes = None  # What the field gives has been looked at.
        check = None if classes is None else checking(what, classes)
        self.column = Column(aggregator.name, field, fold, classes=classes, check=check)
        state = state_form(aggregator, hint, value)
        self.kind, self.told = state.kind, state.told
        self.dump: Callable[[Any], Any] = _same
        self.load: Callable[[Any], Any] = _same
        """Between the state and what is written, if that is something else."""
        self.form: list[object] = [aggregator.name]
        kept = _KEPT_OPTIONS.get(aggregator.name, ())
        self.form += [aggregator.options[each] for each in kept if each in aggregator.options]
        if hasattr(fold, "dump"):
            self.dump, self.load = cast("Any", fold).dump, cast("Any", fold).load
        elif state.convert is not None:
            self.dump, self.load = state.convert
        if self.is_converted or aggregator.by is not None:
            self.form.append("packed" if self.kind is bytes else "by")

    @property
    def is_converted(self) -> bool:
        """Whether what is written is not the state itself."""
        return self.dump is not _same


def _same(state: Any) -> Any:  # noqa: ANN401 - a state
    return state


def _fold(aggregator: Aggregator[Any, Any], hint: object) -> Fold | None:
    if aggregator.name == "mean" and is_decimal(hint):
        return DecimalMean()
    make = _FOLDS.get(aggregator.name)
    return None if make is None else make(aggregator)


class _RowSerde(TypedPackedSerde[Any]):
    """The states of all columns; they come back as the list that is folded into."""

    def __init__(self, columns: Mapping[str, Aggregator[Any, Any]], made: list[_Made]) -> None:
        super().__init__(cast("Any", tuple)[tuple(each.kind for each in made)])
        self._told = cast("Any", tuple)[tuple(each.told for each in made)]
        self._columns = [[name, *each.form] for name, each in zip(columns, made, strict=True)]

    @property
    def form(self) -> object:
        """What the bytes look like, as plain data (`serdes.form_of`)."""
        return {"columns": self._columns, "row": {"msgpack": schema_of(self._told)}}

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


def _taken(aggregator: Aggregator[Any, Any], value: object) -> Callable[[Any], Any] | str | None:
    """What the column's field gives of a value; the name alone if it is an attribute."""
    field = aggregator.field
    return getter(value, field) if isinstance(field, str) else field


def _ranked(
    what: str,
    aggregator: Aggregator[Any, Any],
    value: object,
    classes: tuple[type, ...] | None,
) -> Callable[[Any], Any]:
    """What the column's field gives, behind what it is ordered by."""
    field, by = _taken(aggregator, value), aggregator.by
    order = getter(value, by) if isinstance(by, str) else by
    take = cast("Any", attrgetter(field) if isinstance(field, str) else field)
    rank = cast("Any", attrgetter(order) if isinstance(order, str) else order)
    ranks = PACKABLE if found_type(by, value) is object else None
    if classes is None and ranks is None:
        return lambda found: (rank(found), take(found))
    check_rank = None if ranks is None else checking(f"{what}: by", ranks)
    check = None if classes is None else checking(what, classes)

    def checked(found: Any) -> tuple[Any, Any]:  # noqa: ANN401 - the stream's values
        place, taken = rank(found), take(found)
        if check_rank is not None and type(place) not in cast("Any", ranks):
            check_rank(place)
        if check is not None and type(taken) not in cast("Any", classes):
            check(taken)
        return place, taken

    return checked


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
    found = None
    if column.field is not None:
        found = _given(what, column.field, value)
        if found is not None:
            _check_values(what, column, column.field, found)
            gives = gives or bare(found)
    if column.by is not None:
        rank = _given(what, column.by, value)
        _check_present(what, column.by, rank)
        _check_order(what, column, column.by, rank)
    if column.name == "sum" and isinstance(gives, type) and issubclass(gives, int):
        gives = int  # Of booleans and enumerations, too.
    if column.name == "mean" and is_decimal(hint) and (found is None or is_decimal(found)):
        gives = Decimal
    if isinstance(gives, type) and not takes(hint, gives):
        raise TopologyError(
            f"{what} is declared as {type_name(hint)}, and agg.{column.name} gives "
            f"{type_name(gives)}: declare the field as that"
        )
    if column.name == "sum" and found is None and not are_numbers(hint):
        raise TopologyError(f"{what} is declared as {type_name(hint)}, and agg.sum gives a number")


def _given(what: str, field: Callable[[Any], Any] | str, value: object) -> object:
    """The type of what a field gives; None if that is not known."""
    if isinstance(field, str):
        return field_type(value, field, what)
    return returned(field).declared


def _check_values(
    what: str, column: Aggregator[Any, Any], field: Callable[[Any], Any] | str, found: object
) -> None:
    is_compared = column.name in _COMPARED or (column.name == "top" and column.by is None)
    if column.name in _OF_NUMBERS or is_compared:
        _check_present(what, field, found)
    if column.name in _OF_NUMBERS and not are_numbers(found):
        raise TopologyError(
            f"{what}: {_shown(field)} is {type_name(found)}, and agg.{column.name} takes numbers"
        )
    if is_compared:
        _check_order(what, column, field, found)
    if column.name == "distinct" and has_model(found):
        raise TopologyError(
            f"{what}: {_shown(field)} is {type_name(found)}, and agg.distinct can't tell such "
            "models apart: count a field of it, as in lambda v: v.id"
        )


def _check_order(
    what: str, column: Aggregator[Any, Any], field: Callable[[Any], Any] | str, found: object
) -> None:
    if found is not None and not are_ordered(found):
        instead = (
            "compare one of its fields, as in by='time'"
            if column.name in ("top", "first", "last")
            else f"take one of its fields, or agg.top(1, ..., by=...) instead of agg.{column.name}"
        )
        raise TopologyError(
            f"{what}: {_shown(field)} is {type_name(found)}, whose values have no order: {instead}"
        )


def _shown(field: Callable[[Any], Any] | str) -> str:
    if isinstance(field, str):
        return f"field {field!r}"
    return f"what {getattr(field, '__name__', field)!r} returns"


def _check_present(what: str, field: Callable[[Any], Any] | str, found: object) -> None:
    if found is not None and may_be_none(found):
        name = field if isinstance(field, str) else "field"
        raise TopologyError(
            f"{what}: {_shown(field)} is {type_name(found)}, and None has no order and adds to "
            f"nothing: say what is to count then, as in lambda v: v.{name} or 0"
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
