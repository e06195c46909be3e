"""Huge pages: the compiled part of `arenas`, in `huge_pages.pxd`; it does nothing uncompiled."""

from __future__ import annotations


def take() -> bool:
    """Allocate Python's arenas in huge pages; returns whether they are, which needs compilation."""
    return False
