"""Aggregator: a built-in column of an aggregation, as data.

What it does, of what, and with which settings. A field that is named stays a name here, so that
the blueprint shows it and a runner that works on columns can read it instead of calling anybody.
Not done here: folding (`tables/folding`, `tables/folds`, `tables/sketches`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

V = TypeVar("V")
"""A value that is aggregated."""
R = TypeVar("R")
"""What a column results in."""

Field = Callable[[V], Any] | str
"""What is taken of each value: a function, or the name of a field; `a.b` is b of a."""


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregator(Generic[V, R]):
    """One column."""

    name: str
    """What it does: `count`, `sum` and so on."""
    field: Field[V] | None = None
    """What of: None for a count."""
    by: Field[V] | None = None
    """What the values are ordered by, if not by themselves or as they come."""
    options: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Its settings, by name."""
