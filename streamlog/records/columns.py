"""Columns of the engine's batches, looked at as a whole.

The rule of the file: it may be compiled, and says the same in both builds; it asks for no more
than whether something is there, as `==` and the like may be the user's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["has_none"]


def has_none(column: Sequence[Any]) -> bool:
    """Whether an entry is None."""
    for entry in column:  # noqa: SIM110 - compiled, the loop makes no generator
        if entry is None:
            return True
    return False
