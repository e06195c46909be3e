"""agg: the built-in columns of an aggregation: count, sum, min, max, mean.

Each folds one number or comparable value per record into a state, and gives a result. Rule
of the file: a state is plain data, and written down so that it comes back as it was. How values
fold is in `tables/folding`; `row_aggregation` puts the columns of one row together.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import typing
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast, is_typeddict

import msgspec

from streamlog.dsl.shapes import TypedPackedSerde
from streamlog.errors import TopologyError
from streamlog.serdes import serde_for, type_name
from streamlog.tables.folding import Column, Columns
from streamlog.topology import Aggregation

V = TypeVar("V")
"""A value that is aggregated."""
R = TypeVar("R")
"""What a column results in."""

Field = Callable[[V], Any] | str
"""What is taken of each value: a function, or the name of a field."""
_NUMBERS = (int, float, bool, str, Any, None)
"""Types whose states come back from MessagePack exactly as they were without being told."""


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregator(Generic[V, R]):
    """One column."""

    name: str
    """What it does: one of `folding.KINDS`."""
    field: Field[V] | None = None
    """What of: None for a count."""


class agg:  # noqa: N801 - a namespace: agg.count(), agg.sum(...)
    """The built-in columns. `field` is a function of the value, or the name of a field."""

    @staticmethod
    def count() -> Aggregator[Any, int]:
        """How many records."""
        return Aggregator("count")

    @staticmethod
    def sum(field: Field[V]) -> Aggregator[V, Any]:
        """The sum; 0 of no records."""
        return Aggregator("sum", field)

    @staticmethod
    def min(field: Field[V]) -> Aggregator[V, Any]:
        """The smallest."""
        return Aggregator("min", field)

    @staticmethod
    def max(field: Field[V]) -> Aggregator[V, Any]:
        """The largest."""
        return Aggregator("max", field)

    @staticmethod
    def mean(field: Field[V]) -> Aggregator[V, float]:
        """The arithmetic mean."""
        return Aggregator("mean", field)


def row_aggregation(
    name: str, into: type[Any], columns: Mapping[str, Aggregator[Any, Any]]
) -> Aggregation:
    """The columns folded together, their results as an `into`.

    Raises:
        TopologyError: a column is not a field of `into`, or a field has no column.
        SerdeError: `into` is no type that can be written down.
    """
    serde_for(cast("Any", into))
    hints = typing.get_type_hints(into)
    _check_columns(name, into, columns, hints)
    kinds = tuple(_state_type(column, hints.get(key)) for key, column in columns.items())
    # States are written in the order of the columns, whatever that of the fields is.
    names = None if _takes_in_order(into, tuple(columns)) else tuple(columns)
    folded = Columns([_column(aggregator) for aggregator in columns.values()], into, names)
    return Aggregation(folded.initial, folded.add, folded.result, _RowSerde(kinds, columns))


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


def _column(aggregator: Aggregator[Any, Any]) -> Column:
    field = aggregator.field
    if isinstance(field, str) and "." in field:
        return Column(aggregator.name, attrgetter(field))
    return Column(aggregator.name, field)


class _RowSerde(TypedPackedSerde[Any]):
    """The states of all columns; they come back as the list that is folded into."""

    def __init__(self, kinds: tuple[Any, ...], columns: Mapping[str, Aggregator[Any, Any]]) -> None:
        super().__init__(cast("Any", tuple)[kinds])
        self._columns = [[name, column.name] for name, column in columns.items()]

    @property
    def form(self) -> object:
        """What the bytes look like, as plain data (`serdes.form_of`)."""
        return {"columns": self._columns, "row": super().form}

    def loads(self, data: bytes) -> list[Any]:
        """The states."""
        return list(super().loads(data))


def _state_type(column: Aggregator[Any, Any], hint: object) -> Any:  # noqa: ANN401 - a type form
    if column.name == "mean":
        return tuple[int | float, int]
    if column.name == "count" or hint in _NUMBERS:
        return Any
    return hint if column.name == "sum" else hint | None  # type: ignore[operator]


def _check_columns(
    name: str, into: type[Any], columns: Mapping[str, object], hints: Mapping[str, object]
) -> None:
    for column, aggregator in columns.items():
        if not isinstance(aggregator, Aggregator):
            raise TopologyError(
                f"column {column!r} of {name!r} must be one of agg.count(), agg.sum(...), "
                f"agg.min(...), agg.max(...), agg.mean(...), not {aggregator!r}"
            )
        if column not in hints:
            near = difflib.get_close_matches(column, hints, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TopologyError(
                f"{type_name(into)} has no field {column!r}, which {name!r} aggregates{hint}"
            )
    missing = sorted(_required(into, hints) - {*columns})
    if missing:
        raise TopologyError(
            f"{name!r} gives no value for {', '.join(missing)} of {type_name(into)}: add a "
            "column for each, or give the field a default"
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
