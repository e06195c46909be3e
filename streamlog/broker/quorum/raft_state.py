"""RaftState: what a member of the quorum is at this moment, and how that changes.

Pure, the lower half of `raft`: epoch and vote, role, the ends of the log, deadlines, the effects
of the step in hand. Rule of the file: every change of the role goes through `_see_epoch`,
`_follow`, `_detach` or `_campaign`, and every one of epoch and vote through `_persist`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from streamlog.broker.quorum.epoch_chain import EpochChain
from streamlog.broker.quorum.leadership import Leadership
from streamlog.broker.quorum.raft_messages import (
    Append,
    Commit,
    Effect,
    Entry,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    Flush,
    LeaderChanged,
    LoseLeadership,
    Persist,
    QuorumState,
    Refusal,
    Reply,
    Request,
    Response,
    Send,
    SnapshotId,
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
class Rules:
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


CORRECT = Rules()


class Role(StrEnum):
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
        rules: Rules = CORRECT,
    ) -> None:
        self.node_id = node_id
        self.voters = voters
        self.state = state
        self.chain = chain
        self.role = Role.UNATTACHED
        self.leader_id: int | None = None
        self.flushed_end = chain.end_offset
        self.high_watermark = chain.start.end_offset
        self.generation = 0
        self.leadership: Leadership | None = None
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
        self._receiving: tuple[SnapshotId, int] | None = None
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
            self._stop_leading(now_ms, Role.UNATTACHED)
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
        if self.is_leader or (self.role is Role.FOLLOWER and self.leader_id == leader_id):
            return
        self._forget_leader()
        self.role = Role.FOLLOWER
        self.leader_id = leader_id
        self._resend_ms = None
        self._asked.clear()
        if self.state.leader_id != leader_id:
            self._persist(replace(self.state, leader_id=leader_id))
        self._out.append(LeaderChanged(self.epoch, leader_id))
        self._deadline_ms = now_ms + self._timeouts.fetch_ms
        self._fetch_later(now_ms, 0)

    def _detach(self, now_ms: int, role: Role = Role.UNATTACHED) -> None:
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

    def _stop_leading(self, now_ms: int, role: Role) -> None:
        leadership = self.leadership
        if leadership is None:
            return
        self.leadership = None
        self._out.append(LoseLeadership(self.epoch))
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
        self._out.append(Append((entry,)))
        self._flush()

    def _flush(self) -> None:
        """Sync what is not, unless that is being done: what has come meanwhile goes together."""
        if not self._is_flushing and self.flushed_end < self.end_offset:
            self._is_flushing = True
            self._out.append(Flush(self.generation, self.end_offset))

    def _commit(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self._out.append(Commit(offset))

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
        self._out.append(Send(to, request, self._last_request_id))
        return self._last_request_id

    def _await(self, to: int, request: Request, now_ms: int) -> None:
        until_ms = now_ms + self._timeouts.request_ms
        self._outstanding = Outstanding(self._send(to, request), until_ms)

    def _reply(self, ticket: int, response: Response) -> None:
        self._out.append(Reply(ticket, response))

    def _epoch_response(self, refusal: Refusal | None) -> EpochResponse:
        return EpochResponse(refusal=refusal, epoch=self.epoch, leader_id=self.leader_id)

    def _refused_fetch(self, request: FetchRequest) -> FetchResponse:
        refusal = Refusal.NOT_LEADER if request.epoch == self.epoch else Refusal.FENCED_EPOCH
        return FetchResponse(epoch=self.epoch, leader_id=self.leader_id, refusal=refusal)


def is_due(deadline_ms: int | None, now_ms: int) -> bool:
    """Whether there is a deadline, and it has come."""
    return deadline_ms is not None and deadline_ms <= now_ms
