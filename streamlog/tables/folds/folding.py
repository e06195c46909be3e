"""Rows and how values fold into them: count, sum, min, max, mean and others, several at once.

An aggregation keeps a `Row` per key; the state of the built-in columns in it is a list with an
entry per column. Results are exact in the order of the records: integers have no bounds, floats are
added one by one, decimals are added exactly, a mean keeps sum and count, and NaN stays NaN. The
rule of the file: it may be compiled, so numbers of the user's stay objects, and errors of the
user's fields pass through unchanged. Not done here: columns that need more than a line
(`column_folds`), which row a record belongs to (`processing`), and how a state is written (`dsl`).
"""

from __future__ import annotations

from decimal import Decimal
from math import inf
from typing import TYPE_CHECKING, Protocol

from streamlog.records import buffer_writes, packing
from streamlog.serdes.erased_types import UserFunction, UserObject, UserState, UserValue
from streamlog.tables.folds import column_folds, gc_hints, prefetch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "KINDS",
    "Column",
    "Columns",
    "Fold",
    "Row",
    "let_go",
    "take_up",
    "write_down",
    "write_down_dirty",
    "written",
]

_COUNT, _SUM, _MIN, _MAX, _MEAN, _FOLD = range(6)
KINDS = ("count", "sum", "min", "max", "mean")
"""The columns that are folded here."""
_AHEAD = prefetch.AHEAD
_FAR = buffer_writes.AHEAD
_WIDTH_MAX = 4


class Fold(Protocol):
    """Port: how the values of any other column fold into a state.

    `add` and `merge` may change their first argument, and return it or a new state.
    """

    def initial(self) -> UserState:
        """Return the state of no values."""

    def add(self, state: UserState, found: UserValue) -> UserState:
        """Return the state with one more value."""

    def merge(self, state: UserState, later: UserState) -> UserState:
        """Return the state of both together; neither argument is used afterwards."""

    def result(self, state: UserState) -> UserValue:
        """Return the result of the state; it does not change with the state."""


class Row:
    """The state of one key (and window), and the largest timestamp of its records.

    A state of a few whole numbers is kept as adjacent numbers, not as a list of objects: less
    memory to read, and less for the garbage collector to walk.
    """

    __slots__ = (
        "dirty",
        "kept",
        "key",
        "number",
        "numbers",
        "raw",
        "time_ms",
        "timestamp_ms",
        "touched",
        "width",
    )

    def __init__(self, state: object, timestamp_ms: int, raw: bytes = b"") -> None:
        self.kept: UserState = state
        """The state, unless it is in `numbers`."""
        self.numbers = [0, 0, 0, 0]
        """The state, if it consists of `width` whole numbers of 64 bits."""
        self.width = 0
        """The length of the state in `numbers`; 0 if the state is in `kept`."""
        self.timestamp_ms = timestamp_ms
        self.raw = raw
        """The key of the row, serialized, without the prefix of its store."""
        self.key: bytes | None = None
        """The key in the store of its task, once it has been written there."""
        self.dirty = False
        """Whether the row has changed since it was written to the store."""
        self.touched = False
        """Whether the row has changed since it was last forwarded; for emission at commits."""
        self.number = 0
        """The number of the record that last changed the row; set only if `touched` is."""
        self.time_ms = 0
        """The stream time at that record."""
        gc_hints.leave_out(self)  # A state has no reference to its row.

    @property
    def state(self) -> UserState:
        """The state; whole numbers come as a new list, which has to be set if it changes."""
        if self.width == 0:
            return self.kept
        return [self.numbers[at] for at in range(self.width)]

    @state.setter
    def state(self, state: UserState) -> None:
        self.kept = state
        self.width = 0


def _narrow(row: Row) -> None:
    """Move a list of whole numbers to `numbers`, if they are few and none is too large."""
    state = row.kept
    if type(state) is not list or not _are_long(state):
        return
    for at in range(len(state)):
        row.numbers[at] = state[at]
    row.width = len(state)
    row.kept = None


def _are_long(state: list[UserState]) -> bool:
    if len(state) > _WIDTH_MAX:
        return False
    for number in state:  # noqa: SIM110 - compiled, this is C
        if type(number) is not int or not packing.is_long(number):
            return False
    return True


def written(rows: list[Row], dumps: Callable[[UserState], bytes]) -> list[bytes]:
    """Return the rows as bytes: their timestamps in eight bytes, then their states."""
    found: list[bytes] = []
    for at, row in enumerate(rows):
        if at % _AHEAD == 0:
            prefetch.warm_rows(rows, at)
        found.append(packing.stamped(row.timestamp_ms, dumps(row.state)))
    return found


def let_go(column: list[UserValue]) -> None:
    """Clear a long list, prefetching entries ahead."""
    for at in range(len(column)):
        if at % _FAR == 0:
            buffer_writes.bring_near(column, at + _FAR)
        column[at] = None
    column.clear()


def write_down(
    rows: list[Row],
    head: bytes,
    dumps: Callable[[UserState], bytes],
    keys: list[bytes],
    values: list[bytes | None],
    *,
    packs: bool = False,
) -> None:
    """Append each row's key in the store and its bytes, see `written`, to columns of changes.

    In the store, a row's own key follows `head`, which must be equal in each call for a row. The
    rows are not dirty afterwards. With `packs`, `dumps` returns plain MessagePack, so a state of a
    few whole numbers is written without calling it.
    """
    for at, row in enumerate(rows):
        if at % _AHEAD == 0:
            prefetch.warm_rows(rows, at)
        _write_down(row, head, dumps, keys, values, packs=packs)


def write_down_dirty(
    rows: dict[bytes, Row],
    head: bytes,
    dumps: Callable[[UserState], bytes],
    keys: list[bytes],
    values: list[bytes | None],
    *,
    packs: bool = False,
) -> None:
    """As `write_down`, for all dirty rows, in the order in which they were created.

    If most rows are dirty, this is faster: this is their order in memory, and that of their keys
    and of their changes that wait to be stored.
    """
    for at, row in enumerate(rows.values()):
        if at % _AHEAD == 0:
            prefetch.warm_next(rows, at)
        if row.dirty:
            _write_down(row, head, dumps, keys, values, packs=packs)


def take_up(
    raws: list[bytes],
    found: list[bytes | None],
    start: int,
    rows: dict[bytes, Row],
    loads: Callable[[bytes, bytes], Row],
    *,
    are_numbers: bool = False,
) -> list[bytes]:
    """Add the rows of these keys, read from the store, to `rows`; return the keys that have none.

    Args:
        raws: the keys, without the prefix of the store.
        found: what the store has of each key (`written`).
        start: the index of the first key in `found`.
        rows: receives the rows.
        loads: reads a row from its bytes, and its key.
        are_numbers: whether states are lists of whole numbers, so that a row is read without
            `loads` if they are few and none is too large.

    Raises:
        IndexError: the store was asked for fewer keys.
    """
    if start < 0 or start + len(raws) > len(found):
        raise IndexError(f"no {len(raws)} values from {start} on, of {len(found)}")
    absent: list[bytes] = []
    for at in range(len(raws)):
        raw, data = raws[at], found[start + at]
        if data is None:
            absent.append(raw)
            continue
        state = packing.numbers_of(data) if are_numbers else None
        rows[raw] = loads(data, raw) if state is None else Row(state, packing.time_of(data), raw)
    return absent


def _write_down(
    row: Row,
    head: bytes,
    dumps: Callable[[UserState], bytes],
    keys: list[bytes],
    values: list[bytes | None],
    *,
    packs: bool,
) -> None:
    value = None
    if packs and row.width:
        value = packing.stamped_longs(row.timestamp_ms, row.numbers, row.width)
    elif packs:
        value = packing.stamped_numbers(row.timestamp_ms, row.kept)
    if value is None:
        state = row.state if row.width else row.kept
        value = packing.stamped(row.timestamp_ms, dumps(state))
    values.append(value)
    key = row.key
    if key is None:
        key = row.key = packing.joined(head, row.raw)
    keys.append(key)
    row.dirty = False


class Column:
    """One of the built-in columns, over a field of the values."""

    __slots__ = ("attribute", "check", "classes", "fold", "get", "kind")

    def __init__(
        self,
        kind: str,
        field: Callable[[UserValue], UserValue] | str | None,
        fold: Fold | None = None,
        *,
        classes: tuple[type, ...] | None = None,
        check: Callable[[UserValue], None] | None = None,
    ) -> None:
        """`field` is a function of the value, or the name of an attribute; None for a count.

        `fold` folds the field, if `kind` is none of KINDS. If there are `classes`, a field of
        another type is passed to `check`, which may refuse it.
        """
        self.classes = classes
        self.check: UserObject = check
        self.kind = _FOLD if fold is not None else KINDS.index(kind)
        self.fold: UserObject = fold
        self.attribute = field if isinstance(field, str) else None
        self.get: UserObject = field

    def initial(self) -> object:
        """Return the state of no values."""
        if self.kind == _FOLD:
            return self.fold.initial()
        if self.kind == _MEAN:
            return 0, 0
        return None if self.kind in (_MIN, _MAX) else 0

    def taken(self, value: UserValue) -> UserValue:
        """Return the field of a value that the column folds."""
        if self.kind == _COUNT:
            return None
        return getattr(value, self.attribute) if self.attribute is not None else self.get(value)

    def folded(self, state: UserState, found: UserValue) -> UserState:
        """Return the state with one more field that `taken` has returned."""
        if self.kind == _COUNT:
            return state + 1
        if self.classes is not None and type(found) not in self.classes:
            self.check(found)
        if self.kind == _SUM:
            return _sum(state, found)
        if self.kind == _MEAN:
            return _sum(state[0], found), state[1] + 1
        if self.kind == _FOLD:
            return self.fold.add(state, found)
        return self._extreme(state, found)

    def folds(self, row: Row, at: int, found: UserValue) -> bool:
        """Fold a field that `taken` has returned into a number of the row; False if impossible."""
        if self.kind == _COUNT:
            row.numbers[at] += 1
            return True
        if type(found) is not int or not packing.is_long(found):
            return False
        state, more = row.numbers[at], found
        # A sum beyond 64 bits can't be kept as a number in C: the caller widens the row.
        if self.kind == _SUM:
            if not packing.is_long_sum(state, more):
                return False
            row.numbers[at] = state + more
        elif self.kind == _MIN:
            row.numbers[at] = min(state, more)
        else:
            row.numbers[at] = max(state, more)
        return True

    def merged(self, state: UserState, later: UserState) -> UserState:
        """Return the state of both together; neither argument is used afterwards."""
        if self.kind == _FOLD:
            return self.fold.merge(state, later)
        if self.kind == _COUNT or self.kind == _SUM:  # noqa: PLR1714 - compiled, this is C
            return _sum(state, later)
        if self.kind == _MEAN:
            return _sum(state[0], later[0]), state[1] + later[1]
        return state if later is None else self._extreme(state, later)

    def _extreme(self, state: UserState, found: UserValue) -> UserState:
        if state is None:
            return found
        if type(found) is float and _is_nan(found):
            return found  # NaN wins, in any order of the values.
        # A NaN in the state stays: no comparison with it is true, and then `min` and `max` return
        # their first argument.
        if self.kind == _MIN:
            return min(state, found)
        return max(state, found)

    def result(self, state: UserState) -> UserValue:
        """Return the result of the state."""
        if self.kind == _FOLD:
            return self.fold.result(state)
        return _mean(state[0], state[1]) if self.kind == _MEAN else state


def _sum(state: UserState, found: UserValue) -> UserState:
    if type(found) is not float and (type(found) is Decimal or type(state) is Decimal):
        return column_folds.exact_sum(state, found)
    return state + found


def _is_nan(number: float) -> bool:
    return number != number  # noqa: PLR0124 - only NaN differs from itself


def _mean(total: UserValue, count: UserValue) -> UserValue:
    if type(total) is Decimal:
        return float(column_folds.quotient(total, count))
    # A total without a bound may exceed the largest float.
    try:
        return total / count
    except OverflowError:
        return inf if total > 0 else -inf


class Columns:
    """Columns that are folded together, and the result row that they make."""

    __slots__ = ("_are_numbers", "_are_sums", "_columns", "_into", "_names")

    def __init__(
        self, columns: Sequence[Column], into: UserFunction, names: Sequence[str] | None
    ) -> None:
        """`into` takes the results by these names, or by position if `names` is None."""
        self._columns = tuple(columns)
        self._into = into
        self._names = None if names is None else tuple(names)
        kinds = {column.kind for column in columns}
        self._are_numbers = len(columns) <= _WIDTH_MAX and kinds <= {_COUNT, _SUM, _MIN, _MAX}
        """Whether states are whole numbers if the folded fields are."""
        self._are_sums = self._are_numbers and kinds <= {_COUNT, _SUM}
        """Whether the state of no values consists of whole numbers, too."""

    def row(self, raw: bytes) -> Row:
        """Return a row of no values."""
        if not self._are_sums:
            return Row(self.initial(), -1, raw)
        row = Row(None, -1, raw)
        row.width = len(self._columns)
        return row

    def fold(self, row: Row, value: UserValue) -> None:
        """Fold one value into each column of the row."""
        for at, column in enumerate(self._columns):
            found = column.taken(value)
            if row.width:
                if column.folds(row, at, found):
                    continue
                # Widen the row: its numbers become a list of objects.
                # 1. Columns 0 and 1 fold the value into their numbers.
                # 2. The sum of column 2 exceeds 64 bits: `row.state` copies the numbers, 0 and 1
                #    with this value, 2 without it.
                # 3. Column 2 and the following ones fold into the list: each folds the value once.
                row.state = row.state
            row.kept[at] = column.folded(row.kept[at], found)
        # A row without values, or one that was widened, may consist of small numbers by now.
        if row.width == 0 and self._are_numbers:
            _narrow(row)

    def initial(self) -> list[UserState]:
        """Return the states of no values."""
        return [column.initial() for column in self._columns]

    def add(self, state: list[UserState], value: UserValue) -> list[UserState]:
        """Fold one value into each column; returns the given list."""
        for at, column in enumerate(self._columns):
            state[at] = column.folded(state[at], column.taken(value))
        return state

    def merge(self, state: list[UserState], later: list[UserState]) -> list[UserState]:
        """Merge the second list into the first, column by column; the second is used up."""
        for at, column in enumerate(self._columns):
            state[at] = column.merged(state[at], later[at])
        return state

    def result_of(self, row: Row) -> UserValue:
        """Return the result of the row's state."""
        width, numbers = row.width, row.numbers
        if width and self._names is None:
            # The result of these columns is the number itself.
            if width == 1:
                return self._into(numbers[0])
            if width == 2:  # noqa: PLR2004 - as many as are named
                return self._into(numbers[0], numbers[1])
            if width == 3:  # noqa: PLR2004 - as many as are named
                return self._into(numbers[0], numbers[1], numbers[2])
        return self.result(row.state if width else row.kept)

    def result(self, state: list[UserState]) -> UserValue:
        """Return the result of a state; it shares nothing with the state."""
        columns = self._columns
        if self._names is None:
            # Up to three columns need no list and no tuple.
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

    def _of(self, at: int, state: list[UserState]) -> UserValue:
        column = self._columns[at]
        return column.result(state[at])
