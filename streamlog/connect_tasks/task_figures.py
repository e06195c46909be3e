"""Task figures: what the tasks of connectors have done, as plain counters.

Rule: counters only grow while a task lives. Their owner adds up those of tasks that have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TypeVar

from streamlog.metrics.instruments import Histogram
from streamlog.processing.outbox import Drop


@dataclass(slots=True)
class ConnectorTaskFigures:
    """What tasks of sources and of sinks have in common."""

    retries: int = 0
    skipped: int = 0
    dead_letters: int = 0
    commits: int = 0
    failures: int = 0
    """Errors of the connector, those that are retried included."""
    failed_ms_max: int = 0
    """When the last of them was, or the last record was left out, in ms since 1970; 0: never."""
    commit_ms_max: int = 0
    commit_times: Histogram = field(default_factory=Histogram)
    """How long commits took, in seconds: of a sink the target's, of a source the transaction."""
    waits_for: str = ""
    """Why nothing is read or written at present; empty while the other side answers."""

    def committed(self, took_ms: int) -> None:
        """Note how long a commit took."""
        self.commit_times.record(took_ms / 1000)
        self.commit_ms_max = max(self.commit_ms_max, took_ms)

    def leave_out(self, drops: Iterable[Drop], now_ms: int) -> None:
        """Count records that were left out.

        Args:
            drops: the records.
            now_ms: the time since 1970.
        """
        for drop in drops:
            self.failed_ms_max = now_ms
            if drop.reason == "dead letter":
                self.dead_letters += drop.count
            else:
                self.skipped += drop.count

    def fail(self, now_ms: int) -> None:
        """Count an error of the connector at a time since 1970."""
        self.failures += 1
        self.failed_ms_max = now_ms


@dataclass(slots=True)
class ReaderFigures(ConnectorTaskFigures):
    """What a reader has done since it began."""

    polled: int = 0
    """Records that the source has yielded."""
    written: int = 0
    """Records that count."""


@dataclass(slots=True)
class SinkFigures(ConnectorTaskFigures):
    """What a sink task has done since it began."""

    read: int = 0
    """Records that came from the log."""
    sent: int = 0
    """Records that were given to the connector and committed."""
    aborts: int = 0
    put_ms_max: int = 0


F = TypeVar("F", ReaderFigures, SinkFigures)


def sum_figures(first: F, others: Iterable[F]) -> F:
    """Return the sums of figures; of times the largest, of texts the first that is not empty."""
    total = type(first)()
    names = [field.name for field in fields(first)]
    for each in [first, *others]:
        for name in names:
            before, value = getattr(total, name), getattr(each, name)
            if isinstance(value, Histogram):
                before.include(value)
            elif isinstance(value, str):
                setattr(total, name, before or value)
            else:
                is_longest = name.endswith("_max")
                setattr(total, name, max(before, value) if is_longest else before + value)
    return total
