"""Port: one of the inputs of an aggregation that several streams go into.

Behind it a value is a pair of the port's number and itself, so one aggregation behind a merge of
all ports knows which function is to add it. Rule of the file: no value stays none.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.topology.nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Port(Node):
    """Values with the number of the input that they came by."""

    number: int

    @property
    def detail(self) -> str:
        """Its number."""
        return f"as input {self.number + 1}"
