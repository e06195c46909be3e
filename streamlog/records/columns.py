"""Many records, or a column of them, looked at as a whole.

The rule of the file: it may be compiled, and says the same in both builds; of content it asks for
no more than whether it is there and how long it is, as `==` and the like may be the user's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["has_none", "sizes"]


def has_none(column: Sequence[Any]) -> bool:
    """Whether an entry is None."""
    for entry in column:  # noqa: SIM110 - compiled, the loop makes no generator
        if entry is None:
            return True
    return False


def sizes(records: Sequence[tuple[Any, ...]], record_bytes: int, header_bytes: int) -> list[int]:
    """What records (timestamp, key, value, headers) take, by their lengths and these overheads."""
    found: list[int] = []
    # Often all have the same headers, the very same object.
    own: Any = None
    own_bytes = 0
    for _, key, value, headers in records:
        if headers is not own:
            own_bytes = 0
            for name, content in headers or ():
                own_bytes += header_bytes + len(name)
                own_bytes += len(content) if content else 0
            own = headers
        size = record_bytes + own_bytes
        size += len(key) if key else 0
        size += len(value) if value else 0
        found.append(size)
    return found
