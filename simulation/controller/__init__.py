"""A cluster under its controller: the shipped `Controller` and `BrokerLifecycle` under faults.

Brokers with simple logs follow the metadata log of an ideal quorum, in which controllers fail over
with a decision under way. Brokers are killed, stopped in order, paused and cut off, lose their
disks one at a time, find damage; topics are made, moved and deleted meanwhile. Checked at each
record: P1, P3, P7, P13 and Q7 of the design of replication, at the end that all are in sync again.
"""

from __future__ import annotations

from simulation.controller.oracle import Violation
from simulation.controller.world import World
from simulation.life import Life
from streamlog.broker.quorum.elections import CORRECT, Rules

__all__ = ["simulate"]


def simulate(seed: int, rules: Rules = CORRECT) -> Life:
    """Live one life; other `rules` are bugs that it has to find."""
    world = World(seed, rules)
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
        trace=world.oracle.trace(),
        story=tuple(world.story[-60:]) if violations else (),
    )
