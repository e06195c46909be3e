"""The settings of the group and transaction coordinators, a part of the broker's settings.

Rule of the file, as in `config/broker`: a setting without an effect is not declared. Names are
Kafka's on the wire; `settings` defines the types of fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamlog.broker.config.resources import GROUP_RESOURCE, GroupOverrides, check_settings
from streamlog.broker.config.settings import (
    INT_MAX,
    NamedSetting,
    check_table,
    declared_settings,
    integer,
)
from streamlog.errors import ConfigError
from streamlog.replace import replace

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Limits and delays of consumer groups.

    Raises:
        ConfigError: a value is out of range.
    """

    # Kafka waits 3 s, for fleets that start slowly. 100 ms gathers what one machine starts
    # together, and is not noticeable at a terminal.
    initial_rebalance_delay_ms: int = integer(
        100,
        NamedSetting(
            "group.initial.rebalance.delay.ms",
            "How long the first rebalance of an empty group waits after each new member.",
            "ms",
        ),
        maximum=DAY_MS,
    )
    # Kafka's is 6 s, to protect brokers from clients that flap. Tests of the loss of a member
    # want less.
    session_timeout_ms_min: int = integer(
        100,
        NamedSetting(
            "group.min.session.timeout.ms",
            "The shortest session time-out that a member may request.",
            "ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    session_timeout_ms_max: int = integer(
        1_800_000,
        NamedSetting(
            "group.max.session.timeout.ms",
            "The longest session time-out that a member may request: when it dies, its partitions"
            " are not processed for this long.",
            "ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    size_max: int = integer(
        10_000,
        NamedSetting(
            "group.max.size",
            "The most members of one group: each is held in memory, sent to the leader and kept in"
            " one record of the group.",
        ),
        minimum=1,
        maximum=100_000,
    )
    consumer_session_timeout_ms: int = integer(
        45_000,
        NamedSetting(
            "group.consumer.session.timeout.ms",
            "The session time-out of members of groups with the consumer protocol (KIP-848): a"
            " member that is silent for longer is removed.",
            "ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    consumer_heartbeat_interval_ms: int = integer(
        5_000,
        NamedSetting(
            "group.consumer.heartbeat.interval.ms",
            "The heartbeat interval of members of groups with the consumer protocol; they learn of"
            " changes by heartbeats.",
            "ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    consumer_size_max: int = integer(
        10_000,
        NamedSetting(
            "group.consumer.max.size", "The most members of one group with the consumer protocol."
        ),
        minimum=1,
        maximum=100_000,
    )
    offsets_retention_minutes: int = integer(
        7 * 24 * 60,
        NamedSetting(
            "offsets.retention.minutes",
            "How long a committed offset is kept when it is not in use: since the group's last"
            " member left or, if the group still has members but does not subscribe to the topic,"
            " since the commit.",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    offsets_retention_check_interval_ms: int = integer(
        600_000,
        NamedSetting(
            "offsets.retention.check.interval.ms",
            "The interval of checks for expired committed offsets.",
            "ms",
        ),
        minimum=1,
    )

    def for_group(self, overrides: Mapping[str, str]) -> GroupConfig:
        """Return these settings for a group with settings of its own, by their names and as text.

        Raises:
            ConfigError: a name is unknown, or a value malformed or out of range.
        """
        if not overrides:
            return self
        # Only those with a broker setting have an effect here; the others are Kafka's, for share
        # and streams groups, and are ignored.
        own = check_settings(GROUP_RESOURCE, overrides)
        inherited = {
            each.setting.broker_name: getattr(own, each.attribute)
            for name, each in declared_settings(GroupOverrides).items()
            if name in overrides and each.setting.broker_name
        }
        known = declared_settings(GroupConfig)
        return replace(self, **{known[name].attribute: value for name, value in inherited.items()})

    def __post_init__(self) -> None:
        check_table(self)
        if self.session_timeout_ms_max < self.session_timeout_ms_min:
            raise ConfigError(
                f"group.max.session.timeout.ms={self.session_timeout_ms_max} is below"
                f" group.min.session.timeout.ms={self.session_timeout_ms_min}"
            )
        if self.consumer_session_timeout_ms <= self.consumer_heartbeat_interval_ms:
            raise ConfigError(
                f"group.consumer.session.timeout.ms={self.consumer_session_timeout_ms} must be"
                " greater than"
                f" group.consumer.heartbeat.interval.ms={self.consumer_heartbeat_interval_ms}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Limits of transactions, and of what brokers remember about producers.

    Raises:
        ConfigError: a value is out of range.
    """

    timeout_ms_max: int = integer(
        900_000,
        NamedSetting(
            "transaction.max.timeout.ms",
            "The longest transaction time-out that a producer may request: for that long an"
            " abandoned transaction holds up readers of committed records.",
            "ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    id_expiration_ms: int = integer(
        7 * DAY_MS,
        NamedSetting(
            "transactional.id.expiration.ms",
            "How long a transactional id is kept after its last transaction.",
            "ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    producer_id_expiration_ms: int = integer(
        DAY_MS,
        NamedSetting(
            "producer.id.expiration.ms",
            "How long a partition remembers the sequence numbers of a producer that writes nothing"
            " to it (KIP-854). A producer that retries a batch after that may write it twice. It is"
            " checked with retention; time during which the broker is down does not count.",
            "ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )

    def __post_init__(self) -> None:
        check_table(self)
