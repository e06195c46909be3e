"""Polling: which rows a poll asks for, in which order, and which offset stands behind them.

A poll continues behind an offset, page by page, in an order in which the offset rises. Its four
modes are those of Kafka Connect's JDBC source:

- incrementing: a column that only rises with new rows. Offset {"incrementing": 42}.
- timestamp: a column of the last change. Offset {"timestamp": "2026-01-02T03:04:05"}; a page ends
  between two times, because rows of one time have no order.
- timestamp+incrementing: both, so a page may end anywhere.
- bulk: all rows, again at every poll, in the order of the primary key. Offset {"run": 3, "after":
  [42]}: within a run the rows behind a key, none behind the run's last page.

Rule: pure. Values of offsets are numbers or text, which a database compares with its own types.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Literal, TypeAlias

from streamlog.connect import Json, SourceOffset
from streamlog.errors import ConfigError

Mode: TypeAlias = Literal["bulk", "incrementing", "timestamp", "timestamp+incrementing"]
TIES_MAX: Final = 100_000
"""How many rows may have one time in mode "timestamp"; they come in one Read."""


@dataclass(frozen=True, slots=True)
class Page:
    """One statement of a poll.

    Attributes:
        where: conditions with a mark for each value; "" for none.
        order: the columns to order by, quoted.
        values: the values of the marks.
        limit: how many rows at most.
    """

    where: str
    order: tuple[str, ...]
    values: tuple[object, ...]
    limit: int

    def statement(self, rows: str) -> str:
        """Return the whole statement over rows, a quoted table or a query in parentheses."""
        where = f" WHERE {self.where}" if self.where else ""
        return f"SELECT * FROM {rows}{where} ORDER BY {', '.join(self.order)} LIMIT {self.limit}"  # noqa: S608 - quoted names


@dataclass(frozen=True, slots=True)
class Polling:
    """How a table or query is polled.

    Attributes:
        mode: the mode.
        incrementing: the column that rises; "" in modes without one.
        timestamp: the column of the last change; "" in modes without one.
        key: in mode "bulk", the columns of the primary key.
        limit: how many rows a page has at most, 1 or more.
    """

    mode: Mode
    incrementing: str
    timestamp: str
    key: tuple[str, ...]
    limit: int

    def columns(self) -> tuple[str, ...]:
        """Return the columns that the order follows."""
        if self.mode == "bulk":
            return self.key
        names = {
            "incrementing": (self.incrementing,),
            "timestamp": (self.timestamp,),
            "timestamp+incrementing": (self.timestamp, self.incrementing),
        }
        return names[self.mode]

    def page(
        self,
        offset: SourceOffset | None,
        bound: SettledBound | None,
        sql: SqlText,
        *,
        is_tie: bool = False,
    ) -> Page:
        """Return the next page behind an offset.

        Args:
            offset: the offset; None from the beginning.
            bound: rows from there on are not settled yet; None: all rows are.
            sql: how the database writes names and marks.
            is_tie: whether to ask for the rows that have the first time, all of them.
        """
        columns = tuple(sql.quoted(each) for each in self.columns())
        conditions: list[str] = []
        values: list[object] = []
        after = self._after(offset)
        # In mode "bulk" a run that begins has nothing behind which to read.
        if after:
            # Compared as rows: (a, b) > (1, 2) is a > 1, or a = 1 and b > 2.
            marks = ", ".join([sql.mark] * len(after))
            compare = "=" if is_tie else ">"
            left = ", ".join(columns[: len(after)])
            many = len(after) > 1
            conditions.append(
                f"({left}) {compare} ({marks})" if many else f"{left} {compare} {marks}"
            )
            values += after
        if bound is not None:
            # The bound is of this poll, so all of its pages end alike.
            conditions.append(f"{bound.column} {bound.compare} {sql.mark}")
            values.append(bound.value)
        limit = TIES_MAX + 1 if is_tie else self.limit
        return Page(" AND ".join(conditions), columns, tuple(values), limit)

    def _after(self, offset: SourceOffset | None) -> Sequence[object]:
        if offset is None:
            return ()
        if self.mode == "bulk":
            after = offset.get("after")
            return after if isinstance(after, list) else ()
        names = {"incrementing": ("incrementing",), "timestamp": ("timestamp",)}
        wanted = names.get(self.mode, ("timestamp", "incrementing"))
        found = [offset.get(name) for name in wanted]
        if None in found:
            raise ConfigError(
                f"the offset {dict(offset)} is not one of mode {self.mode!r}: put the mode back, "
                "or reset the connector's offsets"
            )
        return found

    def offset_of(self, row: Mapping[str, object], before: SourceOffset | None) -> dict[str, Json]:
        """Return the offset behind a row.

        Raises:
            ConfigError: a column that the order follows is missing or null.
        """
        parts: list[Json] = []
        for name in self.columns():
            if row.get(name) is None:
                what = "is null in a row" if name in row else "is not among the columns"
                raise ConfigError(f"column {name}, by which mode {self.mode!r} goes, {what}")
            parts.append(json_of(row[name]))
        if self.mode == "bulk":
            return {"run": run_of(before), "after": parts}
        names = {"incrementing": ["incrementing"], "timestamp": ["timestamp"]}
        return dict(zip(names.get(self.mode, ["timestamp", "incrementing"]), parts, strict=True))

    def settled(self, times: Sequence[object], *, is_full: bool) -> int:
        """Return how many rows of a page come before an offset; 0 if all have one time.

        Args:
            times: in mode "timestamp", the times of the page's rows.
            is_full: whether there may be more rows behind the page.
        """
        count = len(times)
        if self.mode != "timestamp" or not is_full:
            return count
        # The next page begins behind a time, so it would miss the rest of the last time.
        while count and times[count - 1] == times[-1]:
            count -= 1
        return count


@dataclass(frozen=True, slots=True)
class SettledBound:
    """The end of what has settled.

    Attributes:
        column: the column, or an expression over it, as SQL.
        compare: "<" or "<=".
        value: the value that it is compared with.
    """

    column: str
    compare: Literal["<", "<="]
    value: object


@dataclass(frozen=True, slots=True)
class SqlText:
    """How a database writes names and marks."""

    quoted: Callable[[str], str]
    mark: str


class SettledValues:
    """The highest value of a column that has settled, for mode "incrementing".

    A transaction that took number 7 may commit after the one that took 8. So a number counts once
    it has been seen as the highest for a while: by then, who took a lower one has committed.

    Args:
        settle_ms: the while, in milliseconds; what is open longer than that is missed.
    """

    def __init__(self, settle_ms: int) -> None:
        self.settle_ms = settle_ms
        self._seen: deque[tuple[int, object]] = deque()
        self._settled: object = None

    def saw(self, highest: object, now_ms: int) -> object:
        """Note the highest value of now; return the settled one, or None if there is none."""
        # A value that stays the highest was seen first then, and settles by that time.
        if highest is not None and (not self._seen or self._seen[-1][1] != highest):
            self._seen.append((now_ms, highest))
        while self._seen and self._seen[0][0] <= now_ms - self.settle_ms:
            self._settled = self._seen.popleft()[1]
        return self._settled


def run_of(offset: SourceOffset | None) -> int:
    """Return the number of the run of mode "bulk" that an offset is in."""
    run = None if offset is None else offset.get("run")
    return run if isinstance(run, int) else 0


def is_at_start(offset: SourceOffset | None) -> bool:
    """Whether mode "bulk" has taken no row of its run yet."""
    return offset is None or offset.get("after") is None


def json_of(value: object) -> Json:
    """Return a value of a column as JSON that the database compares alike."""
    match value:
        case bool() | int() | float() | str():
            return value
        case Decimal():
            return int(value) if value == value.to_integral_value() else str(value)
        case datetime() | date():
            return value.isoformat()
        case _:
            return str(value)
