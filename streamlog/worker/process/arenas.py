"""Arenas: puts Python's arenas of small objects, one megabyte each, into huge pages.

A worker holds rows, keys and uncommitted changes as hundreds of thousands of small objects. With
pages of 4 KiB the processor's TLB covers few of them, and each access to another page walks the
page table in memory; also, the system clears each page at its first use. A huge page of 2 MiB is
looked up and cleared once. So each arena is half of a huge page.

Rule: no memory is taken from the system that Python does not ask for, and freed memory goes back
except for a few pages. Effective only if compiled (`huge_pages.pxd`). Not done here: objects over
512 bytes, which the C library allocates.
"""

from __future__ import annotations

from streamlog.worker.process import huge_pages

__all__ = ["use_huge_pages"]


def use_huge_pages() -> bool:
    """Allocate arenas of this process in huge pages from now on; returns whether that is possible.

    It is not if the module is not compiled, on systems other than Linux, and if Python does not use
    arenas. The system may still use small pages: it does if
    `/sys/kernel/mm/transparent_hugepage/enabled` is `never`.
    """
    return huge_pages.take()
