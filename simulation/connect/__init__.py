"""The level `connect`: an app of connectors on one broker, and all that goes wrong with both.

The shipped workers read an origin that forgets what it is told to be committed, and write a table
that has its offsets, files by ranges of the log, and lines. Workers are killed, paused beyond their
sessions, cut off and stopped; so is their broker.
"""

from __future__ import annotations

from typing import Final

from simulation.broker import SETTING as OF_BROKER
from simulation.connect.world import OF_WORKERS, ConnectWorld
from simulation.life import Life
from simulation.story import Setting
from simulation.story import simulate as simulate_story

BROKER_FAULTS: Final = ("kill", "stop", "pause", "cut", "reset", "slow network", "slow disk")
"""Those that a broker survives with its data; the level `broker` has the others."""
SETTING: Final = Setting(
    kinds=(*OF_WORKERS, *BROKER_FAULTS),
    nodes=OF_BROKER.nodes,
    begin=ConnectWorld,
    life_s=600.0,
)


def simulate(seed: int) -> Life:
    """One life."""
    return simulate_story(seed, SETTING)
