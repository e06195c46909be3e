"""The table of settings of replicas, a part of the broker's (`config`).

Rule of the file: that of `config`. Names are Kafka's on the wire; what a field of a table can be
is `settings`'.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.settings import INT_MAX, Named, check_table, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """How followers fetch, and when they lag.

    Raises:
        ConfigError: a value is out of range.
    """

    lag_time_max_ms: int = whole(
        30_000,
        Named(
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
        Named(
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
        Named(
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
        Named(
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
        Named(
            "replica.socket.timeout.ms",
            "A leader that has not answered a follower for so long is connected to anew.",
            "ms",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )

    def __post_init__(self) -> None:
        check_table(self)
