"""Arenas: where Python's small objects lie, a megabyte each, in huge pages.

Rows, their keys and what waits of them to be stored are small objects by the hundred thousand. In
pages of 4 KiB the processor knows where a few of them are, and looks the others up in tables that
lie in memory themselves; and the system clears each page when it is touched for the first time. A
huge page of 2 MiB is looked up and cleared once. So the arenas are halves of such pages. The rule
of the file: it may be compiled, and does nothing else; nothing is taken from the system that Python
does not ask for, and what it frees goes back but for a few pages. Not done here: what is larger
than half a kilobyte, which is the C library's.
"""

from __future__ import annotations

from streamlog.worker.process import huge_pages

__all__ = ["use_huge_pages"]


def use_huge_pages() -> bool:
    """Let arenas be made of huge pages from now on, for this process; whether they will be.

    False where this is not compiled, not Linux, or Python does not use arenas. Whether the system
    has huge pages to give is its own affair: where `/sys/kernel/mm/transparent_hugepage/enabled`
    is `never` it takes small ones.
    """
    return huge_pages.take()
