"""Life: what one seed has come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One simulated life, from its seed to its verdict."""

    seed: int
    events: int
    """How much has happened: steps of a level's own kind."""
    counts: Mapping[str, int]
    """What has happened how often, by name: faults, elections, acknowledgements."""
    violations: tuple[str, ...] = ()
    """What must not happen and did, in words; a life without any is a good one."""
    trace: str = ""
    """A digest of everything that has happened, in order: the same for the same seed."""
    story: tuple[str, ...] = field(default=())
    """What to read after a violation: the schedule that is left of it, and how it went."""


Level: TypeAlias = Callable[[int], Life]
"""Lives one seed."""
