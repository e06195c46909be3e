"""Python failures: errors of streamlog in Spark's Python processes, without their tracebacks.

Spark shows the Python traceback of an error in one of its Python processes, and Java's after it. An
error of streamlog says what was wrong, where, and what to do, so its traceback is hidden. Other
errors, those of users' functions included, keep their traceback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.errors import StreamlogError

HIDDEN = "SPARK_HIDE_TRACEBACK"
"""Spark's variable. The process that failed reads it when it reports the error, then ends."""
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit)): (.+)$", re.MULTILINE)


@contextmanager
def without_traceback() -> Iterator[None]:
    """Let Spark show only the text of a `StreamlogError` that the block raises."""
    try:
        yield
    except StreamlogError:
        os.environ[HIDDEN] = "1"
        raise


def first_line(text: str) -> str:
    """Return the most telling line of Spark's report: the last error that Python raised, if any."""
    raised = _RAISED.findall(text)
    if raised:
        return ": ".join(raised[-1])
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
