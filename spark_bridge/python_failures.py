"""Failures in Python that Spark runs, told as what they say and not as how they came about.

Spark shows the Python traceback of whatever fails in one of its Python processes, and behind it
Java's. An error of ours says what was wrong, where, and what to do: the rest is left out. Errors of
anybody else, users' functions of their own included, keep their traceback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.errors import StreamlogError

HIDDEN = "SPARK_HIDE_TRACEBACK"
"""Spark's own; it is looked at when an error is told, by the process that has failed and ends."""
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit)): (.+)$", re.MULTILINE)


@contextmanager
def without_traceback() -> Iterator[None]:
    """Of an error of ours, raised inside, Spark shows its text alone."""
    try:
        yield
    except StreamlogError:
        os.environ[HIDDEN] = "1"
        raise


def first_line(told: str) -> str:
    """Of all that Spark says of a failure, the line that tells most: what Python raised, if any."""
    raised = _RAISED.findall(told)
    if raised:
        return ": ".join(raised[-1])
    return next((line.strip() for line in told.splitlines() if line.strip()), "it does not say why")
