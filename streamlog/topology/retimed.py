"""SetTimestamp: a node that gives records a time of another clock.

Stream time is a property of where records come from, so what has other timestamps is a source of
its own: its time is the largest of the new timestamps, and windows behind it know nothing of the
old ones. That is state, if a small one: it is kept with the progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamlog.topology.nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimestamp(Node):
    """A new timestamp from the value."""

    fn: Callable[[Any], Any]

    @property
    def feeds(self) -> tuple[str, ...]:
        """Everything that it hands on."""
        return (self.name,)
