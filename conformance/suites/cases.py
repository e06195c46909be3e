"""What became of each test of a suite, held against the file of what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PASSED = "passed"
FAILED = "failed"
NOT_RUN = "not run"
"""The suite itself skips it."""


class Unavailable(Exception):
    """The suite can't be had on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test."""

    name: str
    result: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A suite's tests, the reasons of those that are left out, and what is wrong."""

    title: str
    cases: Sequence[Case]
    left_out: Mapping[str, str]

    @property
    def passed(self) -> list[Case]:
        """Those that count for the broker."""
        return [case for case in self.cases if case.result == PASSED]

    @property
    def faults(self) -> list[str]:
        """What failed without a reason, and reasons without a failure."""
        faults = [
            f"{case.name}: {case.result}: {case.detail or 'no reason given'}"
            for case in self.cases
            if case.result != PASSED and case.name not in self.left_out
        ]
        results = {case.name: case.result for case in self.cases}
        for name in self.left_out:
            if name not in results:
                faults.append(f"{name}: left out, but the suite has no such test")
            elif results[name] == PASSED:
                faults.append(f"{name}: left out, but it passes")
        return faults


def reasons(path: Path) -> dict[str, str]:
    """The file of what is left out: `NAME: reason` in each line, # before comments.

    Raises:
        ValueError: a line without a reason, or a name that stands there twice.
    """
    found: dict[str, str] = {}
    for line in _lines(path):
        name, colon, reason = line.partition(": ")
        if not colon or not reason.strip():
            raise ValueError(f"{path}: no reason is given: {line}")
        if name in found:
            raise ValueError(f"{path}: {name} stands there twice")
        found[name] = reason.strip()
    return found


def _lines(path: Path) -> Iterable[str]:
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def report(verdict: Verdict) -> str:
    """As Markdown: counts, what is left out and why, faults."""
    counts = f"{len(verdict.passed)} passed, {len(verdict.faults)} failed"
    lines = [f"{verdict.title}: {counts}, {len(verdict.left_out)} left out."]
    if verdict.faults:
        lines += ["", "Failed:", "", *(f"- {fault}" for fault in verdict.faults)]
    together: dict[str, list[str]] = {}
    for name, reason in verdict.left_out.items():
        together.setdefault(reason, []).append(f"`{name}`")
    if together:
        lines += ["", "Left out:", ""]
        lines += [f"- {', '.join(names)}: {reason}" for reason, names in together.items()]
    return "\n".join(lines) + "\n"
