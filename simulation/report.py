"""Report: many lives summed up, for readers and as JSON.

A violation of one seed is told with how to live it again. What has never happened in many lives
is a fault of the simulation, not a merit of what it tests: so counts are part of every report.
"""

from __future__ import annotations

import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from simulation.life import Life

TOLD_MAX = 5
"""Violating seeds of a level that are told in full; the others by number."""


@dataclass(slots=True)
class Summary:
    """The lives of one level so far."""

    level: str
    lives: int = 0
    events: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    bad: list[Life] = field(default_factory=list)
    trace: str = ""
    """That of the last life."""

    def add(self, life: Life) -> None:
        """One more."""
        self.lives += 1
        self.trace = life.trace
        self.events += life.events
        self.counts.update(life.counts)
        if life.violations:
            self.bad.append(life)

    def progress(self, of: int) -> str:
        """How far a run of so many lives is, in a line."""
        return f"{self.level}: {self.lives} of {of} lives so far, {len(self.bad)} with violations"

    def lines(self) -> Iterable[str]:
        """For a reader."""
        yield (
            f"{self.level}: {self.lives} lives, {self.events} events,"
            f" {len(self.bad)} of them with violations"
        )
        yield "  " + ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        for life in self.bad[:TOLD_MAX]:
            yield f"  SEED={life.seed} LEVELS={self.level}:"
            yield from (f"    {violation}" for violation in life.violations)
            yield from (f"    | {line}" for line in life.story)
        if len(self.bad) > TOLD_MAX:
            rest = " ".join(str(life.seed) for life in self.bad[TOLD_MAX:])
            yield f"  violated as well: {rest}"

    def as_json(self) -> dict[str, object]:
        """For a file."""
        return {
            "level": self.level,
            "lives": self.lives,
            "events": self.events,
            "counts": dict(sorted(self.counts.items())),
            "violations": {str(life.seed): list(life.violations) for life in self.bad},
        }


def conditions(seeds: Mapping[str, int]) -> dict[str, object]:
    """Which seeds were lived by which code and which Python: another one schedules otherwise."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"],  # noqa: S607 - the git of this machine
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "python": platform.python_version(),
        "commit": head.stdout.strip() or "unknown",
        "seeds": dict(seeds),
    }
