"""What `arenas` is in C, see `huge_pages.pxd`; uncompiled there is nothing to be done."""

from __future__ import annotations


def take() -> bool:
    """Let the arenas of Python's small objects be halves of huge pages; whether they are now."""
    return False
