"""Nodes that choose which records go on, and where: split and its branches, dedupe.

A split is one node that looks at each record once, and a node for each branch that hands on what
was chosen for it. Rule of the file: what is chosen follows from the record and from those before
it in its partition, never from a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Node):
    """Chooses a branch for each record: the first whose function is true."""

    branches: Mapping[str, Callable[[Any, Any], bool]]

    @property
    def detail(self) -> str:
        """Its branches."""
        return f"into {', '.join(self.branches)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Node):
    """The records for which its split has chosen this branch."""

    branch: str

    @property
    def detail(self) -> str:
        """Which."""
        return f"the branch {self.branch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedupe(Node):
    """Records whose key and identity have not gone on within a time before."""

    by: Callable[[Any], object]
    """What identifies a record beside its key, of its value."""
    identity: Serde[Any]
    """How that is written."""
    key: Serde[Any]
    store: StoreSpec
    """When each has gone on."""
    within_ms: int

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """What has gone on."""
        return (self.store,)

    @property
    def needs_equal_keys(self) -> bool:
        """Twins have equal keys."""
        return True

    @property
    def detail(self) -> str:
        """For how long."""
        return f"within {self.within_ms} ms"
