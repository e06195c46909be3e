"""Excludes objects from Python's garbage collection.

The collector walks all objects that may be part of a cycle whenever enough new ones exist; with a
hundred thousand rows that are in no cycle, that is most of its work. Cython's own directive
(`no_gc`) counts only in the source of a class, and this class has to run without Cython. The rule
of the file: `gc_hints.pxd` has the implementation in C; uncompiled, there is nothing to do.
"""

from __future__ import annotations


def leave_out(obj: object) -> None:
    """Exclude the object: no cycle goes through it."""
