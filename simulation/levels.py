"""Levels: what can be simulated, by name. A new one is a line here."""

from __future__ import annotations

from simulation import broker, cluster, connect, controller, echo, isr, mirror, quorum, raft
from simulation.life import Level

LEVELS: dict[str, Level] = {
    "broker": broker.simulate,
    "cluster": cluster.simulate,
    "connect": connect.simulate,
    "controller": controller.simulate,
    "echo": echo.simulate,
    "isr": isr.simulate,
    "mirror": mirror.simulate,
    "quorum": quorum.simulate,
    "raft": raft.simulate,
}
