"""The settings of the group and transaction coordinators, a part of the broker's (`config`).

Rule of the file: that of `config`: a setting without an effect is not declared. Names are Kafka's
on the wire; the types of fields are those of `settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from streamlog.broker.config.resources import GROUP_RESOURCE, GroupOverrides, check_settings
from streamlog.broker.config.settings import (
    INT_MAX,
    NamedSetting,
    check_table,
    declared_settings,
    whole,
)
from streamlog.errors import ConfigError

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Bounds and delays of consumer groups.

    Raises:
        ConfigError: a value is out of range.
    """

    # Kafka waits 3 s, for fleets with state to move. 100 ms gathers what one machine starts
    # together, and nobody at a terminal notices it.
    initial_rebalance_delay_ms: int = whole(
        100,
        NamedSetting(
            "group.initial.rebalance.delay.ms",
            "How long an empty group waits for more members after each that comes.",
            "ms",
        ),
        most=DAY_MS,
    )
    # Kafka's is 6 s, against clients that flap; whoever tests how a group loses a member wants
    # less.
    session_timeout_ms_min: int = whole(
        100,
        NamedSetting("group.min.session.timeout.ms", "No member may ask for less.", "ms"),
        least=1,
        most=INT_MAX,
    )
    session_timeout_ms_max: int = whole(
        1_800_000,
        NamedSetting(
            "group.max.session.timeout.ms",
            "No member may ask for more: as long its partitions would lie idle after its death.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    size_max: int = whole(
        10_000,
        NamedSetting(
            "group.max.size",
            "Members of one group: each is held in memory, sent to the leader and kept in one"
            " record of the group.",
        ),
        least=1,
        most=100_000,
    )
    consumer_session_timeout_ms: int = whole(
        45_000,
        NamedSetting(
            "group.consumer.session.timeout.ms",
            "Of groups whose coordinator assigns (KIP-848): a member that has not been heard of"
            " for so long is given up.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    consumer_heartbeat_interval_ms: int = whole(
        5_000,
        NamedSetting(
            "group.consumer.heartbeat.interval.ms",
            "How often members of such a group are told to be heard of; they learn of changes"
            " then.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    consumer_size_max: int = whole(
        10_000,
        NamedSetting("group.consumer.max.size", "Members of one such group."),
        least=1,
        most=100_000,
    )
    offsets_retention_minutes: int = whole(
        7 * 24 * 60,
        NamedSetting(
            "offsets.retention.minutes",
            "How long a committed position is kept that serves nobody: since the group's last"
            " member left or, if a group of consumers goes on without its topic, since the"
            " commit.",
        ),
        least=1,
        most=INT_MAX,
    )
    offsets_retention_check_interval_ms: int = whole(
        600_000,
        NamedSetting(
            "offsets.retention.check.interval.ms",
            "How often it is looked for positions whose time is over.",
            "ms",
        ),
        least=1,
    )

    def for_group(self, overrides: Mapping[str, str]) -> GroupConfig:
        """These settings for a group that has some of its own, by their names and as text.

        Raises:
            ConfigError: a name is unknown, or a value malformed or out of range.
        """
        if not overrides:
            return self
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
                " more than"
                f" group.consumer.heartbeat.interval.ms={self.consumer_heartbeat_interval_ms}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Bounds of transactions, and of what is known of producers.

    Raises:
        ConfigError: a value is out of range.
    """

    timeout_ms_max: int = whole(
        900_000,
        NamedSetting(
            "transaction.max.timeout.ms",
            "No producer may ask for more: as long an abandoned transaction holds back those who"
            " read committed records.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    id_expiration_ms: int = whole(
        7 * DAY_MS,
        NamedSetting(
            "transactional.id.expiration.ms",
            "How long a transactional id is remembered after its last transaction.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    producer_id_expiration_ms: int = whole(
        DAY_MS,
        NamedSetting(
            "producer.id.expiration.ms",
            "How long a partition remembers the sequence numbers of a producer that writes nothing"
            " to it (KIP-854). One that sends a batch again after that may write it twice. Looked"
            " at with retention; the time of an outage does not count.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )

    def __post_init__(self) -> None:
        check_table(self)
