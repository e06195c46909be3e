"""Tables joined with tables, and tables made of streams.

A join of tables is three nodes: a side for each table, which only says where a change comes from,
and the join behind both, which the user has named. It keeps what each side has told it per key, and
so its result: what it takes back is always what it handed on, and a row that a suppressed or
windowed table has not handed on yet is not there for it either. Rule of the file: names of sides
hold a slash, which no name given by a user does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamlog.serdes import Serde
from streamlog.topology.nodes import Keyed, Node
from streamlog.topology.stream_joins import How
from streamlog.windows.emit import FAR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSide(Node):
    """Changes of one of the tables of a join."""

    is_left: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTableJoin(Keyed):
    """The rows of two tables by key; its parents are its sides, the left one first.

    Its keys are those of both tables, or of keys within windows.
    """

    left: Serde[Any]
    right: Serde[Any]
    fn: Callable[[Any, Any], Any]
    kind: How
    kept_ms: int | None = None
    """Of windowed rows: for how long after their window; None: keys have no windows."""
    ends_count: bool = False
    """A time at which a window ends is in it."""

    @property
    def rows_kept_ms(self) -> int | None:
        """As given."""
        return self.kept_ms

    @property
    def detail(self) -> str:
        """Its kind."""
        return self.kind

    def ends_around(self, at_ms: int) -> tuple[int, int]:
        """The first and the last end that a window with this time in it may have."""
        return at_ms + (not self.ends_count), FAR_MS

    def joined(self, left: object, right: object) -> Any:  # noqa: ANN401 - the user's
        """The row that comes of these two; None if there is none."""
        return self.fn(left, right) if self.joins(left, right) else None

    def joins(self, left: object, right: object) -> bool:
        """Whether a row comes of these two."""
        if self.kind == "inner":
            return left is not None and right is not None
        return left is not None or (self.kind == "outer" and right is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTable(Keyed):
    """The latest value per key of a stream; its records are the changes."""

    value: Serde[Any]

    @property
    def table_value(self) -> Serde[Any]:
        """Of the records."""
        return self.value
