"""Two clusters and a link: the shipped `MirrorReader`, `Replica` and `Controller` under faults.

One or three brokers on each side, an ideal metadata log, producers, and an operator who promotes,
fails back, grows, deletes and pauses. Links are cut, brokers and whole clusters lose their power,
clocks are apart, leaders are elected uncleanly, heads of logs are deleted. The laws are in
`checker`; at the end all faults stop, and every mirror has to become its source.
"""

from __future__ import annotations

from simulation.life import Life
from simulation.mirror.checker import MirrorViolation
from simulation.mirror.plan import CORRECT, MirrorPlan
from simulation.mirror.world import TwoClusters

__all__ = ["CORRECT", "MirrorPlan", "simulate"]


def simulate(seed: int, plan: MirrorPlan = CORRECT) -> Life:
    """Live one life."""
    world = TwoClusters(seed, plan)
    violations: tuple[str, ...] = ()
    try:
        world.run()
    except MirrorViolation as violation:
        violations = (f"{violation} (after {world.now_ms} ms)",)
    return Life(
        seed=seed,
        events=world.events,
        counts=dict(world.counts),
        violations=violations,
        trace=f"{world.trace:08x}",
        story=tuple(world.story) if violations else (),
    )
