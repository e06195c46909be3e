"""ReplicaLog, ReplicaState: the offsets of a replica's log, its committed state, and its effects.

`ReplicaLog` holds the log's start and end, the end of what is on disk, and the high watermark. The
shell reports appends and syncs, and performs the effects in order. `ReplicaLog` already contains
the outcome of an effect that is returned, so the shell performs it at once, or stops.
`ReplicaRules` are faults that a simulation plants. The metadata quorum (`quorum/raft`) shares some
effects.

Rules of this module: effects are frozen values without behavior. `flushed_offset` is what the disk
is known to have. A sync that began before a truncation proves nothing about later appends, so each
cut begins a generation, and only syncs of the current one count:
  1. A sync of 10 records begins. 2. The log is cut to 8 and gets two other records.
  3. The sync ends: the disk has 8 of the log's records, not 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

NO_LEADER = -1
NO_EPOCH = -1
"""The leader epoch of an empty log, or the broker epoch of an unregistered broker."""


class MirrorOf(msgspec.Struct, frozen=True, kw_only=True):
    """The partition of another cluster that a mirror partition copies."""

    link_id: bytes
    topic: str
    topic_id: bytes
    floor_epoch: int = NO_EPOCH
    """The first leader epoch of the source's era: nothing is cut before it once it is copied."""
    ceiling_epoch: int = NO_EPOCH
    """The source has no record of this leader epoch or a later one, whatever the log here has."""


class CutOf(msgspec.Struct, frozen=True):
    """Where the promotion of a mirror cuts a partition."""

    offset: int
    leader_epoch: int
    """The first one of the era that begins with the promotion."""


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's state as the controller has committed it."""

    leader: int
    """The broker that leads the partition, or `NO_LEADER`."""
    leader_epoch: int
    """Grows with every election: a leader's term."""
    partition_epoch: int
    """Grows with every change of this state, of the in-sync replicas too (KIP-497)."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    """The replicas that may lead although they are not in sync (KIP-966)."""
    last_unclean_epoch: int = NO_EPOCH
    """The last leader epoch that began with an unclean election."""
    mirror_of: MirrorOf | None = None
    """What the leader copies instead of serving producers; None for a partition of its own."""
    cut: CutOf | None = None
    """Where a leader has to cut the log, unless it has records of that era."""
    sealed_for: str = ""
    """The cluster that takes the topic over, so that producers are refused; empty for none."""


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings by which a leader decides what is in sync and what is committed."""

    lag_max_ms: int
    """For how long a follower may lag behind and stay in sync (`replica.lag.time.max.ms`)."""
    min_insync: int
    """How many replicas must be in sync for a record to be committed (`min.insync.replicas`)."""


@dataclass(slots=True)
class BrokerIdentity:
    """The broker of a replica, and the epoch of its registration (KIP-903)."""

    id: int
    epoch: int = NO_EPOCH


class AdvanceHighWatermark(msgspec.Struct, frozen=True):
    """Records below `offset` are committed: they never change, and consumers may read them."""

    offset: int


class Acknowledge(msgspec.Struct, frozen=True):
    """Answer `ticket`: its records are committed."""

    ticket: int


class RefuseAcknowledgement(msgspec.Struct, frozen=True):
    """Answer `ticket` with NOT_ENOUGH_REPLICAS_AFTER_APPEND: too few replicas are in sync."""

    ticket: int


class LoseLeadership(msgspec.Struct, frozen=True):
    """This node leads `leader_epoch` no longer; answer `tickets` with the new leader, if known.

    Records of these tickets may still be committed, or may be lost.
    """

    leader_epoch: int
    tickets: tuple[int, ...]


class ProposeIsr(msgspec.Struct, frozen=True):
    """Ask the controller for this in-sync set (AlterPartition, KIP-497).

    The shell repeats the request until the controller answers or newer metadata arrives.
    """

    number: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """Brokers, with the broker epoch of their last fetch; `NO_EPOCH` before their first."""


class BeginEpoch(msgspec.Struct, frozen=True):
    """Give this leader epoch to batches that are appended from `offset` on."""

    epoch: int
    offset: int


class AppendBatches(msgspec.Struct, frozen=True):
    """Append the fetched batches unchanged, up to `end_offset`, and sync them."""

    end_offset: int


class Truncate(msgspec.Struct, frozen=True):
    """Cut the log at `offset`, durably, before any effect that follows."""

    offset: int


class StartAt(msgspec.Struct, frozen=True):
    """Empty the log, and let it continue at `offset`, where the leader's log begins."""

    offset: int


class AdvanceLogStart(msgspec.Struct, frozen=True):
    """Delete the records below `offset`, as the leader has."""

    offset: int


class StopReplica(msgspec.Struct, frozen=True):
    """Stop this replica and report why: to continue, it would have to cut committed records."""

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


class ReplicaFetch(msgspec.Struct, frozen=True, kw_only=True):
    """A follower's fetch, which confirms that everything before `offset` is on its disk."""

    broker: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int
    """The leader epoch of the record before `offset`; `NO_EPOCH` of an empty log."""
    log_start: int
    """The start offset of the follower's log."""
    number: int = 0
    """It rises with each fetch of a process; 0 for no number."""


class OutstandingFetch(msgspec.Struct, frozen=True):
    """The one fetch of a follower that is not answered yet."""

    fetch_id: tuple[int, int]
    leader: int
    fetch: ReplicaFetch


class Serve(msgspec.Struct, frozen=True):
    """Answer with batches from the requested offset on, synced or not, and with these offsets."""

    high_watermark: int
    log_start: int


class Diverging(msgspec.Struct, frozen=True):
    """The follower's log is not a prefix of the leader's (KIP-595).

    `epoch` is the leader's last epoch that is not after the follower's last one; it ends at
    `end_offset` in the leader's log.
    """

    epoch: int
    end_offset: int


class ReplicaError(msgspec.Struct, frozen=True):
    """An error code of Kafka, and the start offset of the leader's log."""

    code: int
    log_start: int


FetchAnswer: TypeAlias = Serve | Diverging | ReplicaError


class Epochs(Protocol):
    """Port: the leader epochs of a log."""

    def at(self, offset: int) -> int:
        """Return the leader epoch of the record at `offset`."""
        ...

    def start_after(self, epoch: int) -> int | None:
        """Return the start offset of the first epoch after `epoch`; None if there is none."""
        ...


@dataclass(slots=True, kw_only=True)
class ReplicaLog:
    """The offsets of one replica's log."""

    epochs: Epochs
    start_offset: int
    end_offset: int
    flushed_offset: int
    high_watermark: int
    strict: bool = True
    """Whether only synced records count (`flush=always`)."""
    generation: int = 0
    """The number of cuts, see the head of this module."""

    @property
    def counted_offset(self) -> int:
        """The offset up to which the replica may confirm its log."""
        return min(self.flushed_offset, self.end_offset) if self.strict else self.end_offset

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record; `NO_EPOCH` of an empty log."""
        if self.end_offset <= self.start_offset:
            return NO_EPOCH
        return self.epochs.at(self.end_offset - 1)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """Return the last epoch in the log that is not after `epoch`, and its end offset.

        If all records of `epoch` and earlier ones were deleted, this is `epoch` itself and the
        log's start: a follower that ends there, or before, can continue at the log's start.
        """
        start = self.start_offset
        if self.end_offset <= start or epoch < self.epochs.at(start):
            return epoch, start
        # 1. The leader has epochs 1 (up to 6) and 3 (up to 9), and none of epoch 2. 2. A follower
        #    asks for epoch 2. 3. Epoch 3 begins at 6, and the record before it is of epoch 1: the
        #    answer is epoch 1, which ends at 6.
        following = self.epochs.start_after(epoch)
        end_offset = self.end_offset if following is None else min(following, self.end_offset)
        return self.epochs.at(end_offset - 1), end_offset

    def cut(self, offset: int) -> None:
        """Note that the records from `offset` on are cut off."""
        self.end_offset = offset
        # What is cut off no longer counts as synced or as committed. A cut below the log's start
        # leaves an empty log that begins at the cut.
        self.flushed_offset = min(self.flushed_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.start_offset = min(self.start_offset, offset)
        self.generation += 1

    def start_at(self, offset: int) -> None:
        """Note that the log is emptied and continues at `offset`."""
        self.start_offset = self.end_offset = self.flushed_offset = offset
        self.high_watermark = offset
        self.generation += 1


class ReplicaRules(msgspec.Struct, frozen=True, kw_only=True):
    """Faults that a simulation plants in a partition's replicas, all absent in production."""

    commits_on_append: bool = False
    """The high watermark follows the leader's own log: acks=all waits for no follower."""
    truncates_to_high_watermark: bool = False
    """A new follower cuts its log to its own high watermark (no KIP-101)."""
    compares_ends_only: bool = False
    """The leader compares where a follower's last epoch ended, not which epoch (no KIP-279)."""
    skips_divergence_check: bool = False
    """The leader does not compare a follower's log with its own."""
    fetches_before_flush: bool = False
    """A follower fetches, and so confirms its log, before the log is synced."""
    shrinks_at_once: bool = False
    """A smaller in-sync set counts before the controller confirms it."""
    forgets_pending_isr: bool = False
    """The high watermark does not wait for a replica that was proposed (no KIP-497)."""
    joins_before_epoch_start: bool = False
    """A replica may join that has not reached the start of the leader's epoch (no KIP-966)."""
    ignores_broker_epochs: bool = False
    """The progress of a broker's earlier registration counts for the present one (no KIP-903)."""
    ignores_leader_epochs: bool = False
    """The leader does not compare the leader epoch of a fetch."""
    ignores_min_insync_in_commits: bool = False
    """The high watermark advances with fewer replicas in sync than `min.insync.replicas`."""
    ignores_min_insync_in_answers: bool = False
    """Such a commit is acknowledged without an error."""
    repeats_fetch_ids: bool = False
    """The numbers of fetches begin again with every start of a broker."""
    takes_old_metadata: bool = False
    """A broker acts on metadata that was committed before its registration."""
    ignores_generations: bool = False
    """A sync that began before a truncation counts after it."""


CORRECT = ReplicaRules()
"""No fault, as in production."""
