"""What replicas are told and what they decide, as data; their shell performs it, in order.

Rule of the file: frozen values, no behaviour. What a decision does to the numbers of its replica
has been noted when it is returned, so the shell performs it at once or stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

NO_LEADER = -1
NO_EPOCH = -1
"""No epoch is known: of an empty log, or of a broker that is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """What the controller has committed of one partition."""

    leader: int
    """The broker that leads it, or `NO_LEADER`."""
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    last_unclean_epoch: int = NO_EPOCH
    """The last leader epoch whose leader was elected outside of the in-sync set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Settings of the topic and the broker that decide who is in sync."""

    lag_max_ms: int
    """For how long a follower may lag behind and stay in sync (`replica.lag.time.max.ms`)."""
    min_insync: int
    """How many replicas must be in sync for a record to be committed (`min.insync.replicas`)."""


@dataclass(slots=True)
class BrokerIdentity:
    """Which broker a replica belongs to, and the epoch of its registration."""

    id: int
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Records below `offset` are committed: consumers may see them."""

    offset: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """What was appended for `ticket` is committed: answer."""

    ticket: int


@dataclass(frozen=True, slots=True)
class RefuseAcknowledgement:
    """What was appended for `ticket` is committed by too few: NOT_ENOUGH_REPLICAS_AFTER_APPEND."""

    ticket: int


@dataclass(frozen=True, slots=True)
class LoseLeadership:
    """This broker leads no more: whoever waits for one of `tickets` has to ask the new leader."""

    leader_epoch: int
    tickets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Ask the controller for this in-sync set (AlterPartition), until it or metadata answers."""

    number: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """Brokers and the epochs that they were seen with; `NO_EPOCH` if they were not seen."""


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Batches appended from now on are of this leader epoch; it begins at `offset`."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append the batches that were fetched, as they are, and bring them to disk."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log: nothing from `offset` on stays."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartAt:
    """Empty the log: it goes on at `offset`, where the leader's begins."""

    offset: int


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Delete what is below `offset`, as the leader has."""

    offset: int


@dataclass(frozen=True, slots=True)
class StopReplica:
    """The log would have to lose what was committed: touch it no more, and say so loudly."""

    reason: str


Effect: TypeAlias = (
    AdvanceHighWatermark
    | Acknowledge
    | RefuseAcknowledgement
    | LoseLeadership
    | ProposeIsr
    | BeginEpoch
    | Append
    | Truncate
    | StartAt
    | AdvanceLogStart
    | StopReplica
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFetch:
    """What a follower asks its leader for, and thereby claims to have on disk."""

    broker: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int
    """The epoch of the record before `offset`; `NO_EPOCH` of an empty log."""
    log_start: int


@dataclass(frozen=True, slots=True)
class OutstandingFetch:
    """The one fetch of a follower that has not been answered."""

    fetch_id: tuple[int, int]
    leader: int
    fetch: ReplicaFetch


@dataclass(frozen=True, slots=True)
class Serve:
    """Answer with batches from the offset that was asked for, synced or not, and these bounds."""

    high_watermark: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Diverging:
    """The follower's log is not a beginning of ours: it has to go back to where `epoch` ended."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error code of Kafka, and where the leader's log begins."""

    code: int
    log_start: int


FetchAnswer: TypeAlias = Serve | Diverging | Refusal
