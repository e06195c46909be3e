"""The level `broker`: one whole broker under a load of our own clients, and all that goes wrong.

A broker that is alone is the quorum of one, and nobody has a copy of what it has: what it says is
on its disk has to be.
"""

from __future__ import annotations

import random
from typing import Final

from simulation.life import Life
from simulation.network import Network
from simulation.node import Node
from simulation.story import Setting
from simulation.story import simulate as simulate_story
from simulation.trouble import OF_ONE
from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.config.coordinators import GroupConfig

NAME: Final = "b1"


def _nodes(network: Network) -> list[Node]:
    return [Node(network, NAME, config=_config(network.loop.chance))]


def _config(chance: random.Random) -> BrokerConfig:
    return BrokerConfig(
        topic=TopicConfig(
            segment_bytes=chance.choice((2_000, 100_000)),
            index_interval_bytes=chance.choice((64, 4_096)),
        ),
        group=GroupConfig(initial_rebalance_delay_ms=chance.choice((0, 100))),
    )


SETTING: Final = Setting(kinds=OF_ONE, nodes=_nodes)


def simulate(seed: int) -> Life:
    """One life."""
    return simulate_story(seed, SETTING)
