"""RaftState: what a member of the quorum knows: epoch and role, epochs of the log, followers.

`EpochChain` maps offsets to epochs, and finds where two logs part. `LeaderState` counts how far
followers are, and which of their fetches wait. Both are parts of `raft_machine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

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


class EpochChain:
    """The epochs of a log that begins at `start`, in order, and its end."""

    def __init__(self, start: RaftSnapshotId = EMPTY) -> None:
        self.start = start
        self.end_offset = start.end_offset
        self._firsts: list[tuple[int, int]] = []
        """Epoch and offset of the first entry of each epoch that is in the log."""

    @property
    def last_epoch(self) -> int:
        """Of the last entry; of the snapshot if there is none."""
        return self._firsts[-1][0] if self._firsts else self.start.epoch

    def append(self, entry: Entry) -> None:
        """Take note of an entry at the end.

        Raises:
            ValueError: it does not follow the last one.
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
        """Take note of several. Raises ValueError as `append` does."""
        for entry in entries:
            self.append(entry)

    def end_for(self, epoch: int) -> tuple[int, int]:
        """The last epoch here that is not after `epoch`, and where it ends.

        An epoch of -1 says that all of them are later.
        """
        found, end = -1, self.start.end_offset
        if epoch >= self.start.epoch:
            found = self.start.epoch
            end = self._firsts[0][1] if self._firsts else self.end_offset
        for index, (each, _) in enumerate(self._firsts):
            if each <= epoch:
                found = each
                end = self._end_of(index)
        return found, end

    def epoch_at(self, offset: int) -> int:
        """Of the last entry before `offset`."""
        epoch = self.start.epoch
        for each, first in self._firsts:
            if first < offset:
                epoch = each
        return epoch

    def truncate(self, end_offset: int) -> None:
        """Forget what is behind `end_offset`, which is not before the log's start."""
        self._firsts = [each for each in self._firsts if each[1] < end_offset]
        self.end_offset = end_offset

    def trim(self, start: RaftSnapshotId) -> None:
        """Let the log begin later."""
        rest = [(epoch, max(first, start.end_offset)) for epoch, first in self._firsts]
        last: dict[int, tuple[int, int]] = {}
        for epoch, first in rest:
            last[first] = (epoch, first)
        self._firsts = sorted(each for each in last.values() if each[1] < self.end_offset)
        self.start = start

    def restart(self, start: RaftSnapshotId) -> None:
        """Begin anew behind a snapshot."""
        self.start = start
        self.end_offset = start.end_offset
        self._firsts.clear()

    def _end_of(self, index: int) -> int:
        following = index + 1
        return self._firsts[following][1] if following < len(self._firsts) else self.end_offset


UNKNOWN = -1
"""The end of a voter's log before its first fetch."""


@dataclass(slots=True)
class VoterProgress:
    """What is known of one replica."""

    end_offset: int = UNKNOWN
    """Up to here its log is on its disk."""
    fetched_ms: int | None = None
    """When it has last asked; None if it has not yet."""
    caught_up_ms: int | None = None
    """When it last had all that the leader had."""
    rejoin_id: int = 0
    rejoin_offset: int = 0
    """A rejoining voter is in again once the others have committed this."""


@dataclass(frozen=True, slots=True)
class ParkedFetch:
    """A fetch that waits for news."""

    ticket: int
    request: RaftFetchRequest
    until_ms: int


class LeaderState:
    """Of one epoch, by `node_id`, whose own entries begin at `start_offset`."""

    def __init__(
        self, *, node_id: int, voters: Iterable[int], start_offset: int, now_ms: int
    ) -> None:
        self.start_offset = start_offset
        self.began_ms = now_ms
        self.voters = {voter: VoterProgress() for voter in voters if voter != node_id}
        self.observers: dict[int, VoterProgress] = {}
        self.parked: dict[int, ParkedFetch] = {}
        """By replica: each has one fetch on its way."""

    def on_fetch(self, request: RaftFetchRequest, *, end_offset: int, now_ms: int) -> VoterProgress:
        """A replica asks; the leader's log ends at `end_offset`."""
        progress = self.voters.get(request.replica_id)
        if progress is None:
            progress = self.observers.setdefault(request.replica_id, VoterProgress())
        progress.fetched_ms = now_ms
        progress.end_offset = request.fetch_offset
        if request.fetch_offset >= end_offset:
            progress.caught_up_ms = now_ms
        return progress

    def progress_of(self, replica_id: int) -> VoterProgress | None:
        """What is known of a replica; None before its first fetch, if it is no voter."""
        return self.voters.get(replica_id) or self.observers.get(replica_id)

    def majority_offset(self, own_offset: int) -> int:
        """The offset that a majority of voters has passed, the leader with `own_offset`.

        Rejoining voters do not count: what they confirmed before may be gone, and that a majority
        of the *others* has passed an entry written since then is what lets them in again.
        """
        offsets = [UNKNOWN if each.rejoin_id else each.end_offset for each in self.voters.values()]
        offsets.append(own_offset)
        offsets.sort(reverse=True)
        return offsets[len(offsets) // 2]

    def touch_deadline_ms(self, patience_ms: int) -> int | None:
        """When a majority will not have been heard of for `patience_ms`; None for a sole voter."""
        if not self.voters:
            return None
        heard = sorted((self._heard_ms(each) for each in self.voters.values()), reverse=True)
        needed = (len(self.voters) + 1) // 2
        return heard[needed - 1] + patience_ms

    def silent(self, *, now_ms: int, patience_ms: int) -> list[int]:
        """Voters that have not fetched for so long, or not yet."""
        return [
            voter
            for voter, each in self.voters.items()
            if each.fetched_ms is None or now_ms - each.fetched_ms > patience_ms
        ]

    def successors(self) -> tuple[int, ...]:
        """The other voters, the one with the longest log first."""
        return tuple(sorted(self.voters, key=lambda each: (-self.voters[each].end_offset, each)))

    def release(self, *, end_offset: int, high_watermark: int, now_ms: int) -> list[ParkedFetch]:
        """Fetches that have waited long enough, or for which there is news."""
        due = [
            each
            for each in self.parked.values()
            if each.until_ms <= now_ms or has_news(each.request, end_offset, high_watermark)
        ]
        for each in due:
            del self.parked[each.request.replica_id]
        return due

    def next_release_ms(self) -> int | None:
        """When the first of those who wait has waited long enough."""
        return min((each.until_ms for each in self.parked.values()), default=None)

    def _heard_ms(self, progress: VoterProgress) -> int:
        return self.began_ms if progress.fetched_ms is None else progress.fetched_ms


def has_news(request: RaftFetchRequest, end_offset: int, high_watermark: int) -> bool:
    """Whether there is something to tell to who asks."""
    return end_offset > request.fetch_offset or min(high_watermark, request.fetch_offset) > (
        request.known_high_watermark
    )


Draw = Callable[[int], int]
"""A random number from 0 to below its argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long who waits for what, in milliseconds; the names are Kafka's settings."""

    election_ms: int = 1_000
    """`controller.quorum.election.timeout.ms`: for the outcome of an election."""
    election_backoff_ms: int = 1_000
    """`controller.quorum.election.backoff.max.ms`: up to so much is added, by chance."""
    fetch_ms: int = 2_000
    """`controller.quorum.fetch.timeout.ms`: without an answer for so long, another leader is
    sought; a leader that half as long again has not heard of a majority resigns."""
    request_ms: int = 2_000
    """`controller.quorum.request.timeout.ms`."""
    retry_ms: int = 20
    """`controller.quorum.retry.backoff.ms`."""
    wait_ms: int = 500
    """So long a fetch waits for news at the leader (`metadata.log.max.wait`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftRules:
    """Bugs to be planted, for simulations only: each breaks a rule that something rests on."""

    vote_not_persisted: bool = False
    """Epoch and vote are kept in memory."""
    no_log_check: bool = False
    """A vote is given to a candidate whose log is shorter."""
    commit_old_epoch: bool = False
    """Entries of earlier epochs count as committed once a majority has them."""
    count_unflushed: bool = False
    """The leader counts what it has written, not what it has synced."""
    fetch_before_flush: bool = False
    """A follower asks for what follows entries that it has not synced."""
    trust_leader_hint: bool = False
    """A member believes another one about a third that is said to lead."""
    no_begin_fence: bool = False
    """A leader of an older epoch is not told so."""
    no_flush_generation: bool = False
    """A sync counts though the log was cut while it was running."""
    no_divergence_check: bool = False
    """The leader sends entries without looking whether the logs agree before them."""
    accept_any_answer: bool = False
    """Entries are taken from an answer that was not waited for."""
    rejoin_at_once: bool = False
    """A voter whose disk was wiped votes and counts as if nothing had happened."""
    lets_anybody_in: bool = False
    """A leader lets in who takes itself for a voter, and is none for the leader."""


CORRECT = RaftRules()


class RaftRole(StrEnum):
    """What a member is in its epoch."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    """It asks who would vote for it."""
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"
    """It has led this epoch, and will not again."""


@dataclass(slots=True)
class Outstanding:
    """The one request of a replica that is on its way to whom it copies."""

    request_id: int
    until_ms: int


class RaftState:
    """State of one member: a voter, or an observer if `node_id` is not among `voters`."""

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
        self._out: list[Effect] = []
        self._last_request_id = 0
        self._is_flushing = False
        self._deadline_ms: int | None = None
        """When this role has lasted long enough: an election, or what is to be heard."""
        self._resend_ms: int | None = None
        self._granted: set[int] = set()
        self._asked: dict[int, int] = {}
        """Voters of this election, by request."""
        self._outstanding: Outstanding | None = None
        self._fetch_at_ms: int | None = None
        self._fetched_ms: int | None = None
        """When a leader last answered."""
        self._hint: int | None = None
        self._receiving: tuple[RaftSnapshotId, int] | None = None
        """A snapshot that is being fetched, and how much of it is there."""
        self._is_installing = False

    # ---- what it is ----

    @property
    def epoch(self) -> int:
        """The latest it knows."""
        return self.state.epoch

    @property
    def end_offset(self) -> int:
        """Of its log, synced or not."""
        return self.chain.end_offset

    @property
    def is_voter(self) -> bool:
        """Whether it is one of those who elect and are elected."""
        return self.node_id in self.voters

    @property
    def is_rejoining(self) -> bool:
        """Whether it votes, and has lost what it may have confirmed, and was not let in again."""
        is_out = bool(self.state.rejoin_id) and not self._rules.rejoin_at_once
        return is_out and self.is_voter

    @property
    def is_leader(self) -> bool:
        """Whether it leads its epoch."""
        return self.leadership is not None

    def describe(self) -> str:
        """One line for people."""
        vote = "-" if self.state.voted_id is None else self.state.voted_id
        leader = "-" if self.leader_id is None else self.leader_id
        rejoining = " rejoining" if self.is_rejoining else ""
        return (
            f"{self.node_id} {self.role} epoch={self.epoch} vote={vote} leader={leader}"
            f" log={self.chain.start.end_offset}..{self.flushed_end}..{self.end_offset}"
            f" high_watermark={self.high_watermark}{rejoining}"
        )

    def next_deadline_ms(self) -> int | None:
        """When `on_tick` has something to do at the earliest; None for never."""
        due = [self._deadline_ms, self._resend_ms, self._fetch_at_ms]
        if self._outstanding is not None:
            due.append(self._outstanding.until_ms)
        if self.leadership is not None:
            due.append(self.leadership.next_release_ms())
            due.append(self.leadership.touch_deadline_ms(self._touch_ms))
        return min((each for each in due if each is not None), default=None)

    # ---- changes of role ----

    def _see_epoch(self, epoch: int, now_ms: int) -> None:
        """Whatever is of a later epoch makes the member one without a leader in it."""
        if epoch > self.epoch:
            self._stop_leading(now_ms, RaftRole.UNATTACHED)
            self._persist(replace(self.state, epoch=epoch, voted_id=None, leader_id=None))
            self._detach(now_ms)

    def _learn(self, member: int, epoch: int, leader_id: int | None, now_ms: int) -> None:
        """What a message of `member` says about epoch and leader."""
        self._see_epoch(epoch, now_ms)
        if epoch != self.epoch or leader_id is None or leader_id == self.node_id:
            return
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
        self._asked.clear()
        if self.state.leader_id != leader_id:
            self._persist(replace(self.state, leader_id=leader_id))
        self._out.append(LeaderChanged(self.epoch, leader_id))
        self._deadline_ms = now_ms + self._timeouts.fetch_ms
        self._fetch_later(now_ms, 0)

    def _detach(self, now_ms: int, role: RaftRole = RaftRole.UNATTACHED) -> None:
        had_leader = self.leader_id is not None
        self._forget_leader()
        self.role = role
        self._resend_ms = None
        self._asked.clear()
        if had_leader:
            self._out.append(LeaderChanged(self.epoch, None))
        self._rearm_election(now_ms)
        if not self._may_campaign:
            self._fetch_later(now_ms)

    def _stop_leading(self, now_ms: int, role: RaftRole) -> None:
        leadership = self.leadership
        if leadership is None:
            return
        self.leadership = None
        self._out.append(LoseLeadership(self.epoch, ()))
        self._detach(now_ms, role)
        for parked in leadership.parked.values():
            self._reply(parked.ticket, self._refused_fetch(parked.request))

    def _forget_leader(self) -> None:
        """Whatever is on its way from a leader does not count any more."""
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
        """A leader that has not heard of a majority for so long resigns."""
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
        self._out.append(AppendEntries((entry,)))
        self._flush()

    def _flush(self) -> None:
        """Sync what is not, unless that is being done: what has come meanwhile goes together."""
        if not self._is_flushing and self.flushed_end < self.end_offset:
            self._is_flushing = True
            self._out.append(FlushLog(self.generation, self.end_offset))

    def _commit(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self._out.append(AdvanceHighWatermark(offset))

    # ---- effects ----

    def _take(self) -> list[Effect]:
        effects, self._out = self._out, []
        return effects

    def _persist(self, state: QuorumState) -> None:
        self.state = state
        if self._out and isinstance(self._out[-1], Persist):
            self._out.pop()  # nothing rests on it yet: one sync is enough
        if not self._rules.vote_not_persisted:
            self._out.append(Persist(state))

    def _send(self, to: int, request: Request) -> int:
        self._last_request_id += 1
        self._out.append(SendMessage(to, request, self._last_request_id))
        return self._last_request_id

    def _await(self, to: int, request: Request, now_ms: int) -> None:
        until_ms = now_ms + self._timeouts.request_ms
        self._outstanding = Outstanding(self._send(to, request), until_ms)

    def _reply(self, ticket: int, response: Response) -> None:
        self._out.append(Reply(ticket, response))

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
    """Whether there is a deadline, and it has come."""
    return deadline_ms is not None and deadline_ms <= now_ms
