"""Raft: one member of the quorum as a state machine (KIP-595, 630, 996, 1166).

It knows neither files nor sockets: `log_replica` performs the effects in their order, and reports
what came of them. `deliver_request` and `deliver_response` pass a message to its method; `view_of`
tells how far each replica is.

Not done here: elections' timers, epochs and the leader's bookkeeping (`raft_state`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from streamlog.broker.quorum.raft.raft_messages import (
    AppendEntries,
    BecomeLeader,
    BeginEpochRequest,
    Complain,
    Effect,
    EndEpochRequest,
    EpochResponse,
    InstallSnapshot,
    LeaderChanged,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftSnapshotId,
    RaftVoteRequest,
    RaftVoteResponse,
    ReplyEntries,
    ReplySnapshot,
    Request,
    Response,
    SendMessage,
    SnapshotRequest,
    SnapshotResponse,
    TrimLog,
    WriteSnapshot,
)
from streamlog.broker.quorum.raft.raft_state import (
    LeaderState,
    ParkedFetch,
    RaftRole,
    RaftState,
    VoterProgress,
    has_news,
    is_due,
)
from streamlog.broker.replication.replica_state import Diverging, StopReplica, Truncate
from streamlog.errors import NotLeader
from streamlog.protocol.error_codes import ErrorCode


class Raft(RaftState):
    """One member: a voter, or an observer if `node_id` is not among `voters`.

    `chain` describes the log as it is on disk, synced; `draw` is its chance.
    """

    # ---- time ----

    def start(self, now_ms: int) -> list[Effect]:
        """Begin: as follower of who led last, or waiting to hear of a leader.

        Who led itself never leads the same epoch again. A sole voter elects itself at once.
        """
        self._rearm_election(now_ms)
        if self.voters == (self.node_id,):
            if not self.is_rejoining:
                self._campaign(now_ms, pre_vote=False)
        elif self.state.leader_id not in {None, self.node_id}:
            self._follow(self.state.leader_id, now_ms)
        elif not self._may_campaign:
            self._fetch(now_ms)
        return self._take()

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Time has passed."""
        if self.leadership is not None:
            self._tick_leader(self.leadership, now_ms)
        elif is_due(self._deadline_ms, now_ms):
            self._give_up_waiting(now_ms)
        if self._outstanding is not None and is_due(self._outstanding.until_ms, now_ms):
            self._fail_outstanding(now_ms)
        if is_due(self._fetch_at_ms, now_ms):
            self._fetch(now_ms)
        if is_due(self._resend_ms, now_ms):
            self._resend(now_ms)
        return self._take()

    def resign(self, now_ms: int) -> list[Effect]:
        """Give up leading, if it does, and tell the others who should try first."""
        leadership = self.leadership
        if leadership is not None:
            successors = leadership.successors()
            ending = EndEpochRequest(
                leader_epoch=self.epoch, leader_id=self.node_id, preferred_successors=successors
            )
            self._stop_leading(now_ms, RaftRole.RESIGNED)
            for voter in successors:
                self._send(voter, ending)
        return self._take()

    def _give_up_waiting(self, now_ms: int) -> None:
        """The role has lasted long enough: an election has no outcome, or a leader is silent."""
        if self._may_campaign:
            self._campaign(now_ms, pre_vote=True)
        else:
            self._detach(now_ms)

    def _resend(self, now_ms: int) -> None:
        """Ask, or tell, those that have not answered yet."""
        self._resend_ms = now_ms + self._resend_interval_ms if len(self.voters) > 1 else None
        if self.leadership is not None:
            self._announce(self.leadership, now_ms)
        else:
            self._ask_for_votes()

    # ---- elections ----

    def on_vote_request(self, request: RaftVoteRequest, ticket: int, now_ms: int) -> list[Effect]:
        """Another one wants to lead."""
        if not request.pre_vote:
            self._see_epoch(request.candidate_epoch, now_ms)
        granted = (
            request.candidate_id in self.voters
            and self.is_voter
            and not self.is_rejoining
            and self._is_up_to_date(request)
            and (self._would_vote(now_ms, request) if request.pre_vote else self._votes(request))
        )
        if granted and not request.pre_vote and self.state.voted_id is None:
            self._persist(replace(self.state, voted_id=request.candidate_id))
            self._rearm_election(now_ms)
        self._reply(
            ticket,
            RaftVoteResponse(
                leader_epoch=self.epoch, leader_id=self.leader_id, vote_granted=granted
            ),
        )
        return self._take()

    def _is_up_to_date(self, request: RaftVoteRequest) -> bool:
        own = (self.chain.last_epoch, self.end_offset)
        return (request.last_offset_epoch, request.last_offset) >= own or self._rules.no_log_check

    def _votes(self, request: RaftVoteRequest) -> bool:
        is_free = self.state.voted_id in {None, request.candidate_id}
        return (
            request.candidate_epoch == self.epoch
            and is_free
            and self.role not in {RaftRole.LEADER, RaftRole.FOLLOWER}
        )

    def _would_vote(self, now_ms: int, request: RaftVoteRequest) -> bool:
        fetched_ms = self._fetched_ms
        has_leader = self.role is RaftRole.FOLLOWER and (
            fetched_ms is not None and now_ms - fetched_ms < self._timeouts.fetch_ms
        )
        return request.candidate_epoch >= self.epoch and not self.is_leader and not has_leader

    def on_vote_response(
        self, voter: int, request_id: int, response: RaftVoteResponse, now_ms: int
    ) -> list[Effect]:
        """A voter has answered."""
        is_of_this = self._asked.pop(request_id, None) == voter
        epoch = self.epoch
        self._learn(voter, response.leader_epoch, response.leader_id, now_ms)
        if is_of_this and response.vote_granted and self.epoch == epoch:
            self._granted.add(voter)
            self._tally(now_ms)
        return self._take()

    def _campaign(self, now_ms: int, *, pre_vote: bool) -> None:
        self._forget_leader()
        self._granted = {self.node_id}
        self._asked.clear()
        if pre_vote:
            self.role = RaftRole.PROSPECTIVE
        else:
            self.role = RaftRole.CANDIDATE
            self._persist(
                replace(self.state, epoch=self.epoch + 1, voted_id=self.node_id, leader_id=None)
            )
        self._rearm_election(now_ms)
        self._resend(now_ms)
        self._tally(now_ms)

    def _ask_for_votes(self) -> None:
        request = RaftVoteRequest(
            candidate_epoch=self.epoch,
            candidate_id=self.node_id,
            last_offset_epoch=self.chain.last_epoch,
            last_offset=self.end_offset,
            pre_vote=self.role is RaftRole.PROSPECTIVE,
        )
        waiting = set(self._asked.values())
        for voter in self.voters:
            if voter not in self._granted and voter not in waiting:
                self._asked[self._send(voter, request)] = voter

    def _tally(self, now_ms: int) -> None:
        if len(self._granted) <= len(self.voters) // 2:
            return
        if self.role is RaftRole.PROSPECTIVE:
            self._campaign(now_ms, pre_vote=False)
        elif self.role is RaftRole.CANDIDATE:
            self._lead(now_ms)

    def _lead(self, now_ms: int) -> None:
        self.role = RaftRole.LEADER
        self.leader_id = self.node_id
        self._deadline_ms = None
        self._asked.clear()
        self._persist(replace(self.state, leader_id=self.node_id))
        self.leadership = LeaderState(
            node_id=self.node_id, voters=self.voters, start_offset=self.end_offset, now_ms=now_ms
        )
        self._out.append(LeaderChanged(self.epoch, self.node_id))
        self._out.append(BecomeLeader(self.epoch, self.end_offset))
        self._append_own(b"", count=1, is_control=True)
        self._resend(now_ms)
        self._advance(now_ms)

    def _announce(self, leadership: LeaderState, now_ms: int) -> None:
        request = BeginEpochRequest(leader_epoch=self.epoch, leader_id=self.node_id)
        waiting = set(self._asked.values())
        for voter in leadership.silent(now_ms=now_ms, patience_ms=self._timeouts.fetch_ms):
            if voter not in waiting:
                self._asked[self._send(voter, request)] = voter

    def on_begin_epoch(self, request: BeginEpochRequest, ticket: int, now_ms: int) -> list[Effect]:
        """A member says that it leads."""
        if request.leader_epoch >= self.epoch:
            self._learn(request.leader_id, request.leader_epoch, request.leader_id, now_ms)
            self._reply(ticket, self._epoch_response(ErrorCode.NONE))
        elif not self._rules.no_begin_fence:
            self._reply(ticket, self._epoch_response(ErrorCode.FENCED_LEADER_EPOCH))
        return self._take()

    def on_end_epoch(self, request: EndEpochRequest, ticket: int, now_ms: int) -> list[Effect]:
        """The leader has resigned: who is named first tries at once, the others give it time."""
        if request.leader_epoch < self.epoch:
            self._reply(ticket, self._epoch_response(ErrorCode.FENCED_LEADER_EPOCH))
            return self._take()
        self._see_epoch(request.leader_epoch, now_ms)
        if self.role is RaftRole.FOLLOWER and self.leader_id == request.leader_id:
            self._detach(now_ms)
            self._fetched_ms = None
            if self._may_campaign and request.preferred_successors[:1] == (self.node_id,):
                self._campaign(now_ms, pre_vote=True)
        self._reply(ticket, self._epoch_response(ErrorCode.NONE))
        return self._take()

    def on_epoch_response(
        self, member: int, request_id: int, response: EpochResponse, now_ms: int
    ) -> list[Effect]:
        """A member has answered to the begin or end of an epoch."""
        self._asked.pop(request_id, None)
        self._learn(member, response.leader_epoch, response.leader_id, now_ms)
        return self._take()

    def on_failed(self, request_id: int, now_ms: int) -> list[Effect]:
        """A request did not get through, or no answer came."""
        self._asked.pop(request_id, None)
        outstanding = self._outstanding
        if outstanding is not None and outstanding.request_id == request_id:
            self._fail_outstanding(now_ms)
        return self._take()

    # ---- the leader ----

    def append(self, payload: bytes, *, count: int, now_ms: int) -> list[Effect]:
        """Write one atomic batch of `count` records at `end_offset`.

        It is committed once an `AdvanceHighWatermark` passes it.

        Raises:
            NotLeader: it does not lead.
        """
        if self.leadership is None:
            raise NotLeader(
                f"node {self.node_id} does not lead the quorum: ask node {self.leader_id}"
            )
        self._append_own(payload, count=count, is_control=False)
        self._advance(now_ms)
        return self._take()

    def on_fetch(self, request: RaftFetchRequest, ticket: int, now_ms: int) -> list[Effect]:
        """A replica asks for what follows its log, and so says what it has on disk."""
        self._see_epoch(request.current_leader_epoch, now_ms)
        leadership = self.leadership
        if leadership is None or request.current_leader_epoch != self.epoch:
            self._reply(ticket, self._refused_fetch(request))
            return self._take()
        self._replace_parked(leadership, request)
        answer = self._parting(request)
        if answer is not None:
            self._reply(ticket, answer)
            return self._take()
        progress = leadership.on_fetch(request, end_offset=self.end_offset, now_ms=now_ms)
        self._note_rejoining(progress, request)
        self._advance(now_ms)
        is_in_again = self._has_rejoined(progress)
        if is_in_again or has_news(request, self.end_offset, self.high_watermark):
            self._send_entries(request, ticket)
        else:
            until_ms = now_ms + self._timeouts.wait_ms
            leadership.parked[request.replica_id] = ParkedFetch(ticket, request, until_ms)
        return self._take()

    def on_snapshot_request(
        self, request: SnapshotRequest, ticket: int, now_ms: int
    ) -> list[Effect]:
        """A replica that is behind the start of the log fetches a snapshot instead."""
        self._see_epoch(request.current_leader_epoch, now_ms)
        leadership = self.leadership
        response = SnapshotResponse(
            leader_epoch=self.epoch, leader_id=self.leader_id, snapshot_id=request.snapshot_id
        )
        if leadership is None or request.current_leader_epoch != self.epoch:
            refusal = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER
                if leadership is None
                else ErrorCode.FENCED_LEADER_EPOCH
            )
            self._reply(ticket, replace(response, error_code=refusal))
            return self._take()
        progress = leadership.voters.get(request.replica_id)
        if progress is not None:
            progress.fetched_ms = now_ms
        self._out.append(ReplySnapshot(ticket, response, request.snapshot_id, request.position))
        return self._take()

    def _parting(self, request: RaftFetchRequest) -> RaftFetchResponse | None:
        """What to tell to a replica whose log is no beginning of this one."""
        start = self.chain.start
        if request.fetch_offset < start.end_offset:
            return replace(self._told(), snapshot_id=start)
        epoch, end_offset = self.chain.end_for(request.last_fetched_epoch)
        is_beginning = epoch == request.last_fetched_epoch and request.fetch_offset <= end_offset
        if request.fetch_offset == 0 or is_beginning or self._rules.no_divergence_check:
            return None
        if epoch < 0:
            return replace(self._told(), snapshot_id=start)
        return replace(self._told(), diverging_epoch=Diverging(epoch, end_offset))

    def _note_rejoining(self, progress: VoterProgress, request: RaftFetchRequest) -> None:
        """A voter that has lost its disk is let in again by an entry written after it asked.

        Nobody else is: who takes itself for a voter and is none here (a cluster that is about to
        grow) would then decide things with others like it, and without this leader.
        """
        is_let_in = request.replica_id in self.voters or self._rules.lets_anybody_in
        if progress.rejoin_id == request.rejoin_id or not is_let_in:
            return
        progress.rejoin_id = request.rejoin_id
        if request.rejoin_id:
            self._append_own(b"", count=1, is_control=True)
            progress.rejoin_offset = self.end_offset

    def _has_rejoined(self, progress: VoterProgress) -> bool:
        passed = min(progress.end_offset, self.high_watermark)
        return bool(progress.rejoin_id) and passed >= progress.rejoin_offset

    def _told(self) -> RaftFetchResponse:
        return RaftFetchResponse(
            leader_epoch=self.epoch, leader_id=self.node_id, high_watermark=self.high_watermark
        )

    def _send_entries(self, request: RaftFetchRequest, ticket: int) -> None:
        leadership = self.leadership
        progress = leadership.progress_of(request.replica_id) if leadership else None
        rejoined = progress is not None and self._has_rejoined(progress)
        response = replace(self._told(), rejoined=rejoined)
        self._out.append(ReplyEntries(ticket, response, request.fetch_offset))

    def _advance(self, now_ms: int) -> None:
        """What a majority has is committed; whoever waits for that hears of it."""
        leadership = self.leadership
        if leadership is None:
            return
        own_offset = self.end_offset if self._rules.count_unflushed else self.flushed_end
        offset = leadership.majority_offset(own_offset)
        if offset > leadership.start_offset or self._rules.commit_old_epoch:
            self._commit(offset)
        self._release(leadership, now_ms)

    def _release(self, leadership: LeaderState, now_ms: int) -> None:
        due = leadership.release(
            end_offset=self.end_offset, high_watermark=self.high_watermark, now_ms=now_ms
        )
        for each in due:
            self._send_entries(each.request, each.ticket)

    def _replace_parked(self, leadership: LeaderState, request: RaftFetchRequest) -> None:
        """A replica that asks again has given up its earlier request."""
        parked = leadership.parked.pop(request.replica_id, None)
        if parked is not None:
            self._send_entries(parked.request, parked.ticket)

    def _tick_leader(self, leadership: LeaderState, now_ms: int) -> None:
        if is_due(leadership.touch_deadline_ms(self._touch_ms), now_ms):
            self._stop_leading(now_ms, RaftRole.RESIGNED)
        else:
            self._release(leadership, now_ms)

    # ---- the follower ----

    def on_fetched(
        self, leader: int, request_id: int, response: RaftFetchResponse, now_ms: int
    ) -> list[Effect]:
        """What was fetched has come."""
        outstanding = self._outstanding
        is_awaited = outstanding is not None and outstanding.request_id == request_id
        if is_awaited:
            self._outstanding = None
        self._learn(leader, response.leader_epoch, response.leader_id, now_ms)
        if not is_awaited and not self._rules.accept_any_answer:
            return self._take()
        is_from_leader = self.role is RaftRole.FOLLOWER and leader == self.leader_id
        if not is_from_leader or response.error_code or response.leader_epoch != self.epoch:
            if self._fetch_at_ms is None:
                self._fetch_later(now_ms)
            return self._take()
        self._hear_of_leader(now_ms)
        if response.snapshot_id is not None:
            self._receive(response.snapshot_id, now_ms)
        elif response.diverging_epoch is not None:
            self._cut(response.diverging_epoch, now_ms)
        else:
            self._take_entries(response, now_ms)
        return self._take()

    def _take_entries(self, response: RaftFetchResponse, now_ms: int) -> None:
        end_offset = self.end_offset
        try:
            self.chain.extend(response.entries)
        except ValueError as error:
            self._out.append(Complain(f"entries from node {self.leader_id} were dropped: {error}"))
            self.chain.truncate(end_offset)
            self._fetch_later(now_ms)
            return
        if response.entries:
            self._out.append(AppendEntries(response.entries))
            self._flush()
        self._commit(min(response.high_watermark, self.end_offset))
        if response.rejoined:
            self._rejoin()
        self._fetch(now_ms)

    def _rejoin(self) -> None:
        """Vote again, but not in this epoch: it may have done so before."""
        if self.state.rejoin_id:
            self._persist(replace(self.state, rejoin_id=0, voted_id=self.leader_id))

    def _cut(self, diverging: Diverging, now_ms: int) -> None:
        """The leader has `epoch` up to `end_offset`, and nothing else of what is here."""
        own_epoch, own_end = self.chain.end_for(diverging.epoch)
        has_epoch = own_epoch == diverging.epoch
        to_offset = min(diverging.end_offset, own_end) if has_epoch else own_end
        if to_offset < self.high_watermark:
            self._out.append(
                StopReplica(
                    f"node {self.leader_id} leads epoch {self.epoch} without what is committed"
                    f" here: its log would cut off this one at {to_offset}, and everything before"
                    f" {self.high_watermark} is committed"
                )
            )
            return
        if to_offset < self.end_offset:
            self.chain.truncate(to_offset)
            self.flushed_end = min(self.flushed_end, to_offset)
            self.generation += 1
            self._out.append(Truncate(to_offset))
        self._fetch(now_ms)

    def _fetch(self, now_ms: int) -> None:
        """Ask for what follows, as soon as everything before that is on disk."""
        self._fetch_at_ms = None
        to = self._source()
        if to is None or self._outstanding is not None or self._is_installing:
            return
        if self._receiving is not None:
            self._fetch_snapshot(to, *self._receiving, now_ms=now_ms)
            return
        if self.flushed_end < self.end_offset and not self._rules.fetch_before_flush:
            self._flush()
            return
        request = RaftFetchRequest(
            current_leader_epoch=self.epoch,
            replica_id=self.node_id,
            fetch_offset=self.end_offset,
            last_fetched_epoch=self.chain.last_epoch,
            known_high_watermark=self.high_watermark,
            rejoin_id=0 if self._rules.rejoin_at_once else self.state.rejoin_id,
        )
        self._await(to, request, now_ms)

    def _source(self) -> int | None:
        """From whom to fetch: the leader; who can't elect one asks the voters for it."""
        if self.role is RaftRole.FOLLOWER:
            return self.leader_id
        if self._may_campaign or self.is_leader:
            return None
        others = [each for each in self.voters if each != self.node_id]
        hint, self._hint = self._hint, None
        return hint if hint in others else others[self._draw(len(others))] if others else None

    def _fail_outstanding(self, now_ms: int) -> None:
        self._outstanding = None
        self._fetch_later(now_ms)

    def on_flushed(self, generation: int, end_offset: int, now_ms: int) -> list[Effect]:
        """A sync has ended that began when the log was as `generation` and `end_offset` say."""
        self._is_flushing = False
        if generation == self.generation or self._rules.no_flush_generation:
            self.flushed_end = max(self.flushed_end, min(end_offset, self.end_offset))
        self._flush()
        if self.leadership is not None:
            self._advance(now_ms)
        else:
            self._fetch(now_ms)
        return self._take()

    # ---- snapshots ----

    def on_snapshot_response(
        self, leader: int, request_id: int, response: SnapshotResponse, now_ms: int
    ) -> list[Effect]:
        """Bytes of the snapshot have come."""
        outstanding = self._outstanding
        is_awaited = outstanding is not None and outstanding.request_id == request_id
        if is_awaited:
            self._outstanding = None
        self._learn(leader, response.leader_epoch, response.leader_id, now_ms)
        receiving = self._receiving
        if not is_awaited or receiving is None:
            return self._take()
        snapshot, position = receiving
        is_usable = (response.snapshot_id, response.position) == (snapshot, position)
        if response.error_code or response.leader_epoch != self.epoch or not is_usable:
            self._receiving = None  # the leader may have another one by now: ask for entries
            self._fetch_later(now_ms)
            return self._take()
        self._hear_of_leader(now_ms)
        self._out.append(WriteSnapshot(snapshot, position, response.unaligned_records))
        position += len(response.unaligned_records)
        if position >= response.size:
            self._receiving = None
            self._is_installing = True
            self._out.append(InstallSnapshot(snapshot))
        else:
            self._receiving = snapshot, position
            self._fetch(now_ms)
        return self._take()

    def on_installed(self, snapshot: RaftSnapshotId | None, now_ms: int) -> list[Effect]:
        """The log begins behind the snapshot, durably; None if it was not what it should be."""
        self._is_installing = False
        if snapshot is None:
            self._fetch_later(now_ms)
            return self._take()
        self.chain.restart(snapshot)
        self.generation += 1
        self.flushed_end = self.end_offset
        self._commit(snapshot.end_offset)
        self._fetch(now_ms)
        return self._take()

    def trim(self, snapshot: RaftSnapshotId) -> list[Effect]:
        """Let the log begin behind a snapshot that is on disk; nothing if it does already."""
        if self.chain.start.end_offset < snapshot.end_offset <= self.high_watermark:
            self.chain.trim(snapshot)
            self._out.append(TrimLog(snapshot))
        return self._take()

    def _receive(self, snapshot: RaftSnapshotId, now_ms: int) -> None:
        if snapshot.end_offset <= self.high_watermark:
            self._out.append(
                StopReplica(
                    f"node {self.leader_id} leads epoch {self.epoch} without what is committed"
                    f" here: it offers a snapshot up to {snapshot.end_offset}, and everything"
                    f" before {self.high_watermark} is committed"
                )
            )
            return
        self._receiving = snapshot, 0
        self._fetch(now_ms)

    def _fetch_snapshot(
        self, to: int, snapshot: RaftSnapshotId, position: int, *, now_ms: int
    ) -> None:
        request = SnapshotRequest(
            current_leader_epoch=self.epoch,
            replica_id=self.node_id,
            snapshot_id=snapshot,
            position=position,
        )
        self._await(to, request, now_ms)


def deliver_request(raft: Raft, request: Request, ticket: int, now_ms: int) -> list[Effect]:
    """Another member asks; the reply will have the same ticket."""
    match request:
        case RaftVoteRequest():
            return raft.on_vote_request(request, ticket, now_ms)
        case BeginEpochRequest():
            return raft.on_begin_epoch(request, ticket, now_ms)
        case EndEpochRequest():
            return raft.on_end_epoch(request, ticket, now_ms)
        case RaftFetchRequest():
            return raft.on_fetch(request, ticket, now_ms)
        case SnapshotRequest():
            return raft.on_snapshot_request(request, ticket, now_ms)


def deliver_response(
    raft: Raft, sent: SendMessage, response: Response, now_ms: int
) -> list[Effect]:
    """What was sent has been answered."""
    to, request_id = sent.to, sent.request_id
    match response:
        case RaftVoteResponse():
            return raft.on_vote_response(to, request_id, response, now_ms)
        case EpochResponse():
            return raft.on_epoch_response(to, request_id, response, now_ms)
        case RaftFetchResponse():
            return raft.on_fetched(to, request_id, response, now_ms)
        case SnapshotResponse():
            return raft.on_snapshot_response(to, request_id, response, now_ms)


class ReplicaView(NamedTuple):
    """How far a member is; times are by this node's wall clock, None if it does not know."""

    node_id: int
    end_offset: int
    """-1 if it has not fetched yet."""
    fetched_wall_ms: int | None
    caught_up_wall_ms: int | None
    is_rejoining: bool = False
    """Whether it is a voter that does not vote yet."""


class QuorumView(NamedTuple):
    """Who leads, and how far everybody is."""

    leader_id: int | None
    epoch: int
    high_watermark: int
    is_leader: bool
    voters: tuple[ReplicaView, ...]
    """This node first; the others are known to the leader alone."""
    observers: tuple[ReplicaView, ...]


def view_of(raft: Raft, *, ahead_ms: int) -> QuorumView:
    """What a member knows; its wall clock is so much ahead of its monotonic one."""
    leadership = raft.leadership
    voters = {} if leadership is None else leadership.voters
    observers = {} if leadership is None else leadership.observers
    own = ReplicaView(raft.node_id, raft.end_offset, None, None, raft.is_rejoining)
    return QuorumView(
        leader_id=raft.leader_id,
        epoch=raft.epoch,
        high_watermark=raft.high_watermark,
        is_leader=leadership is not None,
        voters=(own, *(_view(*each, ahead_ms) for each in voters.items())),
        observers=tuple(_view(*each, ahead_ms) for each in observers.items()),
    )


def _view(node_id: int, progress: VoterProgress, ahead_ms: int) -> ReplicaView:
    fetched_ms, caught_up_ms = progress.fetched_ms, progress.caught_up_ms
    return ReplicaView(
        node_id,
        progress.end_offset,
        None if fetched_ms is None else fetched_ms + ahead_ms,
        None if caught_up_ms is None else caught_up_ms + ahead_ms,
        bool(progress.rejoin_id),
    )
