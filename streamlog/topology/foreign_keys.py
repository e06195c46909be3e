"""Joins of tables by foreign keys: a row of the left one names a key of the right one (KIP-213).

Three sub-topologies, one after the other, so that there is an order for all of it: where the left
table is, rows become references; where the right one is, they meet its rows; behind both the
results are kept, by the left key. Kafka Streams sends responses back to the left table's task
instead, a ring. Rule of the file: what one of them knows of another has travelled through a topic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import Node, OldValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Refer(Node):
    """Changes of the left table as references, and as outcomes where there is nothing to refer to.

    References have the foreign key for a key, outcomes that of the row.
    """

    on: Callable[[Any], Any]
    fn: Callable[[Any, Any], Any]
    is_left: bool
    """Rows without one on the other side are there too."""
    key: Serde[Any]
    """Of the left table."""

    @property
    def needs_old_values(self) -> bool:
        """What they referred to hears of it."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyJoin(Node):
    """References and the rows that they point to; its parents are two `TableSide`s."""

    store: StoreSpec
    """The references, by what they point to."""
    rows: StoreSpec
    """What the right table has told."""
    fn: Callable[[Any, Any], Any]
    is_left: bool
    key: Serde[Any]
    """Of the right table."""
    value: Serde[Any]
    row_key: Serde[Any]
    """Of the left one."""
    row_value: Serde[Any]

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """References, and rows."""
        return (self.store, self.rows)

    @property
    def needs_equal_keys(self) -> bool:
        """References are where their rows are."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyRows(Node):
    """The newest outcome for each row of the left table."""

    store: StoreSpec
    gone: StoreSpec
    """Rows that were deleted, until nothing old can come any more, by time."""
    key: Serde[Any]
    value: Serde[Any]

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The rows first."""
        return (self.store, self.gone)

    @property
    def needs_equal_keys(self) -> bool:
        """One row per key."""
        return True

    @property
    def table_key(self) -> Serde[Any]:
        """That of the left table."""
        return self.key

    @property
    def old_values(self) -> OldValues:
        """Its rows."""
        return "kept"
