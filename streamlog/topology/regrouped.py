"""Aggregations of tables: rows grouped by another key, with what they replace taken away again.

A change of a row takes its old value out of the old group and puts the new one into the new group,
which mostly lies in another partition; so what travels there is a `Revision`. Rule of the file, as
in Kafka Streams since KIP-904: if the group stays, one revision carries both, and no result without
the row is seen in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamlog.topology.nodes import Aggregate, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup(Node):
    """Changes of a table as revisions of groups."""

    fn: Callable[[Any, Any], tuple[Any, Any] | None]
    """Group and value of a row; None, or a None in it: the row is in no group."""

    @property
    def needs_old_values(self) -> bool:
        """They leave their groups."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAggregate(Aggregate):
    """One running result per group; its aggregation folds revisions."""
