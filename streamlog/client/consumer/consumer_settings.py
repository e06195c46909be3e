"""Settings of a consumer and of its fetches, checked when the consumer is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypedDict

from streamlog.assignors import Assignor, RangeAssignor
from streamlog.client.group.classic_protocol import GroupProtocol, GroupSettings
from streamlog.client.offset_lookup import ISOLATION_LEVELS, Isolation
from streamlog.errors import ConfigError

Reset: TypeAlias = Literal["earliest", "latest", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How much to fetch, and where to begin."""

    auto_offset_reset: Reset = "latest"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 * 1024 * 1024
    max_partition_fetch_bytes: int = 1024 * 1024
    isolation_level: Isolation = "read_uncommitted"
    """read_committed: only records of committed transactions, and of none, up to the first
    transaction that is still open."""
    client_rack: str = ""
    """Where this reader stands, in the words of broker.rack: a leader sends it to a replica that is
    nearer, if replica.selector.class says so (KIP-392)."""
    metadata_max_age_ms: int = 300_000
    """How often a member looks for topics that have come, gone or grown, and how long a nearer
    replica is read from until the leader is asked for the nearest one again."""

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in {"earliest", "latest", "none"}:
            raise ConfigError(
                f"auto_offset_reset is {self.auto_offset_reset!r}: "
                "it can be 'earliest', 'latest' or 'none'"
            )
        if self.isolation_level not in ISOLATION_LEVELS:
            raise ConfigError(
                f"isolation_level is {self.isolation_level!r}: "
                "it can be 'read_committed' or 'read_uncommitted'"
            )
        for name in ("fetch_min_bytes", "fetch_max_wait_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it can't be negative")
        for name in ("fetch_max_bytes", "max_partition_fetch_bytes"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it has to be positive")


class ConsumerOptions(TypedDict, total=False):
    """`ConsumerSettings` as keywords."""

    group_id: str | None
    auto_offset_reset: Reset
    auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    metadata_max_age_ms: int
    rebalance_timeout_ms: int | None
    group_instance_id: str | None
    max_poll_records: int | None
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    isolation_level: Isolation
    client_rack: str
    time_marks: bool
    assignor: Assignor
    group_protocol: GroupProtocol
    group_remote_assignor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(FetchSettings):
    """Settings of a consumer; names and meanings are Kafka's, and most defaults."""

    group_id: str | None = None
    """Whose committed offsets to use, and whose member to be after `subscribe`."""
    auto_commit: bool = False
    """Commit what earlier polls returned, every `auto_commit_interval_ms` and when closing."""
    auto_commit_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    """How long the owner may take from one poll to the next. After that the consumer leaves its
    group, so that others read on; the next poll awaits `on_lost` and joins again."""
    max_poll_records: int | None = None
    """At most so many records a poll, unless it says otherwise; None: all that are there."""
    time_marks: bool = False
    """Keep the marks that tell of time without records, for `Consumer.time_marks`; a poll ends
    when one has come. Brokers of Kafka write none."""
    rebalance_timeout_ms: int | None = None
    """How long a rebalance waits for this consumer's owner to poll; None: as long as the owner may
    take, `max_poll_interval_ms`."""
    group_instance_id: str | None = None
    """Makes a static member (KIP-345): one that is back under the same id within its session gets
    what it had, without a rebalance. No two consumers of a group may have the same."""
    assignor: Assignor = field(default_factory=RangeAssignor)
    """Of the group's leader, with `group_protocol="classic"`."""
    group_protocol: GroupProtocol = "classic"
    """classic: a member assigns for all, by rounds; its timeouts are those above. consumer: the
    coordinator assigns (KIP-848), step by step, and tells how often to be heard of; then the
    session timeout is the broker's, and `session_timeout_ms` only how long this consumer reads on
    while it does not hear of its coordinator."""
    group_remote_assignor: str | None = None
    """By which of its assignors the coordinator is to assign (uniform, range); None: it chooses."""

    def __post_init__(self) -> None:
        super(ConsumerSettings, self).__post_init__()
        if self.auto_commit and self.group_id is None:
            raise ConfigError("auto_commit stores offsets for a group: set group_id")
        if self.group_protocol not in {"classic", "consumer"}:
            raise ConfigError(
                f"group_protocol is {self.group_protocol!r}: it can be 'classic' or 'consumer'"
            )
        if self.group_remote_assignor is not None and self.group_protocol != "consumer":
            raise ConfigError("group_remote_assignor needs group_protocol='consumer'")
        if self.group_instance_id is not None and not self.group_instance_id:
            raise ConfigError("group_instance_id is empty: name the member, or leave it out")
        for name in (
            "max_poll_interval_ms",
            "max_poll_records",
            "metadata_max_age_ms",
            "rebalance_timeout_ms",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} is {value}: it has to be positive")
        if not 0 < self.heartbeat_interval_ms < self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat_interval_ms is {self.heartbeat_interval_ms}: it has to be positive and "
                f"less than session_timeout_ms ({self.session_timeout_ms}), best a third of it"
            )

    @property
    def group(self) -> GroupSettings | None:
        """What a member of the group has to know, if there is one."""
        if self.group_id is None:
            return None
        return GroupSettings(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            max_poll_interval_ms=self.max_poll_interval_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms or self.max_poll_interval_ms,
            protocol=self.group_protocol,
            remote_assignor=self.group_remote_assignor,
            instance_id=self.group_instance_id,
        )
