"""Connector lives: what the conformance suites of sources and sinks have in common.

A suite lets a connector live many short lives beside the system that it talks to. Each life ends at
a point that chance chooses: a clean stop, a kill, a hand-over while the old task continues. In the
end the rows on the other side are compared.

Rule: chance depends on the seed alone, so a failure can be lived again. A killed task is still
closed, as an operating system closes the connections of a process; nothing is committed by that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.row_schema import fields_of
from streamlog.errors import StreamlogError, quantity

SHOWN_ROWS = 5
"""The most rows that a failure shows."""
SHOWN_STEPS = 40
"""The last steps that a failure shows."""
START_MS = 1_735_689_600_000
"""The time when a suite begins: 2025-01-01, UTC."""


class Outside(Protocol):
    """What a test of a connector knows of the other side."""

    async def put(self, rows: Sequence[object]) -> None:
        """Write rows outside, for a source to read.

        Args:
            rows: numbers that were not put before; what a row of a number looks like is up to the
                test.
        """

    async def rows(self) -> Sequence[object]:
        """Return all rows outside: those that a source has to read, or those that a sink wrote."""


class CheckFailed(StreamlogError, AssertionError):
    """A connector does not keep its promise; the message has the rows and the last steps."""


class Killed(BaseException):
    """The process of a task ends here. No connector can catch it by `except Exception`."""


class LifeClock:
    """`TaskClock` of a suite: a wait takes no time, and moves the clock."""

    def __init__(self) -> None:
        self._now_ms = START_MS

    def now_ms(self) -> int:
        """Return the time of the suite."""
        return self._now_ms

    def wall_ms(self) -> int:
        """Return the time of the suite, which begins in 2025."""
        return self._now_ms

    async def sleep_ms(self, time_ms: int) -> None:
        """Move the clock, and let the other tasks of the loop run."""
        self._now_ms += time_ms
        # A real moment, too: what a source waits for may happen in a thread or in a server.
        await asyncio.sleep(0.001)

    def advance(self, time_ms: int) -> None:
        """Move the clock."""
        self._now_ms += time_ms


class Steps:
    """What has happened, for the message of a failure."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._steps: list[str] = []
        self._count = 0

    def note(self, step: str) -> None:
        """Note a step."""
        self._count += 1
        self._steps = [*self._steps[-SHOWN_STEPS:], step]

    def failure(self, reason: str) -> CheckFailed:
        """Return the error of a broken promise."""
        steps = "\n  ".join(self._steps)
        return CheckFailed(f"{reason}\nseed={self._seed}; the last steps:\n  {steps}")


def form_of(row: object) -> str:
    """Return a row as text: equal for equal rows, whatever class or order of fields they have."""
    return msgspec.json.encode(_plain(row), order="sorted", enc_hook=repr).decode()


def _plain(row: object) -> object:
    if isinstance(row, str | int | float | bool) or row is None:
        return row
    if isinstance(row, bytes | bytearray):
        # As text where it is text: a driver may return a column of bytes as either.
        return bytes(row).decode("utf-8", "backslashreplace")
    if isinstance(row, list | tuple):
        return [_plain(part) for part in row]
    try:
        fields = fields_of(row)
    except BadRecord:
        return repr(row)
    return {str(name): _plain(part) for name, part in fields.items()}


def missing_and_extra(
    found: Collection[object], wanted: Collection[object]
) -> tuple[Counter[str], Counter[str]]:
    """Return the rows that are missing, and those that are too many, each with its number."""
    there, here = Counter(map(form_of, found)), Counter(map(form_of, wanted))
    return here - there, there - here


def describe_rows(what: str, rows: Counter[str]) -> str:
    """Return rows for a message; empty without any."""
    if not rows:
        return ""
    shown = ", ".join(f"{row} ({number}x)" for row, number in [*rows.items()][:SHOWN_ROWS])
    return f"{quantity(rows.total(), 'row')} {what}: {shown}"
