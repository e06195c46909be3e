"""Rows and how values fold into them: count, sum, min, max, mean and others, several at once.

What an aggregation keeps per key is a `Row`; the built-in columns' state in it is a list with an
entry per column. Exact in the order of the records: integers have no bounds, floats are added one
by one, a mean keeps sum and count. The rule of the file: it may be compiled, so numbers of the
user's stay objects, and what the user's fields raise goes through as it is. Not done here: columns
that need more than a line (`folds`, `sketches`), which row a record belongs to (`processing`), and
how a state is written down (`dsl/columns`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from streamlog.records import packing
from streamlog.tables import warming

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "KINDS",
    "Column",
    "Columns",
    "Fold",
    "Row",
    "put_all",
    "write_down",
    "written",
]

_COUNT, _SUM, _MIN, _MAX, _MEAN, _FOLD = range(6)
KINDS = ("count", "sum", "min", "max", "mean")
"""The columns that are folded here."""
_AHEAD = warming.AHEAD


class Fold(Protocol):
    """Port: how the values of any other column fold into a state.

    `add` and `merge` may change the state they are given first, and return it or a new one.
    """

    def initial(self) -> Any:  # noqa: ANN401 - a state
        """The state of no values."""

    def add(self, state: Any, found: Any) -> Any:  # noqa: ANN401 - as above
        """The state with one more value."""

    def merge(self, state: Any, later: Any) -> Any:  # noqa: ANN401 - as above
        """The state of what both have had; neither is used any more."""

    def result(self, state: Any) -> Any:  # noqa: ANN401 - as above
        """What the state stands for; does not change with it."""


class Row:
    """The state of one key (and window): what has been folded, and the largest timestamp."""

    __slots__ = ("dirty", "key", "number", "raw", "state", "time_ms", "timestamp_ms", "touched")

    def __init__(self, state: object, timestamp_ms: int, raw: bytes = b"") -> None:
        self.state: Any = state
        self.timestamp_ms = timestamp_ms
        self.raw = raw
        """Its key."""
        self.key: bytes | None = None
        """That in the store of its task, once it has been written there."""
        self.dirty = False
        """Whether the store does not have it as it is."""
        self.touched = False
        """Whether it has changed since it was last handed on, where that is done at commits."""
        self.number = 0
        """There: which record has changed it last, and how far stream time had come by then."""
        self.time_ms = 0


def written(rows: list[Row], dumps: Callable[[Any], bytes]) -> list[bytes]:
    """The rows as bytes: their timestamps in eight bytes, then their states."""
    found: list[bytes] = []
    for at, row in enumerate(rows):
        if at % _AHEAD == 0:
            warming.warm_rows(rows, at)
        found.append(packing.stamped(row.timestamp_ms, dumps(row.state)))
    return found


def put_all(rows: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Each value by its key into a dictionary of many, brought near some entries ahead."""
    for at in range(len(keys)):
        if at % _AHEAD == 0:
            warming.warm_slots(rows, keys, at)
        rows[keys[at]] = values[at]


def write_down(
    rows: list[Row],
    head: bytes,
    dumps: Callable[[Any], bytes],
    keys: list[bytes],
    values: list[bytes | None],
    *,
    packs: bool = False,
) -> None:
    """Add each row's key in the store and its bytes, see `written`, to columns of changes.

    In the store its own key comes behind a head, which has to be the same for a row each time.
    What is added is not dirty any more. `packs`: `dumps` gives MessagePack as it is, so where a
    state is a few whole numbers nobody has to be asked.
    """
    for at, row in enumerate(rows):
        if at % _AHEAD == 0:
            warming.warm_rows(rows, at)
        value = packing.stamped_numbers(row.timestamp_ms, row.state) if packs else None
        if value is None:
            value = packing.stamped(row.timestamp_ms, dumps(row.state))
        values.append(value)
        key = row.key
        if key is None:
            key = row.key = packing.joined(head, row.raw)
        keys.append(key)
        row.dirty = False


class Column:
    """One of the built-in columns, over a field of the values."""

    __slots__ = ("attribute", "fold", "get", "kind")

    def __init__(
        self, kind: str, field: Callable[[Any], Any] | str | None, fold: Fold | None = None
    ) -> None:
        """`field` is a function of the value, or the name of an attribute; None for a count.

        `fold` folds what the field gives, if `kind` is none of KINDS.
        """
        self.kind = _FOLD if fold is not None else KINDS.index(kind)
        self.fold: Any = fold
        self.attribute = field if isinstance(field, str) else None
        self.get: Any = field

    def initial(self) -> object:
        """The state of no values."""
        if self.kind == _FOLD:
            return self.fold.initial()
        if self.kind == _MEAN:
            return 0, 0
        return None if self.kind in (_MIN, _MAX) else 0

    def folded(self, state: Any, value: Any) -> Any:  # noqa: ANN401 - numbers of the user's
        """The state with one more value."""
        if self.kind == _COUNT:
            return state + 1
        found = getattr(value, self.attribute) if self.attribute is not None else self.get(value)
        if self.kind == _SUM:
            return state + found
        if self.kind == _MEAN:
            return state[0] + found, state[1] + 1
        if self.kind == _FOLD:
            return self.fold.add(state, found)
        return self._extreme(state, found)

    def merged(self, state: Any, later: Any) -> Any:  # noqa: ANN401 - as above
        """The state of what both have had; neither is used any more."""
        if self.kind == _FOLD:
            return self.fold.merge(state, later)
        if self.kind == _COUNT or self.kind == _SUM:  # noqa: PLR1714 - compiled, this is C
            return state + later
        if self.kind == _MEAN:
            return state[0] + later[0], state[1] + later[1]
        return state if later is None else self._extreme(state, later)

    def _extreme(self, state: Any, found: Any) -> Any:  # noqa: ANN401 - as above
        if state is None:
            return found
        if self.kind == _MIN:
            return min(state, found)
        return max(state, found)

    def result(self, state: Any) -> Any:  # noqa: ANN401 - as above
        """What the state stands for."""
        if self.kind == _FOLD:
            return self.fold.result(state)
        return state[0] / state[1] if self.kind == _MEAN else state


class Columns:
    """Columns that are folded together, and the row that they make."""

    __slots__ = ("_columns", "_into", "_names")

    def __init__(
        self, columns: Sequence[Column], into: Callable[..., Any], names: Sequence[str] | None
    ) -> None:
        """`into` takes the results by these names; None: in their order."""
        self._columns = tuple(columns)
        self._into = into
        self._names = None if names is None else tuple(names)

    def initial(self) -> list[Any]:
        """The states of no values."""
        return [column.initial() for column in self._columns]

    def add(self, state: list[Any], value: Any) -> list[Any]:  # noqa: ANN401 - the stream's values
        """The same list, with one more value in each column."""
        for at, column in enumerate(self._columns):
            state[at] = column.folded(state[at], value)
        return state

    def merge(self, state: list[Any], later: list[Any]) -> list[Any]:
        """The first list, with what the second has had in each column; it is used up."""
        for at, column in enumerate(self._columns):
            state[at] = column.merged(state[at], later[at])
        return state

    def result(self, state: list[Any]) -> Any:  # noqa: ANN401 - an `into`
        """The row; nothing in it changes with the state."""
        columns = self._columns
        if self._names is None:
            # A row of few columns without a list and a tuple on the way.
            if len(columns) == 1:
                return self._into(self._of(0, state))
            if len(columns) == 2:  # noqa: PLR2004 - as many as are named
                return self._into(self._of(0, state), self._of(1, state))
            if len(columns) == 3:  # noqa: PLR2004 - as many as are named
                return self._into(self._of(0, state), self._of(1, state), self._of(2, state))
        results = [self._of(at, state) for at in range(len(columns))]
        if self._names is None:
            return self._into(*results)
        return self._into(**dict(zip(self._names, results, strict=True)))

    def _of(self, at: int, state: list[Any]) -> Any:  # noqa: ANN401 - as above
        column = self._columns[at]
        return column.result(state[at])
