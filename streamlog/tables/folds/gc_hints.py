"""What Python's garbage collector need not look at.

It walks everything that may be part of a cycle, whenever so much more has been made; where there
are a hundred thousand rows that are in none, that is most of what it does. Cython's own word for
that (`no_gc`) counts only in the source of a class, and this one has to run without Cython. The
rule of the file: `collector.pxd` says in C what is to be done; uncompiled there is nothing to do.
"""

from __future__ import annotations


def leave_out(obj: object) -> None:
    """Do not look at it: no cycle goes through it."""
