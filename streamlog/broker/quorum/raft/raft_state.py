"""RaftState: the state of one member of the quorum, and the changes of its role (KIP-595).

`EpochChain` maps the log's offsets to epochs and finds where two logs diverge. `LeaderState` holds
the leader's view of each replica, and the fetches that wait for new entries. `Timeouts` are
Kafka's settings; `RaftRules` are faults that a simulation plants.

Rules of this module: an epoch and a vote are on disk (`Persist`) before any effect that follows
leaves the member. A sync counts only if the log was not cut since it began (`generation`).

Not done here: the reactions to messages (`raft_machine`), all I/O (`log_replica`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from streamlog.broker.quorum.raft.raft_messages import (
    EMPTY,
    AppendEntries,
    Effect,
    Entry,
    EpochResponse,
    FlushLog,
    LeaderChanged,
    Persist,
    QuorumState,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftSnapshotId,
    Reply,
    Request,
    Response,
    SendMessage,
)
from streamlog.broker.replication.replica_state import AdvanceHighWatermark, LoseLeadership
from streamlog.protocol.error_codes import ErrorCode
from streamlog.replace import replace


class EpochChain:
    """The epochs of a log that begins after the snapshot `start`, and the log's end offset."""

    def __init__(self, start: RaftSnapshotId = EMPTY) -> None:
        self.start = start
        self.end_offset = start.end_offset
        self._firsts: list[tuple[int, int]] = []
        """Per epoch in the log, in order: the epoch and the base offset of its first entry."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last entry, or of the snapshot if the log has no entry."""
        return self._firsts[-1][0] if self._firsts else self.start.epoch

    def append(self, entry: Entry) -> None:
        """Record an entry at the end of the log.

        Raises:
            ValueError: its offset or its epoch does not follow the last entry's.
        """
        if entry.base_offset != self.end_offset or entry.epoch < self.last_epoch or entry.count < 1:
            raise ValueError(
                f"entry {entry.base_offset}+{entry.count} of epoch {entry.epoch} does not follow"
                f" offset {self.end_offset} of epoch {self.last_epoch}"
            )
        if not self._firsts or entry.epoch > self._firsts[-1][0]:
            self._firsts.append((entry.epoch, entry.base_offset))
        self.end_offset = entry.next_offset

    def extend(self, entries: Iterable[Entry]) -> None:
        """Record several entries. Raises ValueError as `append` does; earlier ones then stay."""
        for entry in entries:
            self.append(entry)

    def end_for(self, epoch: int) -> tuple[int, int]:
        """Return the last epoch of this log that is not after `epoch`, and its end offset.

        The epoch is -1 if all epochs of this log are later (Kafka's `endOffsetForEpoch`).
        """
        found, end = -1, self.start.end_offset
        if epoch >= self.start.epoch:
            # The snapshot stands for entries of its epoch, which may continue in the log.
            found = self.start.epoch
            end = self._firsts[0][1] if self._firsts else self.end_offset
        for index, (each, _) in enumerate(self._firsts):
            if each <= epoch:
                found = each
                end = self._end_of(index)
        return found, end

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the last entry before `offset`."""
        epoch = self.start.epoch
        for each, first in self._firsts:
            if first < offset:
                epoch = each
        return epoch

    def truncate(self, end_offset: int) -> None:
        """Forget the entries from `end_offset` on, which is not before the log's start."""
        self._firsts = [each for each in self._firsts if each[1] < end_offset]
        self.end_offset = end_offset

    def trim(self, start: RaftSnapshotId) -> None:
        """Let the log begin after the snapshot `start`, and keep the entries behind it."""
        # An epoch that began before the new start begins at it now. If several did, only the last
        # of them still has entries: the dict keeps the last epoch per offset.
        rest = [(epoch, max(first, start.end_offset)) for epoch, first in self._firsts]
        last: dict[int, tuple[int, int]] = {}
        for epoch, first in rest:
            last[first] = (epoch, first)
        self._firsts = sorted(each for each in last.values() if each[1] < self.end_offset)
        self.start = start

    def restart(self, start: RaftSnapshotId) -> None:
        """Let the log begin after the snapshot `start`, without any entry."""
        self.start = start
        self.end_offset = start.end_offset
        self._firsts.clear()

    def _end_of(self, index: int) -> int:
        following = index + 1
        return self._firsts[following][1] if following < len(self._firsts) else self.end_offset


UNKNOWN = -1
"""The end offset of a voter's log before its first fetch in this epoch."""


@dataclass(slots=True)
class VoterProgress:
    """The leader's view of one replica, voter or observer."""

    end_offset: int = UNKNOWN
    """The end offset of what the replica has synced."""
    fetched_ms: int | None = None
    """When it last fetched; None before its first fetch."""
    caught_up_ms: int | None = None
    """When it last fetched from the end of the leader's log."""
    rejoin_id: int = 0
    """Not 0 while a voter rejoins after the loss of its disk, see `QuorumState`."""
    rejoin_offset: int = 0
    """A rejoining voter counts again once the others have committed everything before this."""


class ParkedFetch(msgspec.Struct, frozen=True):
    """A fetch that waits for entries or a higher high watermark, at most until `until_ms`."""

    ticket: int
    request: RaftFetchRequest
    until_ms: int


class LeaderState:
    """The leader's state in one epoch.

    `voters` are all voters of the quorum; the leader, `node_id`, is left out here. The leader's
    own entries begin at `start_offset`. A voter counts as heard at `now_ms`, so that a new leader
    does not resign before its voters had time to fetch.
    """

    def __init__(
        self, *, node_id: int, voters: Iterable[int], start_offset: int, now_ms: int
    ) -> None:
        self.start_offset = start_offset
        self.began_ms = now_ms
        self.voters = {voter: VoterProgress() for voter in voters if voter != node_id}
        self.observers: dict[int, VoterProgress] = {}
        self.parked: dict[int, ParkedFetch] = {}
        """By replica id: each replica has at most one open fetch."""

    def on_fetch(self, request: RaftFetchRequest, *, end_offset: int, now_ms: int) -> VoterProgress:
        """Note a fetch, where the leader's log ends at `end_offset`; return the progress."""
        progress = self.voters.get(request.replica_id)
        if progress is None:
            progress = self.observers.setdefault(request.replica_id, VoterProgress())
        progress.fetched_ms = now_ms
        progress.end_offset = request.fetch_offset
        if request.fetch_offset >= end_offset:
            progress.caught_up_ms = now_ms
        return progress

    def progress_of(self, replica_id: int) -> VoterProgress | None:
        """Return the progress of a replica; None for an observer that has not fetched yet."""
        return self.voters.get(replica_id) or self.observers.get(replica_id)

    def majority_offset(self, own_offset: int) -> int:
        """Return the offset up to which a majority of voters has synced the log.

        `own_offset` is the leader's. A rejoining voter counts as having nothing: it may have lost
        what it confirmed, and it is let in once a majority of the *others* has passed an entry
        that was written after it asked.
        """
        offsets = [UNKNOWN if each.rejoin_id else each.end_offset for each in self.voters.values()]
        offsets.append(own_offset)
        offsets.sort(reverse=True)
        # Of 3 or 4 voters the majority is 2 or 3: index 1 or 2 of the descending offsets.
        return offsets[len(offsets) // 2]

    def touch_deadline_ms(self, patience_ms: int) -> int | None:
        """Return when no majority has fetched for `patience_ms`; None for a sole voter."""
        if not self.voters:
            return None
        # The leader is one of the majority, so it needs half of the others, rounded up.
        heard = sorted((self._heard_ms(each) for each in self.voters.values()), reverse=True)
        needed = (len(self.voters) + 1) // 2
        return heard[needed - 1] + patience_ms

    def silent(self, *, now_ms: int, patience_ms: int) -> list[int]:
        """Return the voters whose last fetch is more than `patience_ms` ago, or is missing."""
        return [
            voter
            for voter, each in self.voters.items()
            if each.fetched_ms is None or now_ms - each.fetched_ms > patience_ms
        ]

    def successors(self) -> tuple[int, ...]:
        """Return the other voters, the one with the longest log first (KIP-595)."""
        return tuple(sorted(self.voters, key=lambda each: (-self.voters[each].end_offset, each)))

    def release(self, *, end_offset: int, high_watermark: int, now_ms: int) -> list[ParkedFetch]:
        """Remove and return the fetches that are due: their time is up, or there is news."""
        due = [
            each
            for each in self.parked.values()
            if each.until_ms <= now_ms or has_news(each.request, end_offset, high_watermark)
        ]
        for each in due:
            del self.parked[each.request.replica_id]
        return due

    def next_release_ms(self) -> int | None:
        """Return when the first waiting fetch has to be answered; None if none waits."""
        return min((each.until_ms for each in self.parked.values()), default=None)

    def _heard_ms(self, progress: VoterProgress) -> int:
        return self.began_ms if progress.fetched_ms is None else progress.fetched_ms


def has_news(request: RaftFetchRequest, end_offset: int, high_watermark: int) -> bool:
    """Return whether a fetch can be answered with entries or with a higher high watermark."""
    # The high watermark counts only up to the replica's own end: it can't use more of it yet.
    return end_offset > request.fetch_offset or min(high_watermark, request.fetch_offset) > (
        request.known_high_watermark
    )


Draw = Callable[[int], int]
"""A source of random numbers, from 0 to below its argument."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """The time-outs of the quorum in milliseconds, by Kafka's settings."""

    election_ms: int = 1_000
    """`controller.quorum.election.timeout.ms`: how long an election may last."""
    election_backoff_ms: int = 1_000
    """`controller.quorum.election.backoff.max.ms`: the bound of the random time that is added to
    `election_ms`, so that two candidates do not split the votes again and again."""
    fetch_ms: int = 2_000
    """`controller.quorum.fetch.timeout.ms`: a follower without a response for this time looks for
    another leader; a leader that no majority fetches from for 1.5 times as long resigns."""
    request_ms: int = 2_000
    """`controller.quorum.request.timeout.ms`: how long a request may be unanswered."""
    retry_ms: int = 20
    """`controller.quorum.retry.backoff.ms`: the pause before a fetch is repeated."""
    wait_ms: int = 500
    """How long the leader holds back the response to a fetch without news."""


class RaftRules(msgspec.Struct, frozen=True, kw_only=True):
    """Faults that a simulation plants, all absent in production; each breaks one safety rule."""

    vote_not_persisted: bool = False
    """Epoch and vote are kept in memory only."""
    no_log_check: bool = False
    """A voter grants its vote to a candidate whose log is shorter."""
    commit_old_epoch: bool = False
    """Entries of earlier epochs count as committed once a majority has them."""
    count_unflushed: bool = False
    """The leader counts its own entries before they are synced."""
    fetch_before_flush: bool = False
    """A follower fetches past entries that it has not synced."""
    trust_leader_hint: bool = False
    """A member follows a leader that it only knows from a third member."""
    no_begin_fence: bool = False
    """A member does not answer a leader of an older epoch."""
    no_flush_generation: bool = False
    """A sync counts although the log was cut while it ran."""
    no_divergence_check: bool = False
    """The leader sends entries without a check that the two logs agree before them."""
    accept_any_answer: bool = False
    """A follower appends entries of a response that it does not wait for."""
    rejoin_at_once: bool = False
    """A voter whose disk was wiped votes and counts at once."""
    lets_anybody_in: bool = False
    """A leader lets in a node that believes itself a voter and is not one of its voters."""


CORRECT = RaftRules()
"""No fault, as in production."""


class RaftRole(StrEnum):
    """The role of a member in its epoch (KIP-595, KIP-996)."""

    UNATTACHED = "unattached"
    """It knows the epoch, but not its leader."""
    PROSPECTIVE = "prospective"
    """It asks for pre-votes, in its current epoch."""
    CANDIDATE = "candidate"
    """It asks for votes in an epoch that it began."""
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"
    """It led this epoch and gave it up; it leads only in a later one."""


@dataclass(slots=True)
class Outstanding:
    """The one open fetch of a replica, which fails at `until_ms`."""

    request_id: int
    until_ms: int


class RaftState:
    """The state of one member: a voter, or an observer if `node_id` is not among `voters`.

    Args:
        node_id: this member.
        voters: the node ids of all voters.
        state: the persistent state, as it is on disk.
        chain: the epochs of the log, which is synced up to its end.
        draw: the source of election jitter and of the voter that an observer asks.
        timeouts: the time-outs, Kafka's defaults if not given.
        rules: the faults to plant.
    """

    def __init__(
        self,
        *,
        node_id: int,
        voters: tuple[int, ...],
        state: QuorumState,
        chain: EpochChain,
        draw: Draw,
        timeouts: Timeouts | None = None,
        rules: RaftRules = CORRECT,
    ) -> None:
        self.node_id = node_id
        self.voters = voters
        self.state = state
        self.chain = chain
        self.role = RaftRole.UNATTACHED
        self.leader_id: int | None = None
        self.flushed_end = chain.end_offset
        self.high_watermark = chain.start.end_offset
        self.generation = 0
        self.leadership: LeaderState | None = None
        self._timeouts = timeouts or Timeouts()
        self._rules = rules
        self._draw = draw
        self._effects: list[Effect] = []
        self._last_request_id = 0
        self._is_flushing = False
        self._deadline_ms: int | None = None
        """When the election, or the wait for the leader's response, times out."""
        self._resend_ms: int | None = None
        """When unanswered vote requests or announcements are sent again."""
        self._supporters: set[int] = set()
        """The voters that vote for this member in its election, itself included."""
        self._receivers: dict[int, int] = {}
        """The receivers of open vote requests or announcements, by request id."""
        self._outstanding: Outstanding | None = None
        self._fetch_at_ms: int | None = None
        """When the next fetch is sent; None if none is planned."""
        self._fetched_ms: int | None = None
        """When a leader last responded, of whichever epoch."""
        self._hint: int | None = None
        """The leader of this epoch according to a third member: worth a fetch, not a vote."""
        self._receiving: tuple[RaftSnapshotId, int] | None = None
        """The snapshot that is being fetched, and the number of bytes that have arrived."""
        self._is_installing = False
        """Whether the shell installs a snapshot; until then nothing is fetched."""

    # ---- what it is ----

    @property
    def epoch(self) -> int:
        """The latest epoch that this member knows."""
        return self.state.epoch

    @property
    def end_offset(self) -> int:
        """The end offset of its log, synced or not."""
        return self.chain.end_offset

    @property
    def is_voter(self) -> bool:
        """Whether this member votes and can lead, rather than observe."""
        return self.node_id in self.voters

    @property
    def is_rejoining(self) -> bool:
        """Whether this is a voter that has lost its log and was not let in again."""
        is_out = bool(self.state.rejoin_id) and not self._rules.rejoin_at_once
        return is_out and self.is_voter

    @property
    def is_leader(self) -> bool:
        """Whether it leads its epoch."""
        return self.leadership is not None

    def describe(self) -> str:
        """Return role, epoch, vote, leader and offsets in one line, for logs and traces."""
        vote = "-" if self.state.voted_id is None else self.state.voted_id
        leader = "-" if self.leader_id is None else self.leader_id
        rejoining = " rejoining" if self.is_rejoining else ""
        return (
            f"{self.node_id} {self.role} epoch={self.epoch} vote={vote} leader={leader}"
            f" log={self.chain.start.end_offset}..{self.flushed_end}..{self.end_offset}"
            f" high_watermark={self.high_watermark}{rejoining}"
        )

    def next_deadline_ms(self) -> int | None:
        """Return when `on_tick` next has something to do; None for never."""
        due = [self._deadline_ms, self._resend_ms, self._fetch_at_ms]
        if self._outstanding is not None:
            due.append(self._outstanding.until_ms)
        if self.leadership is not None:
            due.append(self.leadership.next_release_ms())
            due.append(self.leadership.touch_deadline_ms(self._touch_ms))
        return min((each for each in due if each is not None), default=None)

    # ---- changes of role ----

    def _see_epoch(self, epoch: int, now_ms: int) -> None:
        """Enter a later epoch, without a vote and without a leader in it."""
        if epoch > self.epoch:
            # A leader steps down first: `LoseLeadership` carries the epoch that it led.
            self._stop_leading(now_ms, RaftRole.UNATTACHED)
            self._persist(replace(self.state, epoch=epoch, voted_id=None, leader_id=None))
            self._detach(now_ms)

    def _learn(self, member: int, epoch: int, leader_id: int | None, now_ms: int) -> None:
        """Learn the epoch and the leader in a message from `member`."""
        self._see_epoch(epoch, now_ms)
        if epoch != self.epoch or leader_id is None or leader_id == self.node_id:
            return
        # Only the leader itself is believed. A third member's word may be old:
        #   1. Node 2 leads epoch 5 and resigns. 2. Node 1 has not heard of it and names node 2.
        #   3. Node 0 would follow node 2 in vain until its fetch time-out, and again after that.
        if leader_id == member or self._rules.trust_leader_hint:
            self._follow(leader_id, now_ms)
        else:
            self._hint = leader_id

    def _follow(self, leader_id: int, now_ms: int) -> None:
        if self.is_leader or (self.role is RaftRole.FOLLOWER and self.leader_id == leader_id):
            return
        self._forget_leader()
        self.role = RaftRole.FOLLOWER
        self.leader_id = leader_id
        self._resend_ms = None
        self._receivers.clear()
        if self.state.leader_id != leader_id:
            self._persist(replace(self.state, leader_id=leader_id))
        self._effects.append(LeaderChanged(self.epoch, leader_id))
        self._deadline_ms = now_ms + self._timeouts.fetch_ms
        self._fetch_later(now_ms, 0)

    def _detach(self, now_ms: int, role: RaftRole = RaftRole.UNATTACHED) -> None:
        had_leader = self.leader_id is not None
        self._forget_leader()
        self.role = role
        self._resend_ms = None
        self._receivers.clear()
        if had_leader:
            self._effects.append(LeaderChanged(self.epoch, None))
        self._rearm_election(now_ms)
        if not self._may_campaign:
            self._fetch_later(now_ms)

    def _stop_leading(self, now_ms: int, role: RaftRole) -> None:
        leadership = self.leadership
        if leadership is None:
            return
        self.leadership = None
        self._effects.append(LoseLeadership(self.epoch, ()))
        self._detach(now_ms, role)
        for parked in leadership.parked.values():
            self._reply(parked.ticket, self._refused_fetch(parked.request))

    def _forget_leader(self) -> None:
        """Forget the leader: a response that still comes from it does not count."""
        self.leader_id = None
        self._outstanding = None
        self._receiving = None
        self._fetch_at_ms = None

    @property
    def _may_campaign(self) -> bool:
        return self.is_voter and not self.is_rejoining

    # ---- deadlines ----

    @property
    def _resend_interval_ms(self) -> int:
        return max(self._timeouts.retry_ms, self._timeouts.election_ms // 4)

    @property
    def _touch_ms(self) -> int:
        """The time without a fetch of a majority after which a leader resigns."""
        return self._timeouts.fetch_ms * 3 // 2

    def _rearm_election(self, now_ms: int) -> None:
        jitter_ms = self._draw(max(1, self._timeouts.election_backoff_ms))
        self._deadline_ms = now_ms + self._timeouts.election_ms + jitter_ms

    def _hear_of_leader(self, now_ms: int) -> None:
        self._fetched_ms = now_ms
        self._deadline_ms = now_ms + self._timeouts.fetch_ms

    def _fetch_later(self, now_ms: int, delay_ms: int | None = None) -> None:
        self._fetch_at_ms = now_ms + (self._timeouts.retry_ms if delay_ms is None else delay_ms)

    # ---- the log ----

    def _append_own(self, payload: bytes, *, count: int, is_control: bool) -> None:
        entry = Entry(
            base_offset=self.end_offset,
            count=count,
            epoch=self.epoch,
            payload=payload,
            is_control=is_control,
        )
        self.chain.append(entry)
        self._effects.append(AppendEntries((entry,)))
        self._flush()

    def _flush(self) -> None:
        """Sync the log unless a sync runs: the next one covers what was appended meanwhile."""
        if not self._is_flushing and self.flushed_end < self.end_offset:
            self._is_flushing = True
            self._effects.append(FlushLog(self.generation, self.end_offset))

    def _commit(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self._effects.append(AdvanceHighWatermark(offset))

    # ---- effects ----

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _persist(self, state: QuorumState) -> None:
        self.state = state
        if self._effects and isinstance(self._effects[-1], Persist):
            self._effects.pop()  # No effect depends on the earlier state yet: one sync is enough.
        if not self._rules.vote_not_persisted:
            self._effects.append(Persist(state))

    def _send(self, to: int, request: Request) -> int:
        self._last_request_id += 1
        self._effects.append(SendMessage(to, request, self._last_request_id))
        return self._last_request_id

    def _await(self, to: int, request: Request, now_ms: int) -> None:
        until_ms = now_ms + self._timeouts.request_ms
        self._outstanding = Outstanding(self._send(to, request), until_ms)

    def _reply(self, ticket: int, response: Response) -> None:
        self._effects.append(Reply(ticket, response))

    def _epoch_response(self, code: int) -> EpochResponse:
        return EpochResponse(error_code=code, leader_epoch=self.epoch, leader_id=self.leader_id)

    def _refused_fetch(self, request: RaftFetchRequest) -> RaftFetchResponse:
        refusal = (
            ErrorCode.NOT_LEADER_OR_FOLLOWER
            if request.current_leader_epoch == self.epoch
            else ErrorCode.FENCED_LEADER_EPOCH
        )
        return RaftFetchResponse(
            leader_epoch=self.epoch, leader_id=self.leader_id, error_code=refusal
        )


def is_due(deadline_ms: int | None, now_ms: int) -> bool:
    """Return whether a deadline is set and has passed."""
    return deadline_ms is not None and deadline_ms <= now_ms
