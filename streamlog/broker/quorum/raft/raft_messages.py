"""What members of the quorum say to each other, and what `raft` tells its shell to do.

Values only. The messages are Kafka's (KIP-595, 630) without the layers around them: there is one
partition, so there are no lists of topics here; `quorum/raft/raft_wire` puts them into the
protocol's structs. Offsets count records; an `Entry` is one atomic batch of them, and what its
bytes mean is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

REJOIN_IDS = 2**62
"""So many losses are told from each other; 0 stands for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """What a member must not forget: it is on disk before anything that rests on it leaves."""

    epoch: int = 0
    voted_id: int | None = None
    """Whom it has given its vote of this epoch."""
    leader_id: int | None = None
    """Who leads the epoch, as far as it knows."""
    rejoin_id: int = 0
    """Not 0 while it may have forgotten what it once confirmed, because its disk was wiped or
    damaged: until a leader has let it in again it neither votes nor counts. The number tells one
    such loss from the next."""
    voters: tuple[int, ...] = ()
    """Whose log it is; empty if that is not known (yet)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One atomic batch of records."""

    base_offset: int
    count: int
    epoch: int
    payload: bytes
    is_control: bool = False
    """The quorum's own: a leader's first entry of its epoch, of which nobody else knows."""

    @property
    def next_offset(self) -> int:
        """The offset behind its last record."""
        return self.base_offset + self.count


@dataclass(frozen=True, slots=True, order=True)
class RaftSnapshotId:
    """A snapshot holds what all records before `end_offset` amount to; `epoch` is the last's."""

    end_offset: int = 0
    epoch: int = 0


EMPTY = RaftSnapshotId()
"""Where a log begins that was never cut off."""


class RaftError(StrEnum):
    """Why a request was not granted."""

    NOT_LEADER = "not leader"
    FENCED_EPOCH = "fenced epoch"
    """The request is of an older epoch than the one that answers."""
    UNKNOWN_EPOCH = "unknown epoch"
    """The request is of a newer epoch."""
    UNKNOWN_SNAPSHOT = "unknown snapshot"
    POSITION_OUT_OF_RANGE = "position out of range"


# ---- requests and responses ----


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftVoteRequest:
    """Vote for me; or, `pre_vote`, would you (KIP-996)?"""

    epoch: int
    """The epoch to be led; of a pre-vote, that of the candidate."""
    candidate_id: int
    last_epoch: int
    """Of the last entry in the candidate's log."""
    last_offset: int
    """The end of the candidate's log."""
    pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftVoteResponse:
    """Yes or no, and what the voter knows."""

    epoch: int
    leader_id: int | None
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginEpochRequest:
    """I lead this epoch: fetch from me."""

    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEpochRequest:
    """I lead this epoch no longer; the first of `successors` is to try at once."""

    epoch: int
    leader_id: int
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResponse:
    """To both: what the member knows."""

    refusal: RaftError | None
    epoch: int
    leader_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftFetchRequest:
    """Send what follows `offset`; everything before it is on my disk."""

    epoch: int
    replica_id: int
    offset: int
    last_epoch: int
    """Of the entry before `offset`."""
    high_watermark: int
    """As far as it has heard (KIP-1166): the answer waits until there is news."""
    rejoin_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftFetchResponse:
    """Entries, or where the logs part, or that a snapshot has to be fetched."""

    epoch: int
    leader_id: int | None
    refusal: RaftError | None = None
    high_watermark: int = -1
    entries: tuple[Entry, ...] = ()
    diverging: tuple[int, int] | None = None
    """The leader's last epoch not after the one asked for, and where it ends."""
    snapshot: RaftSnapshotId | None = None
    rejoined: bool = False
    """What a rejoining voter may have confirmed is in its log again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """Send bytes of a snapshot from `position` on."""

    epoch: int
    replica_id: int
    snapshot: RaftSnapshotId
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotResponse:
    """Some bytes of the snapshot, which has `size_bytes`."""

    epoch: int
    leader_id: int | None
    refusal: RaftError | None = None
    snapshot: RaftSnapshotId = EMPTY
    size_bytes: int = 0
    position: int = 0
    data: bytes = b""


Request: TypeAlias = (
    RaftVoteRequest | BeginEpochRequest | EndEpochRequest | RaftFetchRequest | SnapshotRequest
)
Response: TypeAlias = RaftVoteResponse | EpochResponse | RaftFetchResponse | SnapshotResponse


# ---- effects ----


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a request; what comes of it goes back with the same `request_id`."""

    to: int
    request: Request
    request_id: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that holds `ticket`."""

    ticket: int
    response: Response


@dataclass(frozen=True, slots=True)
class ReplyEntries:
    """Answer it with entries of the log from `offset` on, as many as fit; it may be none."""

    ticket: int
    response: RaftFetchResponse
    offset: int


@dataclass(frozen=True, slots=True)
class ReplySnapshot:
    """Answer it with bytes of that snapshot from `position` on."""

    ticket: int
    response: SnapshotResponse
    snapshot: RaftSnapshotId
    position: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Have this on disk before any effect that follows is performed."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """Write entries at the end of the log."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class FlushLog:
    """Sync the log, and say so by `on_flushed` with the same two numbers."""

    generation: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TruncateEntries:
    """Cut the log off at `end_offset`; durable before any effect that follows."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Keep bytes of a snapshot that is being fetched; position 0 begins it anew."""

    snapshot: RaftSnapshotId
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """All of it is there: check it, begin the log behind it, and say so by `on_installed`."""

    snapshot: RaftSnapshotId


@dataclass(frozen=True, slots=True)
class TrimLog:
    """What is before this snapshot is not needed any more."""

    snapshot: RaftSnapshotId


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything before `high_watermark` will never change."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class BecomeLeader:
    """This member leads `epoch`; entries of its own begin at `start_offset`.

    It may decide once that much is committed, for then it knows everything before it.
    """

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class ResignRaftLeader:
    """It leads `epoch` no longer; nobody knows what becomes of entries not committed."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """Who leads which epoch, as far as this member knows; None: nobody."""

    epoch: int
    leader_id: int | None


@dataclass(frozen=True, slots=True)
class Halt:
    """The log contradicts what is committed: stop this member, and say why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Complain:
    """Something that a correct peer does not send; for the log of the process."""

    text: str


Effect: TypeAlias = (
    SendMessage
    | Reply
    | ReplyEntries
    | ReplySnapshot
    | Persist
    | AppendEntries
    | FlushLog
    | TruncateEntries
    | WriteSnapshot
    | InstallSnapshot
    | TrimLog
    | Commit
    | BecomeLeader
    | ResignRaftLeader
    | LeaderChanged
    | Halt
    | Complain
)
