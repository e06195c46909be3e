"""Faults: what goes wrong in a life, drawn before it begins, so that it can be made less of.

Each life has its own selection of kinds, and of each as many as chance wants (swarm testing): what
many kinds at once hide, few show. `shrunk` leaves out what a violation does not need.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

KINDS_SHARE: Final = 0.5
FAULTS_MAX: Final = 14
SHRINKING_LIVES_MAX: Final = 60
"""More are not tried to find a shorter plan."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at a time, for a while; `draw` is what else it needs of chance."""

    at_s: float
    kind: str
    lasts_s: float
    draw: float

    def __str__(self) -> str:
        return f"{self.at_s:.2f} s: {self.kind} for {self.lasts_s:.2f} s ({self.draw:.3f})"


Plan: TypeAlias = tuple[Fault, ...]


def drawn(seed: int, kinds: Sequence[str], *, until_s: float) -> Plan:
    """The faults of a life, in the order in which they begin."""
    chance = random.Random(f"plan {seed}")
    chosen = [kind for kind in kinds if chance.random() < KINDS_SHARE] or [chance.choice(kinds)]
    faults = [
        Fault(
            at_s=chance.uniform(0, until_s),
            kind=chance.choice(chosen),
            lasts_s=chance.choice((0.01, 0.3, 2.0, 12.0)) * chance.uniform(0.5, 1.5),
            draw=chance.random(),
        )
        for _ in range(chance.randint(1, FAULTS_MAX))
    ]
    return tuple(sorted(faults, key=lambda each: each.at_s))


def shrunk(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """A part of the plan that fails as well, from which nothing more could be left out."""
    lives = 0
    size = max(len(plan) // 2, 1)
    while plan:
        for start in range(0, len(plan), size):
            lives += 1
            if lives > SHRINKING_LIVES_MAX:
                return plan
            shorter = plan[:start] + plan[start + size :]
            if fails(shorter):
                plan = shorter
                break
        else:
            if size == 1:
                return plan
            size = max(size // 2, 1)
    return plan
