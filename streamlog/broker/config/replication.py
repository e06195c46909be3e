"""The table of settings of replicas, a part of the broker's (`config`).

Rule of the file: that of `config`. Names are Kafka's on the wire; what a field of a table can be
is `settings`'.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.config.settings import (
    INT_MAX,
    LONG_MAX,
    NamedSetting,
    check_table,
    choice,
    whole,
)

NO_SELECTOR = "none"
BY_RACK = "rack"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """How followers fetch, and when they lag.

    Raises:
        ConfigError: a value is out of range.
    """

    lag_time_max_ms: int = whole(
        30_000,
        NamedSetting(
            "replica.lag.time.max.ms",
            "A follower that has not had all that its leader has for so long is not in sync any"
            " more.",
            "ms",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    fetch_wait_max_ms: int = whole(
        500,
        NamedSetting(
            "replica.fetch.wait.max.ms",
            "For how long a leader keeps a follower waiting that has everything. Less than"
            " replica.lag.time.max.ms.",
            "ms",
            is_dynamic=False,
        ),
        most=INT_MAX,
    )
    fetch_max_bytes: int = whole(
        1024 * 1024,
        NamedSetting(
            "replica.fetch.max.bytes",
            "What a follower asks for of one partition at a time; a larger batch comes alone.",
            "bytes",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    fetch_response_max_bytes: int = whole(
        10 * 1024 * 1024,
        NamedSetting(
            "replica.fetch.response.max.bytes",
            "What a follower asks for of all partitions together.",
            "bytes",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    socket_timeout_ms: int = whole(
        30_000,
        NamedSetting(
            "replica.socket.timeout.ms",
            "A leader that has not answered a follower for so long is connected to anew.",
            "ms",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    leader_throttled_rate: int = whole(
        LONG_MAX,
        NamedSetting(
            "leader.replication.throttled.rate",
            "Bytes a second that followers may fetch from this broker of replicas in"
            " leader.replication.throttled.replicas. Who is in sync is not held back, and does not"
            " count.",
            "bytes",
        ),
        least=1,
    )
    follower_throttled_rate: int = whole(
        LONG_MAX,
        NamedSetting(
            "follower.replication.throttled.rate",
            "Bytes a second that this broker may fetch for replicas in"
            " follower.replication.throttled.replicas that are not in sync.",
            "bytes",
        ),
        least=1,
    )
    selector: str = choice(
        NO_SELECTOR,
        NamedSetting(
            "replica.selector.class",
            "Whom a leader sends readers to that say where they stand (client.rack): to a replica"
            " in sync in the same broker.rack, the fullest one (rack, or Kafka's name for it);"
            " none: to nobody else.",
            is_dynamic=False,
        ),
        (NO_SELECTOR, BY_RACK, "org.apache.kafka.common.replica.RackAwareReplicaSelector"),
    )

    def __post_init__(self) -> None:
        check_table(self)

    @property
    def sends_readers_near(self) -> bool:
        """Whether readers are sent to a replica in their rack."""
        return self.selector != NO_SELECTOR
