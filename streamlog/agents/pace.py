"""Pace: how many records a call of an agent is given at once, and when it lets others run.

A function that computes and awaits nothing holds the event loop, and with it fetches, heartbeats
and an embedded broker. Nobody can interrupt it, but between two records it may be stopped: so it
is given as many as it handles in a few milliseconds, and then the loop gets some turns. Rule of
the file: pure; one record is the least, so what a single one takes nobody can bound here (a
watchdog tells of it, `worker.watching`).
"""

from __future__ import annotations

from typing import Final

from streamlog.agents.feed import SLICE_RECORDS_MAX

HOLD_MS: Final = 10
"""A call that has held the loop for so long lets others run."""
TURNS: Final = 5
"""So many times around: a request that is answered in this process takes that many."""
YIELD_RECORDS: Final = 100
"""A loop that awaits nothing itself lets the others (heartbeats!) run after so many, however
quick it is."""


class Pace:
    """The pace of one call. Who gives records counts them down from `left`."""

    __slots__ = ("_limit", "_looked_ms", "_since_ms", "_since_records", "left")

    def __init__(self) -> None:
        self.left = 1
        """So many more may be given before somebody asks for `turns`."""
        self._limit = 1
        self._looked_ms = self._since_ms = self._since_records = 0

    def turns(self, now_ms: int) -> int:
        """How many turns of the loop are due. Nothing is left, and what was given is handled."""
        took_ms = now_ms - self._looked_ms
        self._since_records += self._limit
        if took_ms > HOLD_MS:
            self._limit = max(self._limit * HOLD_MS // took_ms, 1)
        elif took_ms <= HOLD_MS // 2:
            self._limit = min(2 * self._limit, SLICE_RECORDS_MAX)
        self.left, self._looked_ms = self._limit, now_ms
        if now_ms - self._since_ms >= HOLD_MS:
            return TURNS
        return 1 if self._since_records >= YIELD_RECORDS else 0

    def rested(self, now_ms: int) -> None:
        """Others have run."""
        self.left, self._looked_ms = self._limit, now_ms
        self._since_records, self._since_ms = 0, now_ms
