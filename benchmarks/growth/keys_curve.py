"""What a record costs a task by the keys in its state on disk, up to more than caches hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.beyond_memory import cost_us
from benchmarks.growth.curve import Curve


async def keys(directory: Path, count: int) -> AsyncIterator[Curve]:
    """Counts and sums by key and window, as `beyond_memory` measures them."""
    title = "a record counted by key and window, with its commit, CPU"
    curve = Curve("keys-counted", title, "keys", "us")
    curve.add(count, cost_us(directory, count))
    yield curve
