"""Settings of a consumer and of its fetches; the constructors check them."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

import msgspec

from streamlog.assignors import Assignor, RangeAssignor
from streamlog.client.group.classic_protocol import GroupProtocol, GroupSettings
from streamlog.client.offset_lookup import ISOLATION_LEVELS, Isolation
from streamlog.errors import ConfigError
from streamlog.transport.socket_buffers import check_buffers

Reset: TypeAlias = Literal["earliest", "latest", "none"]


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of fetches and of the initial position.

    Raises:
        ConfigError: a value is out of range.
    """

    auto_offset_reset: Reset = "latest"
    """The position where no offset is committed or the log does not hold the position: "earliest",
    "latest", or "none" to raise `OffsetOutOfRange` or `SourceLost`."""
    fetch_min_bytes: int = 1
    """Bytes for which the broker holds the answer back; 0 or more."""
    fetch_max_wait_ms: int = 500
    """Milliseconds that the broker holds an answer back at most; 0 or more."""
    fetch_max_bytes: int = 50 * 1024 * 1024
    """Most bytes in one answer; positive. The first batch is sent even if it is larger (KIP-74)."""
    max_partition_fetch_bytes: int = 1024 * 1024
    """Most bytes of one partition in an answer; positive, and with the exception of
    `fetch_max_bytes`."""
    isolation_level: Isolation = "read_uncommitted"
    """"read_committed" returns records of committed transactions and records without one, up to the
    last stable offset (KIP-98); "read_uncommitted" returns all records."""
    client_rack: str = ""
    """The reader's rack, as in broker.rack. If replica.selector.class says so, the leader redirects
    the reader to a nearer replica (KIP-392). Empty: read from the leader."""
    metadata_max_age_ms: int = 300_000
    """Milliseconds after which a member looks for new, deleted and grown topics again, and after
    which a reader of a nearer replica asks the leader for the nearest one again; positive."""

    send_buffer_bytes: int = -1
    """Bytes of the send buffer of each connection (SO_SNDBUF); -1: the system tunes it."""
    receive_buffer_bytes: int = -1
    """Bytes of the receive buffer of each connection (SO_RCVBUF); -1: the system tunes it."""

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
        check_buffers(self)
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
    send_buffer_bytes: int
    receive_buffer_bytes: int
    time_marks: bool
    assignor: Assignor
    group_protocol: GroupProtocol
    group_remote_assignor: str | None
    enable_metrics_push: bool


class ConsumerSettings(FetchSettings, frozen=True, kw_only=True):
    """Settings of a consumer; names and meanings, and most defaults, are Kafka's.

    Raises:
        ConfigError: a value is out of range, or two settings contradict each other.
    """

    group_id: str | None = None
    """The group whose committed offsets the consumer uses, and which `subscribe` joins."""
    auto_commit: bool = False
    """Commit the position behind the records of earlier polls every `auto_commit_interval_ms` and
    in `close`; needs a `group_id`."""
    auto_commit_interval_ms: int = 5_000
    """Milliseconds between auto-commits."""
    session_timeout_ms: int = 45_000
    """Milliseconds without a heartbeat after which the coordinator removes the member."""
    heartbeat_interval_ms: int = 3_000
    """Milliseconds between heartbeats; positive and below `session_timeout_ms`; a third is best."""
    max_poll_interval_ms: int = 300_000
    """Milliseconds that may pass from one poll to the next; positive. After that, the consumer
    leaves its group, so that other members take over; the next poll awaits `on_lost` and joins
    again (KIP-62)."""
    max_poll_records: int | None = None
    """Most records that a poll returns if it does not say otherwise; positive. None: no limit."""
    time_marks: bool = False
    """Keep the log's time marks for `Consumer.time_marks`; a poll returns when one arrives. Kafka's
    brokers write no marks."""
    rebalance_timeout_ms: int | None = None
    """Milliseconds that a rebalance waits for this consumer to poll; positive. None:
    `max_poll_interval_ms`."""
    group_instance_id: str | None = None
    """Makes a static member (KIP-345): a consumer that returns under the same id within the session
    timeout keeps its assignment, without a rebalance. Unique in the group."""
    assignor: Assignor = msgspec.field(default_factory=RangeAssignor)
    """The assignor that the group's leader uses, with `group_protocol="classic"`."""
    group_protocol: GroupProtocol = "classic"
    """"classic": the group's leader assigns in rounds, with the timeouts above. "consumer": the
    coordinator assigns incrementally and sets the heartbeat interval (KIP-848). The session timeout
    is then the broker's, and `session_timeout_ms` is how long this consumer keeps reading while the
    coordinator does not answer."""
    group_remote_assignor: str | None = None
    """The coordinator's assignor for `group_protocol="consumer"`: "uniform" or "range". None: the
    coordinator chooses."""
    enable_metrics_push: bool = True
    """Push the metrics that the brokers ask for (KIP-714)."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """The settings of the group's member; None without a `group_id`."""
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
