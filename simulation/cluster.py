"""The level `cluster`: three brokers, which are the quorum as well, under load and in trouble.

What a broker has of its own is its machine: files, clocks, threads, and the network to the others.
Partitions have three copies of which two have to be in sync, and readers read from the one in their
rack. Beside the clients' history, what the brokers have on their disks and take for committed is
held against each other (`cluster_checker`).
"""

from __future__ import annotations

import random
from typing import Final

from simulation.cluster_checker import ClusterChecker
from simulation.life import Life
from simulation.network import Network
from simulation.node import DIRECTORY, PORT, Node
from simulation.story import Setting
from simulation.story import simulate as simulate_story
from simulation.trouble import OF_MANY
from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.config.cluster import BY_RACK, ClusterConfig, QuorumConfig, ReplicationConfig
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.storage.data_directory import format_directory

BROKERS: Final = (1, 2, 3)
RACKS: Final = ("a", "b", "c")
CLUSTER_ID: Final = "c" * 22


def _nodes(network: Network) -> list[Node]:
    chance = network.loop.chance
    voters = ",".join(f"{each}@b{each}:{PORT}" for each in BROKERS)
    quorum = QuorumConfig(
        voters=voters,
        snapshot_bytes=chance.choice((2_000, 1 << 20)),
    )
    segment_bytes = chance.choice((2_000, 100_000))
    nodes = []
    for each in BROKERS:
        node = Node(network, f"b{each}", config=_config(each, quorum, segment_bytes, chance))
        format_directory(DIRECTORY, node_id=each, cluster_id=CLUSTER_ID, files=node.disk)
        nodes.append(node)
    return nodes


def _config(
    node_id: int, quorum: QuorumConfig, segment_bytes: int, chance: random.Random
) -> BrokerConfig:
    return BrokerConfig(
        node_id=node_id,
        quorum=quorum,
        cluster=ClusterConfig(session_timeout_ms=3_000, heartbeat_interval_ms=500),
        rack=RACKS[BROKERS.index(node_id)],
        replication=ReplicationConfig(lag_time_max_ms=2_000, selector=BY_RACK),
        topic=TopicConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=chance.choice((64, 4_096)),
            min_insync_replicas=2,
        ),
        group=GroupConfig(initial_rebalance_delay_ms=chance.choice((0, 100))),
    )


SETTING: Final = Setting(
    kinds=OF_MANY,
    nodes=_nodes,
    watch=ClusterChecker,
    copies=len(BROKERS),
    racks=RACKS,
    calm_s=20.0,
)


def simulate(seed: int) -> Life:
    """One life."""
    return simulate_story(seed, SETTING)
