"""LogView: a log as the adviser looks at it, and Diagnosis: what is wrong with it.

Views are values: brokers, disks, topics, groups and transactions at one moment, with the rates of
an observation before it. `log_look` takes them from a running log; tests write them down.

Rule of the module: what is not known is None, never 0 or a default, because advice on a guess is
worse than none. `LogView.unseen` says in words what could not be looked at.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from streamlog.client.admin.cluster_descriptions import PartitionDescription, QuorumDescription
from streamlog.record import TopicPartition

Severity = Literal["critical", "warning"]
"""Records or service are lost now or at the next failure, or something costs more than it must."""
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning")
NO_NODE: Final = -1
SHOWN: Final = 3
"""The partitions, brokers or names that a diagnosis lists; of the others it gives the number."""


class Diagnosis(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    severity: Severity
    code: str
    """Names the kind, in words joined by hyphens; it stays the same between releases."""
    where: str
    """The topic, group, broker or node of the app."""
    problem: str
    outlook: str
    """What happens if nothing is done."""
    remedy: str
    """The command that mends it, or the change to make."""


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Where advice begins."""

    partition_bytes: int = 25 * 1024**3
    """A partition larger than this takes long to copy, to move and to restore."""
    broker_replicas: int = 4_000
    cluster_replicas: int = 200_000
    lag_ms: int = 5 * 60_000
    """The age of the next record from which a group counts as late."""
    catch_up_s: float = 60.0
    """A group that catches up within this time is not late."""
    retention_share: float = 0.8
    """A group whose next record has used this share of its retention is about to lose it."""
    skew: float = 3.0
    """A partition with this many times the mean of its topic is hot."""
    skew_records: int = 10_000
    """A topic with fewer records has no skew worth a change."""
    skew_bytes: int = 64 * 1024**2
    hot_key_share: float = 0.2
    sample_records: int = 500
    """With fewer sampled records, shares of keys and of late records mean nothing."""
    late_share: float = 0.01
    quiet_ms: int = 60_000
    """A partition whose newest record is this much older than its topic's holds back windows."""
    disk_free_share: float = 0.1
    disk_days: float = 7.0
    disk_watch_s: float = 5.0
    """An observation shorter than this says nothing about the growth of a disk."""
    clock_ms: int = 1_000
    """Clocks further apart than this, beyond the error of the measurement."""
    transaction_ms: int = 60_000
    """How far a transaction may be beyond its time-out before it counts as hanging."""
    push_interval_ms: int = 5_000
    """Clients that push their metrics more often than this cost more than they show."""
    leader_imbalance: float = 0.1
    """As `leader.imbalance.per.broker.percentage`, over all partitions."""
    voter_lag: int = 1_000


STANDARD: Final = Thresholds()


class BrokerView(msgspec.Struct, frozen=True, kw_only=True):
    """A registered broker."""

    node_id: int
    is_fenced: bool = False
    silent: str = ""
    """Why it did not answer; empty if it did, or was not asked."""
    version: str | None = None
    """The release of streamlog; None for another vendor's broker, or an older release."""
    interpreted: int | None = None
    """The number of hot modules that it runs without compilation."""
    connections: int | None = None
    """The connections that its limit of open files allows."""
    clock_ahead_ms: int | None = None
    """How far its clock is ahead of this machine's."""
    clock_error_ms: int = 0
    """The most by which `clock_ahead_ms` may be wrong."""
    settings: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    levels: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Logger to its level."""
    apis: Mapping[int, int] | None = None
    """API key to its newest version that both sides speak."""

    @property
    def name(self) -> str:
        """How a diagnosis calls it."""
        return f"broker {self.node_id}"

    @property
    def is_cordoned(self) -> bool:
        """Whether no new partition is placed on it (KIP-1066)."""
        return self.settings.get("cordoned.log.dirs") == "*"


class DiskView(msgspec.Struct, frozen=True, kw_only=True):
    """A log directory."""

    node_id: int
    path: str
    is_failed: bool = False
    used_bytes: int = 0
    """The size of its partitions."""
    total_bytes: int | None = None
    usable_bytes: int | None = None
    growth: Mapping[TopicPartition, float] = msgspec.field(default_factory=dict)
    """Bytes per second by which each partition grew during the observation."""
    sizes: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> str:
        """How a diagnosis calls it."""
        return f"{self.path} of broker {self.node_id}"


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its partitions and settings."""

    name: str
    is_internal: bool = False
    settings: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    """Empty if they could not be read."""
    partitions: tuple[PartitionDescription, ...] = ()
    begins: Mapping[int, int] = msgspec.field(default_factory=dict)
    """Partition to its log start offset."""
    ends: Mapping[int, int] = msgspec.field(default_factory=dict)
    """Partition to its high watermark."""
    rates: Mapping[int, float] = msgspec.field(default_factory=dict)
    """Records per second during the observation; empty without one."""
    sizes: Mapping[int, int] = msgspec.field(default_factory=dict)
    """Partition to the bytes of its largest replica."""

    def number(self, name: str) -> int | None:
        """Return a setting as a number; None if it is not known."""
        text = self.settings.get(name)
        return int(text) if text is not None and text.lstrip("-").isdecimal() else None

    @property
    def policies(self) -> frozenset[str]:
        """The words of `cleanup.policy`; empty if it is not known."""
        text = self.settings.get("cleanup.policy") or ""
        return frozenset(each.strip() for each in text.split(",")) - {""}

    @property
    def retention_ms(self) -> int | None:
        """How long records stay; None without a limit by time, or if it is not known."""
        kept_ms = self.number("retention.ms")
        return kept_ms if "delete" in self.policies and kept_ms not in (None, NO_NODE) else None

    @property
    def retention_bytes(self) -> int | None:
        """How large a partition may grow; None without a limit, or if it is not known."""
        kept = self.number("retention.bytes")
        return kept if "delete" in self.policies and kept not in (None, NO_NODE) else None

    @property
    def records(self) -> dict[int, int]:
        """Partition to the number of offsets that it holds."""
        return {number: end - self.begins.get(number, 0) for number, end in self.ends.items()}


BETWEEN_COMMITS_MS = 6_000
"""More than the time between two commits of Kafka's consumers, 5 s by default."""


class ReadingView(msgspec.Struct, frozen=True, kw_only=True):
    """A group's progress in one partition."""

    committed: int
    lag: int | None
    lag_ms: int | None = None
    """The age of the next record; None if the brokers don't say."""
    lost: int | None = None
    """Offsets that were deleted before the group read them."""
    consume_rate: float | None = None
    """Offsets per second that the group committed during the observation."""
    produce_rate: float | None = None

    @property
    def is_behind(self) -> bool:
        """Whether there is a record to read."""
        if self.lag is None:
            return False
        # A transaction marker at the end counts as one offset of lag, and is no record.
        return self.lag_ms > 0 if self.lag_ms is not None else self.lag > 1

    @property
    def is_falling_behind(self) -> bool:
        """Whether more is written than the group reads, and the next record waits for it."""
        if self.lag is None or self.consume_rate is None or self.produce_rate is None:
            return False
        return self.waits and self.produce_rate > self.consume_rate

    @property
    def waits(self) -> bool:
        """Whether records wait for longer than until the next commit."""
        # A group that keeps up is behind by what came since its last commit. In a short look, that
        # alone makes its rate the lower one.
        if not self.is_behind or self.lag_ms is not None:
            return self.is_behind and (self.lag_ms or 0) >= BETWEEN_COMMITS_MS
        return 1000 * (self.lag or 0) >= BETWEEN_COMMITS_MS * (self.produce_rate or 0)

    @property
    def catch_up_s(self) -> float | None:
        """Seconds until it has caught up; None if that is not known, or never."""
        if self.lag is None or self.consume_rate is None or self.produce_rate is None:
            return None
        gained = self.consume_rate - self.produce_rate
        return (self.lag - (self.lost or 0)) / gained if gained > 0 else None


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group."""

    group_id: str
    kind: str = "classic"
    state: str = "Stable"
    was_rebalancing: bool = False
    """Whether it was in a rebalance when the observation began, too."""
    members: Mapping[str, frozenset[TopicPartition]] = msgspec.field(default_factory=dict)
    """Member to its partitions."""
    readings: Mapping[TopicPartition, ReadingView] = msgspec.field(default_factory=dict)


class TransactionView(msgspec.Struct, frozen=True, kw_only=True):
    """An open transaction."""

    transactional_id: str
    open_ms: int
    timeout_ms: int
    partitions: frozenset[TopicPartition] = frozenset()


class MirrorView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that is a copy of another cluster's."""

    name: str
    link: str
    is_stopped: bool
    """Whether it copies nothing until an operator acts."""
    reason: str = ""
    """Why it is in its state."""


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """A log at one moment."""

    url: str = "URL"
    is_streamlog: bool = True
    controller: int = 1
    brokers: tuple[BrokerView, ...] = ()
    disks: tuple[DiskView, ...] = ()
    topics: Mapping[str, TopicView] = msgspec.field(default_factory=dict)
    groups: Mapping[str, GroupView] = msgspec.field(default_factory=dict)
    transactions: tuple[TransactionView, ...] = ()
    quorum: QuorumDescription | None = None
    moves: int = 0
    """Reassignments in progress."""
    subscriptions: Mapping[str, Mapping[str, str | None]] = msgspec.field(default_factory=dict)
    """Subscription to metrics of clients (KIP-714) to its settings."""
    mirrors: tuple[MirrorView, ...] = ()
    """Topics that are copies of another cluster's."""
    watched_s: float = 0.0
    """How long the log was observed."""
    unseen: tuple[str, ...] = ()
    """What could not be looked at, and why."""

    def command(self, *words: str) -> str:
        """Return a command of streamlog for this log."""
        return f"streamlog {' '.join(words)} --log {shlex.quote(self.url)}"

    def alter_topic(self, topic: str, setting: str, value: object) -> str:
        """Return the command that sets a setting of a topic."""
        return self.command(f"configs alter --topic {topic} --set {setting}={value}")


def listed(names: Iterable[str]) -> str:
    """Return the first names, and the number of the others."""
    given = list(names)
    more = f" and {len(given) - SHOWN} more" if len(given) > SHOWN else ""
    return ", ".join(given[:SHOWN]) + more


def span(ms: float) -> str:
    """Return a time in the largest unit that fits."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= unit_ms:
            return f"{ms / unit_ms:.3g} {unit}"
    return f"{ms:.3g} ms"


def size(amount: float) -> str:
    """Return bytes in the largest unit that fits."""
    for unit_bytes, unit in ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if amount >= unit_bytes:
            return f"{amount / unit_bytes:.3g} {unit}"
    return f"{amount:.3g} bytes"
