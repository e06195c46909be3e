"""GlobalTable: a table that every worker has whole; GlobalJoin: a stream that looks into one.

A global table is no node: no task reads it, it belongs to no sub-topology and is no part of stream
time. So a stream can look into it by any key, whatever its own key and partitions are. Rule of the
file: what is kept is what the topic has, there is no changelog beside it. Not done here: reading
the topic (a runner's).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from streamlog.topology.nodes import Node
from streamlog.topology.policies import ErrorPolicy
from streamlog.topology.topics import TopicSpec

Backend = Literal["memory", "rocksdb"]
"""Of rows that are all in each worker: in memory, or on disk with a part of them in memory."""
BACKENDS: tuple[Backend, ...] = ("memory", "rocksdb")


@dataclass(frozen=True, slots=True)
class GlobalTable:
    """The latest value per key of a whole topic."""

    name: str
    topic: TopicSpec
    backend: Backend = "memory"
    """Where each worker keeps the rows."""
    on_error: ErrorPolicy | None = None
    """For a batch of the topic that can't be read; None: the app ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalJoin(Node):
    """Each record of a stream with the row of a global table that it points to."""

    table: GlobalTable
    on: Callable[[Any, Any], Any]
    """The key of the row, from key and value of the record."""
    fn: Callable[[Any, Any], Any]
    left: bool
    """Records without a row go on too."""

    @property
    def detail(self) -> str:
        """The table."""
        return f"in {self.table.name}{' (left)' if self.left else ''}"
