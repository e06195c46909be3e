"""A cluster under its controller: the shipped `Controller` and `BrokerLifecycle` under faults.

Brokers with simple logs follow the metadata log of an ideal quorum, in which controllers fail over
with a decision under way. Brokers are killed, stopped in order, paused and cut off, lose their
disks one at a time, find damage, and get old copies of their disks back; an operator replaces the
disks of several, as fast as the status of the cluster allows; topics are made, moved and deleted
meanwhile. Checked at each record: P1, P3, P7, P13 and Q7 of the design of replication, at the end
that all are in sync again.
"""

from __future__ import annotations

from simulation.controller.oracle import Violation
from simulation.controller.world import World
from simulation.life import Life
from streamlog.broker.quorum.controller.leader_elections import CORRECT, ElectionRules
from streamlog.client.admin.cluster_descriptions import CORRECT as STATUS_CORRECT
from streamlog.client.admin.cluster_descriptions import EvidenceRules as StatusRules

__all__ = ["simulate"]


def simulate(
    seed: int, rules: ElectionRules = CORRECT, status_rules: StatusRules = STATUS_CORRECT
) -> Life:
    """Live one life; other rules are bugs that it has to find.

    `status_rules` are those of the status that an operator waits for.
    """
    world = World(seed, rules, status_rules)
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
