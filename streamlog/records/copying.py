"""Bytes copied from one buffer into another; the same for both builds.

The rule of the file: `copying.pxd` says in C what is said here, for compiled callers to inline;
change both or neither. Nobody looks at the ends of the buffers here.
"""

from __future__ import annotations


def put(out: bytearray, at: int, data: bytes, position: int, size: int) -> None:
    """Copy `size` bytes of `data` from `position` on to where `at` is."""
    out[at : at + size] = data[position : position + size]


def put_into(out: memoryview, at: int, data: bytes, position: int, size: int) -> None:
    """As `put`, into a view."""
    out[at : at + size] = data[position : position + size]


def bring_ahead(data: bytes, position: int) -> None:
    """What follows may lie far from the processor: compiled, it is told in time."""
