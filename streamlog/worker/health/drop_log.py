"""Drops: what nodes left out, counted, and told at a bounded rate; and what waits for too long.

A line per node and reason at most once a minute, however many records there are; of errors the
last one is shown. What is left out with `on_error.skip(log=False)` is counted only. Not done here:
the counters that are scraped (`figures`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from streamlog.processing.inputs.repartition_input import MergeWait
from streamlog.processing.outbox import Drop

logger = logging.getLogger(__name__)

LOG_INTERVAL_MS = 60_000


class DropLog:
    """Counts what nodes left out, and says so once in a while."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._late_by_ms_max: dict[str, int] = {}
        self._told: dict[tuple[str, str], str] = {}
        self._told_ms: dict[tuple[str, str], int] = {}

    def count(self, drops: Iterable[Drop]) -> None:
        """Take note."""
        for drop in drops:
            self._counts[drop.node, drop.reason] += drop.count
            latest = max(self._late_by_ms_max.get(drop.node, 0), drop.late_by_ms_max)
            self._late_by_ms_max[drop.node] = latest
            if drop.told:
                self._told[drop.node, drop.reason] = drop.told

    def warn(self, task: str, waits: Iterable[MergeWait], now_ms: int) -> None:
        """Say which merges of a task fill up, before they have to let records go early."""
        for wait in waits:
            place = (wait.topic, f"{wait.partition}")
            told_ms = self._told_ms.get(place)
            if wait.is_much and (told_ms is None or now_ms - told_ms >= LOG_INTERVAL_MS):
                self._told_ms[place] = now_ms
                logger.warning("task %s: %s", task, wait.told())

    def tell(self, now_ms: int) -> None:
        """One line per node and reason, at most once a minute each."""
        for key in [*self._counts]:
            told_ms = self._told_ms.get(key)
            if told_ms is None or now_ms - told_ms >= LOG_INTERVAL_MS:
                self._told_ms[key] = now_ms
                self._tell(*key, self._counts.pop(key))

    def _tell(self, node: str, reason: str, count: int) -> None:
        last = self._told.pop((node, reason), "")
        match reason:
            case "out of order":
                logger.warning("%s: %d records taken before their turn", node, count)
            case "late":
                late_ms = self._late_by_ms_max.pop(node, 0)
                logger.warning(
                    "%s: %d records left out: late (by up to %d ms)", node, count, late_ms
                )
            case "error" | "dead letter" if last:
                text = "%s: %d records left out: %s; the last one: %s"
                logger.warning(text, node, count, reason, last)
            case "duplicate" | "error":
                logger.debug("%s: %d records left out: %s", node, count, reason)
            case _:
                logger.warning("%s: %d records left out: %s", node, count, reason)
