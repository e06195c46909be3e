"""One partition and its replicas: the shipped `Leader`, `Follower` and `Replica` under faults.

Three brokers, an ideal controller, idempotent producers and a consumer over a network that drops,
doubles, delays and partitions, machines that crash, lose power and stall, and disks that take
their time. Checked at every step: P1 to P13 of docs/replication.md; at the end L1 and L2.
"""

from __future__ import annotations

from simulation.isr.checker import Violation
from simulation.isr.plan import PLAIN, Plan
from simulation.isr.world import World
from simulation.life import Life

__all__ = ["PLAIN", "Plan", "simulate"]


def simulate(seed: int, plan: Plan = PLAIN) -> Life:
    """Live one life."""
    world = World(seed, plan)
    violations: tuple[str, ...] = ()
    try:
        world.run()
    except Violation as violation:
        violations = (f"{violation} (after {world.now_ms} ms)",)
    return Life(
        seed=seed,
        events=world.events,
        counts=dict(world.counts),
        violations=violations,
        trace=f"{world.trace:08x}",
    )
