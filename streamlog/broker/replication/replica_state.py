"""Replica state: the log's numbers that a replica decides by, and its decisions as data.

`ReplicaLog` holds where the log begins and ends, how much of it is on disk, and up to where it is
committed. The shell reports appends and syncs, performs the decisions in order, and performs each
at once or stops, because its effect on the numbers is noted when it is returned. `ReplicaRules`
are the safety rules in force: all of them, except in a simulation that plants a fault.

Rules of this module: decisions are frozen values without behaviour. `flushed_offset` is what the
disk is known to have. A sync that began before a truncation says nothing about later appends, so
each cut begins a generation, and only syncs of the current one count. A scenario: a sync of 10
records begins; the log is cut to 8 and gets 2 others; the sync ends, and the disk has 8 of the
log's records, not 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

NO_LEADER = -1
NO_EPOCH = -1
"""No epoch is known: of an empty log, or of a broker that is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
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
class AppendBatches:
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
    | AppendBatches
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
class ReplicaError:
    """An error code of Kafka, and where the leader's log begins."""

    code: int
    log_start: int


FetchAnswer: TypeAlias = Serve | Diverging | ReplicaError


class Epochs(Protocol):
    """Which leader epoch wrote which offsets."""

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`."""
        ...

    def start_after(self, epoch: int) -> int | None:
        """Where the first epoch after `epoch` begins; None if there is none."""
        ...


@dataclass(slots=True, kw_only=True)
class ReplicaLog:
    """The log of one replica."""

    epochs: Epochs
    start_offset: int
    end_offset: int
    flushed_offset: int
    high_watermark: int
    strict: bool = True
    """Whether only what is on disk counts (`flush=always`)."""
    generation: int = 0

    @property
    def counted_offset(self) -> int:
        """Below this offset the replica may claim to have everything."""
        return min(self.flushed_offset, self.end_offset) if self.strict else self.end_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; `NO_EPOCH` of an empty log."""
        if self.end_offset <= self.start_offset:
            return NO_EPOCH
        return self.epochs.at(self.end_offset - 1)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The last epoch in the log that is not after `epoch`, and where it ends.

        Of one whose records were all deleted: `epoch` itself, and where the log begins. Whoever
        ends there, or before, may go on at the log's start.
        """
        start = self.start_offset
        if self.end_offset <= start or epoch < self.epochs.at(start):
            return epoch, start
        following = self.epochs.start_after(epoch)
        end_offset = self.end_offset if following is None else min(following, self.end_offset)
        return self.epochs.at(end_offset - 1), end_offset

    def cut(self, offset: int) -> None:
        """Nothing from `offset` on stays."""
        self.end_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.start_offset = min(self.start_offset, offset)
        self.generation += 1

    def start_at(self, offset: int) -> None:
        """Nothing stays; the log goes on at `offset`."""
        self.start_offset = self.end_offset = self.flushed_offset = offset
        self.high_watermark = offset
        self.generation += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRules:
    """Planted faults of a partition's replicas, all absent."""

    commits_on_append: bool = False
    """The high watermark follows the leader's own log: acks=all waits for nobody."""
    truncates_to_high_watermark: bool = False
    """A new follower cuts its log to its own high watermark (before KIP-101)."""
    compares_ends_only: bool = False
    """Where a follower's last epoch ended is looked at, but not which one it is (no KIP-279)."""
    skips_divergence_check: bool = False
    """A follower is taken to have what the leader has, up to where it asks from."""
    fetches_before_flush: bool = False
    """A follower asks for more, and so claims what it has, before that is on its disk."""
    shrinks_at_once: bool = False
    """A smaller in-sync set counts before the controller has confirmed it."""
    forgets_pending_isr: bool = False
    """The high watermark does not wait for a replica that has been proposed (no KIP-497)."""
    joins_before_epoch_start: bool = False
    """A replica may join that has not reached where the leader's epoch began (no KIP-966)."""
    ignores_broker_epochs: bool = False
    """What an earlier life of a broker has fetched counts for the present one (no KIP-903)."""
    ignores_leader_epochs: bool = False
    """The leader epoch in a fetch is not compared."""
    ignores_min_insync_in_commits: bool = False
    """The high watermark moves on however few replicas are in sync."""
    ignores_min_insync_in_answers: bool = False
    """A producer is answered without an error however few replicas are in sync."""
    repeats_fetch_ids: bool = False
    """The numbers of fetches begin anew with every life of a broker."""
    takes_old_metadata: bool = False
    """What was committed before this life of the broker was registered is acted upon."""
    ignores_generations: bool = False
    """A sync that began before a truncation counts after it."""


CORRECT = ReplicaRules()
"""Of everything that serves users."""
