"""Checkers: what must hold in any history, whatever was broken meanwhile.

After jepsen.tests.kafka. They look at what clients were told, and at nothing else; each is a
function of a history and gives what it has found. A send, commit or transaction whose answer never
came may have happened or not: it is an error of nobody. `check` asks them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from simulation.checkers.polls import inside_polls, unseen_by_sessions
from simulation.checkers.positions import lost_positions
from simulation.checkers.sends import (
    duplicates,
    inconsistent_offsets,
    lost_writes,
    out_of_order,
    phantoms,
)
from simulation.checkers.transactions import (
    aborted_reads,
    precommitted_reads,
    torn_transactions,
    transformed_once,
)
from simulation.history import History, Violation

Checker: TypeAlias = Callable[[History], Iterator[Violation]]
CHECKERS: tuple[Checker, ...] = (
    lost_writes,
    duplicates,
    inconsistent_offsets,
    phantoms,
    out_of_order,
    inside_polls,
    unseen_by_sessions,
    aborted_reads,
    precommitted_reads,
    torn_transactions,
    transformed_once,
    lost_positions,
)


def check(history: History) -> list[Violation]:
    """All that must not be and is."""
    return [violation for checker in CHECKERS for violation in checker(history)]
