"""The table of settings of a cluster: what its controller decides by, and sessions of brokers.

Rule of the file: that of `config`. Names are Kafka's on the wire; what a field of a table can be
is `settings`'.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.config.settings import INT_MAX, NamedSetting, check_table, truth, whole

BY_CLUSTER = 0
"""A number that follows from how many brokers there are."""
REPLICAS_MAX = 100
"""Of one partition: each is a copy of all of it."""
DAY_S = 24 * 60 * 60
_REPLICAS_USUAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Replicas, and the sessions of brokers.

    Raises:
        ConfigError: a value is out of range.
    """

    replication_factor: int = whole(
        BY_CLUSTER,
        NamedSetting(
            "default.replication.factor",
            "Copies of each partition of a topic that is created without a number of its own; 0:"
            " 3, or as many as there are brokers if they are fewer.",
        ),
        most=REPLICAS_MAX,
    )
    session_timeout_ms: int = whole(
        9_000,
        NamedSetting(
            "broker.session.timeout.ms",
            "A broker whose last heartbeat is so long ago leads nothing any more.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    heartbeat_interval_ms: int = whole(
        2_000,
        NamedSetting(
            "broker.heartbeat.interval.ms",
            "How often a broker tells the controller that it lives.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    leader_rebalance: bool = truth(
        NamedSetting(
            "auto.leader.rebalance.enable",
            "Whether partitions go back to their preferred leaders by themselves.",
        ),
        default=True,
    )
    imbalance_check_interval_s: int = whole(
        300,
        NamedSetting(
            "leader.imbalance.check.interval.seconds",
            "How often the controller looks for partitions that their preferred leader could"
            " lead and does not, in seconds.",
        ),
        least=1,
        most=DAY_S,
    )

    def __post_init__(self) -> None:
        check_table(self)

    def copies(self, brokers: int) -> int:
        """Replicas of a partition whose creator leaves them to the cluster."""
        return self.replication_factor or max(1, min(_REPLICAS_USUAL, brokers))
