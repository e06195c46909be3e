"""The messages of the quorum's members, and the effects that `Raft` hands to its shell.

The messages are Kafka's (KIP-595, KIP-630, KIP-996, KIP-1166) without their lists of topics and
partitions, because the quorum replicates one partition. Their fields have the protocol's names:
`raft_wire` derives the translation from them. Effects that a partition's replica also has
(`Truncate`, `AdvanceHighWatermark`, `LoseLeadership`, `StopReplica`), and the point of divergence
(`Diverging`), are declared once, in `replication/replica_state`.

Rules of this module: frozen values without behavior. Offsets count records. An `Entry` is one
atomic batch of records; its payload is opaque here.

Not done here: encoding (`raft_wire`, `log_entries`), files (`quorum_files`).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from streamlog.broker.replication.replica_state import (
    AdvanceHighWatermark,
    Diverging,
    LoseLeadership,
    StopReplica,
    Truncate,
)
from streamlog.protocol.error_codes import ErrorCode

REJOIN_IDS = 2**62
"""Bound of a `rejoin_id`, which is drawn from 1 to this number; 0 stands for no loss."""


class QuorumState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a member syncs before it performs any effect that depends on it.

    Kafka's `quorum-state` file. Without it a voter that restarts could vote twice in one epoch.
    """

    epoch: int = 0
    voted_id: int | None = None
    """The candidate that has this member's vote in `epoch`."""
    leader_id: int | None = None
    """The leader of `epoch`, if this member knows it."""
    rejoin_id: int = 0
    """Not 0 while this member may have forgotten what it once confirmed, because its disk was
    replaced or damaged. Until a leader lets it in again, it does not vote and does not count
    towards a majority. The number distinguishes one such loss from the next."""
    voters: tuple[int, ...] = ()
    """The voters of this log; empty if the file does not say."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic batch of records."""

    base_offset: int
    count: int
    """The number of records, at least 1."""
    epoch: int
    """The epoch of the leader that wrote it."""
    payload: bytes
    is_control: bool = False
    """Whether the quorum wrote it for itself: a leader's first entry of its epoch, or the entry
    that lets a voter in again. The metadata ignores control entries."""

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.count


class RaftSnapshotId(msgspec.Struct, frozen=True, order=True):
    """The id of a snapshot of all records before `end_offset` (KIP-630)."""

    end_offset: int = 0
    epoch: int = 0
    """The epoch of the last record that the snapshot covers."""


EMPTY = RaftSnapshotId()
"""The start of a log that has no snapshot."""


# ---- requests and responses ----


class RaftVoteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate asks for a vote, or whether it would get one (`pre_vote`, KIP-996)."""

    candidate_epoch: int
    """The epoch that the candidate wants to lead; of a pre-vote, its current epoch."""
    candidate_id: int
    last_offset_epoch: int
    """The epoch of the last entry in the candidate's log."""
    last_offset: int
    """The end offset of the candidate's log."""
    pre_vote: bool


class RaftVoteResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A vote, with the epoch and the leader that the voter knows."""

    leader_epoch: int
    leader_id: int | None
    vote_granted: bool


class BeginEpochRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A new leader announces its epoch, so that the receiver fetches from it."""

    leader_epoch: int
    leader_id: int


class EndEpochRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A leader resigns; the first of `preferred_successors` campaigns at once."""

    leader_epoch: int
    leader_id: int
    preferred_successors: tuple[int, ...]


class EpochResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the beginning or the end of an epoch: what the receiver knows."""

    error_code: int = ErrorCode.NONE
    leader_epoch: int
    leader_id: int | None


class RaftFetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A replica asks for entries from `fetch_offset` on, and has synced everything before it."""

    current_leader_epoch: int
    replica_id: int
    fetch_offset: int
    last_fetched_epoch: int
    """The epoch of the entry before `fetch_offset`."""
    known_high_watermark: int
    """The high watermark that the replica knows (KIP-1166). The leader answers when it has
    entries or a higher one."""
    rejoin_id: int = 0
    """See `QuorumState`."""


class RaftFetchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Entries, or the point of divergence, or the snapshot that the replica has to fetch."""

    leader_epoch: int
    leader_id: int | None
    error_code: int = ErrorCode.NONE
    high_watermark: int = -1
    entries: tuple[Entry, ...] = ()
    diverging_epoch: Diverging | None = None
    """The leader's last epoch that is not after the requested one (KIP-595)."""
    snapshot_id: RaftSnapshotId | None = None
    rejoined: bool = False
    """Whether a rejoining voter's log contains again whatever it may have confirmed."""


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A replica asks for bytes of a snapshot from `position` on."""

    current_leader_epoch: int
    replica_id: int
    snapshot_id: RaftSnapshotId
    position: int


class SnapshotResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a snapshot of `size` bytes, from `position` on."""

    leader_epoch: int
    leader_id: int | None
    error_code: int = ErrorCode.NONE
    snapshot_id: RaftSnapshotId = EMPTY
    size: int = 0
    position: int = 0
    unaligned_records: bytes = b""


Request: TypeAlias = (
    RaftVoteRequest | BeginEpochRequest | EndEpochRequest | RaftFetchRequest | SnapshotRequest
)
Response: TypeAlias = RaftVoteResponse | EpochResponse | RaftFetchResponse | SnapshotResponse


# ---- effects ----


class SendMessage(msgspec.Struct, frozen=True):
    """Send a request; report the response, or its failure, with the same `request_id`."""

    to: int
    request: Request
    request_id: int


class Reply(msgspec.Struct, frozen=True):
    """Answer the request that was delivered with `ticket`."""

    ticket: int
    response: Response


class ReplyEntries(msgspec.Struct, frozen=True):
    """Answer a fetch with as many entries from `offset` on as fit, possibly none."""

    ticket: int
    response: RaftFetchResponse
    offset: int


class ReplySnapshot(msgspec.Struct, frozen=True):
    """Answer a snapshot request with bytes of `snapshot` from `position` on."""

    ticket: int
    response: SnapshotResponse
    snapshot: RaftSnapshotId
    position: int


class Persist(msgspec.Struct, frozen=True):
    """Write and sync the state before any effect that follows."""

    state: QuorumState


class AppendEntries(msgspec.Struct, frozen=True):
    """Write entries at the end of the log, without a sync."""

    entries: tuple[Entry, ...]


class FlushLog(msgspec.Struct, frozen=True):
    """Sync the log, then call `on_flushed` with these two numbers."""

    generation: int
    """The number of cuts that the log has had: a sync that spans a cut proves nothing."""
    end_offset: int


class WriteSnapshot(msgspec.Struct, frozen=True):
    """Store bytes of a snapshot that is being fetched; position 0 discards earlier bytes."""

    snapshot: RaftSnapshotId
    position: int
    data: bytes


class InstallSnapshot(msgspec.Struct, frozen=True):
    """Check the fetched snapshot, let the log begin after it, then call `on_installed`."""

    snapshot: RaftSnapshotId


class TrimLog(msgspec.Struct, frozen=True):
    """Delete the entries and snapshots before this snapshot."""

    snapshot: RaftSnapshotId


class BecomeLeader(msgspec.Struct, frozen=True):
    """This member leads `epoch`, whose entries begin at `start_offset`.

    The controller decides once the high watermark has passed `start_offset`: only then does the
    leader know that everything before is committed.
    """

    epoch: int
    start_offset: int


class LeaderChanged(msgspec.Struct, frozen=True):
    """This member knows another leader, or none (None)."""

    epoch: int
    leader_id: int | None


class Complain(msgspec.Struct, frozen=True):
    """Log a warning: a correct peer does not send this."""

    text: str


Effect: TypeAlias = (
    SendMessage
    | Reply
    | ReplyEntries
    | ReplySnapshot
    | Persist
    | AppendEntries
    | FlushLog
    | Truncate
    | WriteSnapshot
    | InstallSnapshot
    | TrimLog
    | AdvanceHighWatermark
    | BecomeLeader
    | LoseLeadership
    | LeaderChanged
    | StopReplica
    | Complain
)
