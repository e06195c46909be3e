"""Raft: one member of the quorum as a state machine (KIP-595, KIP-630, KIP-996, KIP-1166).

Pure: messages, syncs and the time come in, effects go out. The shell (`log_replica`) performs the
effects in their order and reports their outcome. `deliver_request` and `deliver_response` pass a
message to its method; `view_of` describes how far each replica is.

Rules of this module: a member acts on a message only after it has taken up the message's epoch. A
follower fetches, and so confirms its log, only when everything before the fetch offset is synced.
No cut goes below the high watermark: the member stops instead (`StopReplica`).

Not done here: the state, the time-outs and the leader's bookkeeping (`raft_state`).
"""

from __future__ import annotations

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
from streamlog.replace import replace


class Raft(RaftState):
    """One member: a voter, or an observer if `node_id` is not among `voters`.

    Every method that takes an event returns the effects to perform; see `RaftState` for the
    arguments of the constructor.
    """

    # ---- time ----

    def start(self, now_ms: int) -> list[Effect]:
        """Start as the follower of the last known leader, or wait for a leader.

        A member that led before the restart does not continue that epoch. A sole voter elects
        itself at once.
        """
        self._rearm_election(now_ms)
        if self.voters == (self.node_id,):
            if not self.is_rejoining:
                self._campaign(now_ms, pre_vote=False)
        elif self.state.leader_id not in {None, self.node_id}:
            self._follow(self.state.leader_id, now_ms)
        elif not self._may_campaign:
            self._fetch(now_ms)
        return self._take_effects()

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Do what is due at `now_ms`; see `next_deadline_ms`."""
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
        return self._take_effects()

    def resign(self, now_ms: int) -> list[Effect]:
        """Stop leading, if this member leads, and name the voters that campaign next."""
        leadership = self.leadership
        if leadership is not None:
            successors = leadership.successors()
            ending = EndEpochRequest(
                leader_epoch=self.epoch, leader_id=self.node_id, preferred_successors=successors
            )
            self._stop_leading(now_ms, RaftRole.RESIGNED)
            for voter in successors:
                self._send(voter, ending)
        return self._take_effects()

    def _give_up_waiting(self, now_ms: int) -> None:
        """React to a time-out: the election has no outcome, or the leader does not respond."""
        if self._may_campaign:
            self._campaign(now_ms, pre_vote=True)
        else:
            self._detach(now_ms)

    def _resend(self, now_ms: int) -> None:
        """Repeat vote requests or announcements to voters that have not answered."""
        self._resend_ms = now_ms + self._resend_interval_ms if len(self.voters) > 1 else None
        if self.leadership is not None:
            self._announce(self.leadership, now_ms)
        else:
            self._ask_for_votes()

    # ---- elections ----

    def on_vote_request(self, request: RaftVoteRequest, ticket: int, now_ms: int) -> list[Effect]:
        """Handle a request for a vote or a pre-vote."""
        # A pre-vote must not change the voter's epoch (KIP-996). Without that rule:
        #   1. Node 2 is cut off and times out again and again; its epoch grows to 40.
        #   2. It comes back and asks for votes in epoch 41. 3. The healthy leader of epoch 7 sees
        #      epoch 41 and resigns. With the rule the leader and its follower refuse a pre-vote.
        if not request.pre_vote:
            self._see_epoch(request.candidate_epoch, now_ms)
        granted = (
            request.candidate_id in self.voters
            and self.is_voter
            and not self.is_rejoining
            and self._is_up_to_date(request)
            and (
                self._would_vote_for(now_ms, request)
                if request.pre_vote
                else self._can_vote_for(request)
            )
        )
        if granted and not request.pre_vote and self.state.voted_id is None:
            # The vote is on disk before the reply leaves, as effects are performed in order:
            #   1. The voter grants node 1 its vote in epoch 5 and loses power.
            #   2. It restarts without that vote and grants node 2 one. 3. Epoch 5 has two leaders.
            self._persist(replace(self.state, voted_id=request.candidate_id))
            self._rearm_election(now_ms)
        self._reply(
            ticket,
            RaftVoteResponse(
                leader_epoch=self.epoch, leader_id=self.leader_id, vote_granted=granted
            ),
        )
        return self._take_effects()

    def _is_up_to_date(self, request: RaftVoteRequest) -> bool:
        # The epoch decides before the length: a longer log of an older epoch may lack entries that
        # a later leader has committed.
        own = (self.chain.last_epoch, self.end_offset)
        return (request.last_offset_epoch, request.last_offset) >= own or self._rules.no_log_check

    def _can_vote_for(self, request: RaftVoteRequest) -> bool:
        is_free = self.state.voted_id in {None, request.candidate_id}
        return (
            request.candidate_epoch == self.epoch
            and is_free
            and self.role not in {RaftRole.LEADER, RaftRole.FOLLOWER}
        )

    def _would_vote_for(self, now_ms: int, request: RaftVoteRequest) -> bool:
        fetched_ms = self._fetched_ms
        has_leader = self.role is RaftRole.FOLLOWER and (
            fetched_ms is not None and now_ms - fetched_ms < self._timeouts.fetch_ms
        )
        return request.candidate_epoch >= self.epoch and not self.is_leader and not has_leader

    def on_vote_response(
        self, voter: int, request_id: int, response: RaftVoteResponse, now_ms: int
    ) -> list[Effect]:
        """Count a vote, if it belongs to the election that runs."""
        is_of_election = self._receivers.pop(request_id, None) == voter
        epoch = self.epoch
        self._learn(voter, response.leader_epoch, response.leader_id, now_ms)
        # `_learn` may have ended the election: a vote of an earlier epoch does not count.
        if is_of_election and response.vote_granted and self.epoch == epoch:
            self._supporters.add(voter)
            self._tally(now_ms)
        return self._take_effects()

    def _campaign(self, now_ms: int, *, pre_vote: bool) -> None:
        self._forget_leader()
        self._supporters = {self.node_id}
        self._receivers.clear()
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
        waiting = set(self._receivers.values())
        for voter in self.voters:
            if voter not in self._supporters and voter not in waiting:
                self._receivers[self._send(voter, request)] = voter

    def _tally(self, now_ms: int) -> None:
        if len(self._supporters) <= len(self.voters) // 2:
            return
        if self.role is RaftRole.PROSPECTIVE:
            self._campaign(now_ms, pre_vote=False)
        elif self.role is RaftRole.CANDIDATE:
            self._lead(now_ms)

    def _lead(self, now_ms: int) -> None:
        self.role = RaftRole.LEADER
        self.leader_id = self.node_id
        # A leader has no deadline of its role; its deadline is `touch_deadline_ms`.
        self._deadline_ms = None
        self._receivers.clear()
        self._persist(replace(self.state, leader_id=self.node_id))
        self.leadership = LeaderState(
            node_id=self.node_id, voters=self.voters, start_offset=self.end_offset, now_ms=now_ms
        )
        self._effects.append(LeaderChanged(self.epoch, self.node_id))
        self._effects.append(BecomeLeader(self.epoch, self.end_offset))
        # The control entry lets the leader commit: entries of earlier epochs are committed only
        # together with one of its own, see `_advance`.
        self._append_own(b"", count=1, is_control=True)
        self._resend(now_ms)
        self._advance(now_ms)

    def _announce(self, leadership: LeaderState, now_ms: int) -> None:
        request = BeginEpochRequest(leader_epoch=self.epoch, leader_id=self.node_id)
        waiting = set(self._receivers.values())
        for voter in leadership.silent(now_ms=now_ms, patience_ms=self._timeouts.fetch_ms):
            if voter not in waiting:
                self._receivers[self._send(voter, request)] = voter

    def on_begin_epoch(self, request: BeginEpochRequest, ticket: int, now_ms: int) -> list[Effect]:
        """Follow a member that announces its leadership, or fence it if its epoch is old."""
        if request.leader_epoch >= self.epoch:
            self._learn(request.leader_id, request.leader_epoch, request.leader_id, now_ms)
            self._reply(ticket, self._epoch_response(ErrorCode.NONE))
        elif not self._rules.no_begin_fence:
            self._reply(ticket, self._epoch_response(ErrorCode.FENCED_LEADER_EPOCH))
        return self._take_effects()

    def on_end_epoch(self, request: EndEpochRequest, ticket: int, now_ms: int) -> list[Effect]:
        """React to the leader's resignation.

        The first of its preferred successors asks for pre-votes at once; the others wait for
        their election time-out.
        """
        if request.leader_epoch < self.epoch:
            self._reply(ticket, self._epoch_response(ErrorCode.FENCED_LEADER_EPOCH))
            return self._take_effects()
        self._see_epoch(request.leader_epoch, now_ms)
        if self.role is RaftRole.FOLLOWER and self.leader_id == request.leader_id:
            self._detach(now_ms)
            # A response of the old leader is no reason to refuse pre-votes under the next one.
            self._fetched_ms = None
            if self._may_campaign and request.preferred_successors[:1] == (self.node_id,):
                self._campaign(now_ms, pre_vote=True)
        self._reply(ticket, self._epoch_response(ErrorCode.NONE))
        return self._take_effects()

    def on_epoch_response(
        self, member: int, request_id: int, response: EpochResponse, now_ms: int
    ) -> list[Effect]:
        """Handle the answer to the announcement or the resignation of this member."""
        self._receivers.pop(request_id, None)
        self._learn(member, response.leader_epoch, response.leader_id, now_ms)
        return self._take_effects()

    def on_failed(self, request_id: int, now_ms: int) -> list[Effect]:
        """Handle the failure of a request: it was not delivered, or not answered in time."""
        self._receivers.pop(request_id, None)
        outstanding = self._outstanding
        if outstanding is not None and outstanding.request_id == request_id:
            self._fail_outstanding(now_ms)
        return self._take_effects()

    # ---- the leader ----

    def append(self, payload: bytes, *, count: int, now_ms: int) -> list[Effect]:
        """Append one atomic batch of `count` records at `end_offset`.

        The batch is committed once an `AdvanceHighWatermark` has passed it.

        Raises:
            NotLeader: this member does not lead.
        """
        if self.leadership is None:
            raise NotLeader(
                f"node {self.node_id} does not lead the quorum: ask node {self.leader_id}"
            )
        self._append_own(payload, count=count, is_control=False)
        self._advance(now_ms)
        return self._take_effects()

    def on_fetch(self, request: RaftFetchRequest, ticket: int, now_ms: int) -> list[Effect]:
        """Handle a fetch, by which a replica confirms that everything before it is synced."""
        self._see_epoch(request.current_leader_epoch, now_ms)
        leadership = self.leadership
        if leadership is None or request.current_leader_epoch != self.epoch:
            self._reply(ticket, self._refused_fetch(request))
            return self._take_effects()
        self._replace_parked(leadership, request)
        # The check comes before the fetch offset counts: a diverging log confirms nothing.
        answer = self._divergence(request)
        if answer is not None:
            self._reply(ticket, answer)
            return self._take_effects()
        progress = leadership.on_fetch(request, end_offset=self.end_offset, now_ms=now_ms)
        self._note_rejoining(progress, request)
        self._advance(now_ms)
        has_rejoined = self._has_rejoined(progress)
        if has_rejoined or has_news(request, self.end_offset, self.high_watermark):
            self._send_entries(request, ticket)
        else:
            until_ms = now_ms + self._timeouts.wait_ms
            leadership.parked[request.replica_id] = ParkedFetch(ticket, request, until_ms)
        return self._take_effects()

    def on_snapshot_request(
        self, request: SnapshotRequest, ticket: int, now_ms: int
    ) -> list[Effect]:
        """Handle a request for bytes of a snapshot, from a replica behind the log's start."""
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
            return self._take_effects()
        progress = leadership.voters.get(request.replica_id)
        if progress is not None:
            # A voter that loads a large snapshot is in touch, though it does not fetch entries.
            progress.fetched_ms = now_ms
        self._effects.append(ReplySnapshot(ticket, response, request.snapshot_id, request.position))
        return self._take_effects()

    def _divergence(self, request: RaftFetchRequest) -> RaftFetchResponse | None:
        """Return the answer to a replica whose log is not a prefix of this one, or None.

        The replica's end offset alone does not show a divergence (KIP-595, as KIP-279):
          1. Node 0 leads epoch 1 and appends offset 7, which no other node fetches; it stops.
          2. Node 1 leads epoch 2 and appends another entry at offset 7.
          3. Node 0 returns and fetches from 8 with last epoch 1. Node 1 has offset 7 too, but its
             epoch 1 ends at 7: node 0 has to cut its log there.
        """
        start = self.chain.start
        if request.fetch_offset < start.end_offset:
            return replace(self._fetch_response(), snapshot_id=start)
        epoch, end_offset = self.chain.end_for(request.last_fetched_epoch)
        is_beginning = epoch == request.last_fetched_epoch and request.fetch_offset <= end_offset
        if request.fetch_offset == 0 or is_beginning or self._rules.no_divergence_check:
            return None
        if epoch < 0:
            # All epochs here are later than the replica's: only the snapshot can help.
            return replace(self._fetch_response(), snapshot_id=start)
        return replace(self._fetch_response(), diverging_epoch=Diverging(epoch, end_offset))

    def _note_rejoining(self, progress: VoterProgress, request: RaftFetchRequest) -> None:
        """Append the entry that lets in a voter which has lost its disk.

          1. Voters 0 and 2 have synced offset 9, so it is committed. Voter 2 loses its disk.
          2. It returns empty. If it voted at once, it could elect voter 1, which lacks offset 9.
          3. It asks with a rejoin id: the leader appends an entry, here at 12, and does not count
             voter 2 until the others have committed it.
          4. Voter 2 has fetched past 12, so it has 9 again: it may vote.

        A node that is not a voter of this leader is not let in, even if it believes that it is one
        (a quorum that is about to grow): it could form a majority with others like it.
        """
        is_voter = request.replica_id in self.voters or self._rules.lets_anybody_in
        if progress.rejoin_id == request.rejoin_id or not is_voter:
            return
        progress.rejoin_id = request.rejoin_id
        if request.rejoin_id:
            self._append_own(b"", count=1, is_control=True)
            progress.rejoin_offset = self.end_offset

    def _has_rejoined(self, progress: VoterProgress) -> bool:
        # Both matter: the others have committed the entry, and the voter has synced it.
        passed = min(progress.end_offset, self.high_watermark)
        return bool(progress.rejoin_id) and passed >= progress.rejoin_offset

    def _fetch_response(self) -> RaftFetchResponse:
        return RaftFetchResponse(
            leader_epoch=self.epoch, leader_id=self.node_id, high_watermark=self.high_watermark
        )

    def _send_entries(self, request: RaftFetchRequest, ticket: int) -> None:
        leadership = self.leadership
        progress = leadership.progress_of(request.replica_id) if leadership else None
        rejoined = progress is not None and self._has_rejoined(progress)
        response = replace(self._fetch_response(), rejoined=rejoined)
        self._effects.append(ReplyEntries(ticket, response, request.fetch_offset))

    def _advance(self, now_ms: int) -> None:
        """Commit what a majority has synced, and answer the fetches that this releases."""
        leadership = self.leadership
        if leadership is None:
            return
        own_offset = self.end_offset if self._rules.count_unflushed else self.flushed_end
        offset = leadership.majority_offset(own_offset)
        # An entry of an earlier epoch is not committed by its count (Raft, section 5.4.2):
        #   1. Node 0 leads epoch 2, appends offset 5, and stops. 2. Node 4 leads epoch 3, appends
        #      another offset 5 and stops. 3. Node 0 leads epoch 4 and copies its offset 5 to a
        #      majority. 4. It stops; node 4, whose last epoch is 3, wins epoch 5 against epoch 2,
        #      and replaces offset 5. An entry of epoch 4 after it would have prevented that.
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
        """Answer the open fetch of a replica that fetches again: it has given up the first."""
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
        """Handle a fetch response: entries, a divergence, a snapshot, or a refusal."""
        outstanding = self._outstanding
        is_awaited = outstanding is not None and outstanding.request_id == request_id
        if is_awaited:
            self._outstanding = None
        self._learn(leader, response.leader_epoch, response.leader_id, now_ms)
        # A late or repeated response was made for another end of this log; it tells the epoch only.
        if not is_awaited and not self._rules.accept_any_answer:
            return self._take_effects()
        is_from_leader = self.role is RaftRole.FOLLOWER and leader == self.leader_id
        if not is_from_leader or response.error_code or response.leader_epoch != self.epoch:
            if self._fetch_at_ms is None:
                self._fetch_later(now_ms)
            return self._take_effects()
        self._hear_of_leader(now_ms)
        if response.snapshot_id is not None:
            self._receive(response.snapshot_id, now_ms)
        elif response.diverging_epoch is not None:
            self._cut(response.diverging_epoch, now_ms)
        else:
            self._take_entries(response, now_ms)
        return self._take_effects()

    def _take_entries(self, response: RaftFetchResponse, now_ms: int) -> None:
        end_offset = self.end_offset
        try:
            self.chain.extend(response.entries)
        except ValueError as error:
            self._effects.append(
                Complain(f"dropped the entries that node {self.leader_id} sent: {error}")
            )
            self.chain.truncate(end_offset)  # `extend` may have recorded the first of them.
            self._fetch_later(now_ms)
            return
        if response.entries:
            self._effects.append(AppendEntries(response.entries))
            self._flush()
        self._commit(min(response.high_watermark, self.end_offset))
        if response.rejoined:
            self._rejoin()
        self._fetch(now_ms)

    def _rejoin(self) -> None:
        """Take part in elections again, from the next epoch on.

        This member may have voted in the present epoch before its disk was lost, so it counts as
        having voted for the leader.
        """
        if self.state.rejoin_id:
            self._persist(replace(self.state, rejoin_id=0, voted_id=self.leader_id))

    def _cut(self, diverging: Diverging, now_ms: int) -> None:
        """Cut the log where it diverges from the leader's (KIP-595, as KIP-101 and KIP-279).

        The leader has `diverging.epoch` up to `diverging.end_offset`; no entry of a later epoch in
        this log is in the leader's.
          1. This log has epoch 1 to offset 5, epoch 2 to 9; the leader's has epoch 1 to 7, then 3.
          2. Asked for epoch 2, the leader answers with epoch 1, end 7.
          3. Here epoch 1 ends at 5: offsets 5 and 6 are of epoch 2. So the cut is at 5, not at 7.
        If this log lacks the leader's epoch, the cut is where its last earlier epoch ends, and the
        next fetch compares again.
        """
        own_epoch, own_end = self.chain.end_for(diverging.epoch)
        has_epoch = own_epoch == diverging.epoch
        to_offset = min(diverging.end_offset, own_end) if has_epoch else own_end
        if to_offset < self.high_watermark:
            self._effects.append(
                StopReplica(
                    f"the log of node {self.leader_id}, which leads epoch {self.epoch}, diverges"
                    f" from this one at offset {to_offset}, although everything before offset"
                    f" {self.high_watermark} is committed"
                )
            )
            return
        if to_offset < self.end_offset:
            self.chain.truncate(to_offset)
            self.flushed_end = min(self.flushed_end, to_offset)
            self.generation += 1
            self._effects.append(Truncate(to_offset))
        self._fetch(now_ms)

    def _fetch(self, now_ms: int) -> None:
        """Fetch from the end of the log, once everything before it is synced."""
        self._fetch_at_ms = None
        to = self._source()
        if to is None or self._outstanding is not None or self._is_installing:
            return
        if self._receiving is not None:
            self._fetch_snapshot(to, *self._receiving, now_ms=now_ms)
            return
        if self.flushed_end < self.end_offset and not self._rules.fetch_before_flush:
            # The fetch offset is the confirmation on which the leader commits: a follower that
            # confirmed unsynced entries could lose them with its power. `on_flushed` fetches.
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
        """Return the node to fetch from: the leader, or else a voter that may know the leader.

        A voter without a leader campaigns and fetches from none.
        """
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
        """Note the end of a sync that began with this `generation` and `end_offset`."""
        self._is_flushing = False
        # 1. A sync of offsets up to 10 begins. 2. The log is cut to 8 and gets other entries 8, 9.
        # 3. The sync ends: the disk has the log up to 8, not up to 10. So its number is void.
        if generation == self.generation or self._rules.no_flush_generation:
            self.flushed_end = max(self.flushed_end, min(end_offset, self.end_offset))
        self._flush()
        if self.leadership is not None:
            self._advance(now_ms)
        else:
            self._fetch(now_ms)
        return self._take_effects()

    # ---- snapshots ----

    def on_snapshot_response(
        self, leader: int, request_id: int, response: SnapshotResponse, now_ms: int
    ) -> list[Effect]:
        """Store bytes of the snapshot, and fetch the next ones or let it be installed."""
        outstanding = self._outstanding
        is_awaited = outstanding is not None and outstanding.request_id == request_id
        if is_awaited:
            self._outstanding = None
        self._learn(leader, response.leader_epoch, response.leader_id, now_ms)
        receiving = self._receiving
        if not is_awaited or receiving is None:
            return self._take_effects()
        snapshot, position = receiving
        is_usable = (response.snapshot_id, response.position) == (snapshot, position)
        if response.error_code or response.leader_epoch != self.epoch or not is_usable:
            # The leader may have replaced the snapshot: a fetch names the current one.
            self._receiving = None
            self._fetch_later(now_ms)
            return self._take_effects()
        self._hear_of_leader(now_ms)
        self._effects.append(WriteSnapshot(snapshot, position, response.unaligned_records))
        position += len(response.unaligned_records)
        if position >= response.size:
            self._receiving = None
            self._is_installing = True
            self._effects.append(InstallSnapshot(snapshot))
        else:
            self._receiving = snapshot, position
            self._fetch(now_ms)
        return self._take_effects()

    def on_installed(self, snapshot: RaftSnapshotId | None, now_ms: int) -> list[Effect]:
        """Continue after the installation of a snapshot; None if its bytes were damaged.

        The log begins after the snapshot, on disk too.
        """
        self._is_installing = False
        if snapshot is None:
            self._fetch_later(now_ms)
            return self._take_effects()
        self.chain.restart(snapshot)
        self.generation += 1
        self.flushed_end = self.end_offset
        self._commit(snapshot.end_offset)
        self._fetch(now_ms)
        return self._take_effects()

    def trim(self, snapshot: RaftSnapshotId) -> list[Effect]:
        """Let the log begin after a snapshot that is on disk.

        Without effect if the log begins there or later, or the snapshot is not committed.
        """
        if self.chain.start.end_offset < snapshot.end_offset <= self.high_watermark:
            self.chain.trim(snapshot)
            self._effects.append(TrimLog(snapshot))
        return self._take_effects()

    def _receive(self, snapshot: RaftSnapshotId, now_ms: int) -> None:
        if snapshot.end_offset <= self.high_watermark:
            self._effects.append(
                StopReplica(
                    f"node {self.leader_id}, which leads epoch {self.epoch}, offers a snapshot up"
                    f" to offset {snapshot.end_offset}, although everything before offset"
                    f" {self.high_watermark} is committed here"
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
    """Pass on another member's request; the `Reply` carries the same ticket."""
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
    """Pass on the response to a request that this member sent."""
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
    """How far one replica is; times are by this node's wall clock, None if unknown."""

    node_id: int
    end_offset: int
    """The end of its synced log; -1 if it has not fetched in this epoch."""
    fetched_wall_ms: int | None
    caught_up_wall_ms: int | None
    is_rejoining: bool = False
    """Whether it is a voter that does not vote yet, because it lost its disk."""


class QuorumView(NamedTuple):
    """The leader, the high watermark and the replicas, as one member knows them."""

    leader_id: int | None
    epoch: int
    high_watermark: int
    is_leader: bool
    voters: tuple[ReplicaView, ...]
    """This node first; only the leader knows the others."""
    observers: tuple[ReplicaView, ...]


def view_of(raft: Raft, *, ahead_ms: int) -> QuorumView:
    """Return a member's view; `ahead_ms` is its wall clock minus its monotonic clock."""
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
