"""Copies bytes from one buffer into another.

The rule of the file: `copying.pxd` has these functions in C, for compiled callers to inline; change
both or neither. They do not check the ends of the buffers.
"""

from __future__ import annotations


def put(out: bytearray, at: int, data: bytes, position: int, size: int) -> None:
    """Copy `size` bytes of `data`, from `position` on, to index `at` of `out`."""
    out[at : at + size] = data[position : position + size]


def put_into(out: memoryview, at: int, data: bytes, position: int, size: int) -> None:
    """Copy `size` bytes of `data`, from `position` on, to index `at` of the view `out`."""
    out[at : at + size] = data[position : position + size]


def bring_ahead(data: bytes, position: int) -> None:
    """Prefetch the bytes at `position` into the processor's cache; does nothing if not compiled."""
