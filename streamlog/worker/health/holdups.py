"""Holdups: tells which results of tasks are held back by which partitions, and for how long.

A program that gives no results and no errors is taken for broken. So what is due by one source
and held back by another is told once it has been so for `TELL_AFTER_MS`, and again at a bounded
rate for as long as it lasts. What lasts is counted by the clock on the wall.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

from streamlog.processing.task import Holdup

logger = logging.getLogger(__name__)

TELL_AFTER_MS = 9_000
"""Held back for so long, a result is worth a line: a quiet partition is brought on before."""
TELL_AGAIN_MS = 60_000


class HeldResult(NamedTuple):
    """A result that is held back, and for how long."""

    holdup: Holdup
    lasts_ms: int


class Holdups:
    """What is held back in the tasks of a worker."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[int, int]] = {}
        """By task and node: the event time that is waited for, and since when it is."""
        self._told_ms: dict[str, int] = {}
        """By node: tasks of one node are told of in one line."""

    def note(self, task: str, found: Sequence[Holdup], now_ms: int) -> tuple[HeldResult, ...]:
        """This is held back in a task now; says so if it lasts."""
        nodes = {holdup.node for holdup in found}
        self._end(task, nodes)
        held: list[HeldResult] = []
        for holdup in found:
            due_ms, since_ms = self._since.get((task, holdup.node), (holdup.due_ms, now_ms))
            if due_ms != holdup.due_ms:
                since_ms = now_ms
            self._since[task, holdup.node] = (holdup.due_ms, since_ms)
            held.append(HeldResult(holdup, now_ms - since_ms))
            told_ms = self._told_ms.get(holdup.node)
            is_due = told_ms is None or now_ms - told_ms >= TELL_AGAIN_MS
            if now_ms - since_ms >= TELL_AFTER_MS and is_due:
                self._told_ms[holdup.node] = now_ms
                logger.warning("task %s: %s", task, holdup.told())
        return (*held,)

    def forget(self, task: str) -> None:
        """The task is not run here any more."""
        self._end(task, ())

    def _end(self, task: str, but: Collection[str]) -> None:
        over = [key for key in self._since if key[0] == task and key[1] not in but]
        for key in over:
            del self._since[key]
