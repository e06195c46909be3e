"""Task figures: what the tasks of connectors have done, as plain counters.

Rule: counters only grow while a task lives. Their owner adds up those of tasks that have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TypeVar


@dataclass(slots=True)
class ReaderFigures:
    """What a reader has done since it began."""

    polled: int = 0
    """Records that the source has yielded."""
    written: int = 0
    """Records that count."""
    retries: int = 0
    skipped: int = 0
    dead_letters: int = 0
    commits: int = 0
    failures: int = 0
    """Errors of the connector, those that are retried included."""
    waits_for: str = ""
    """Why it reads nothing at present; empty while it reads."""


@dataclass(slots=True)
class SinkFigures:
    """What a sink task has done since it began."""

    read: int = 0
    """Records that came from the log."""
    sent: int = 0
    """Records that were given to the connector and committed."""
    commits: int = 0
    """Commits of the target."""
    aborts: int = 0
    retries: int = 0
    skipped: int = 0
    dead_letters: int = 0
    failures: int = 0
    commit_ms_max: int = 0
    put_ms_max: int = 0
    waits_for: str = ""
    """Why nothing is written at present; empty while the target answers."""


F = TypeVar("F", ReaderFigures, SinkFigures)


def sum_figures(first: F, others: Iterable[F]) -> F:
    """Return the sums of figures; of times the largest, of texts the first that is not empty."""
    total = type(first)()
    names = [field.name for field in fields(first)]
    for each in [first, *others]:
        for name in names:
            before, value = getattr(total, name), getattr(each, name)
            if isinstance(value, str):
                setattr(total, name, before or value)
            else:
                is_longest = name.endswith("_max")
                setattr(total, name, max(before, value) if is_longest else before + value)
    return total
