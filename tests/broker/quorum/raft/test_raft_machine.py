from __future__ import annotations

import pytest

from streamlog.broker.quorum.raft.raft_machine import Raft
from streamlog.broker.quorum.raft.raft_messages import (
    BeginEpochRequest,
    Complain,
    Effect,
    Entry,
    EpochResponse,
    FlushLog,
    QuorumState,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftSnapshotId,
    RaftVoteRequest,
    RaftVoteResponse,
    Reply,
    ReplyEntries,
    SendMessage,
)
from streamlog.broker.quorum.raft.raft_state import CORRECT, EpochChain, RaftRole, RaftRules
from streamlog.broker.replication.replica_state import (
    Diverging,
    LoseLeadership,
    StopReplica,
    Truncate,
)
from streamlog.errors import NotLeader
from streamlog.protocol.error_codes import ErrorCode
from streamlog.replace import replace
from tests.broker.quorum.members import TIMEOUTS, Cluster


def elected_cluster(rules: RaftRules = CORRECT, voters: int = 3, observers: int = 0) -> Cluster:
    """Return a cluster whose node 0 leads epoch 1; offset 0 is committed everywhere."""
    cluster = Cluster(voters, observers=observers, rules=rules)
    cluster.elect(0)
    return cluster


def test_an_entry_commits_once_a_majority_has_synced_it() -> None:
    cluster = elected_cluster()
    leader = cluster.raft(0)
    cluster.append(0, b"x")
    for mail in list(cluster.mail):
        cluster.deliver(mail)  # the entry, to both
    cluster.sync(1)
    while cluster.mail:
        cluster.deliver(cluster.mail[0])
    assert leader.high_watermark == 1, "node 1 has it on disk; the leader itself has not"
    cluster.sync(0)
    assert leader.high_watermark == 2


def test_only_the_leader_appends() -> None:
    cluster = elected_cluster()
    with pytest.raises(NotLeader, match="node 1 does not lead the quorum: ask node 0"):
        cluster.append(1, b"x")


@pytest.mark.parametrize("trusts", [False, True])
def test_a_sync_begun_before_a_truncation_does_not_count(trusts: bool) -> None:
    # A member fetches only while no sync is running, so it cannot be reply to truncate during one.
    # That rule covers this one, and has to be broken for the test.
    rules = RaftRules(fetch_before_flush=True, no_flush_generation=trusts)
    raft = Cluster(3, rules=rules).raft(1)

    def fetched(**what: object) -> list[Effect]:
        sent = [each for each in raft.on_tick(20) if isinstance(each, SendMessage)]
        request_id = sent[0].request_id if sent else raft._last_request_id
        reply = RaftFetchResponse(leader_epoch=1, leader_id=0, high_watermark=0)
        return raft.on_fetched(0, request_id, replace(reply, **what), 20)  # type: ignore[arg-type]

    raft.on_begin_epoch(BeginEpochRequest(leader_epoch=1, leader_id=0), 1, 0)
    first = Entry(base_offset=0, count=2, epoch=1, payload=b"lost")
    flush = next(each for each in fetched(entries=(first,)) if isinstance(each, FlushLog))
    assert Truncate(0) in fetched(diverging_epoch=Diverging(0, 0))
    fetched(entries=(replace(first, payload=b"kept"),))
    raft.on_flushed(flush.generation, flush.end_offset, 30)
    assert raft.flushed_end == (2 if trusts else 0)


def test_a_leader_of_an_older_epoch_is_fenced() -> None:
    cluster = elected_cluster()
    ahead = cluster.raft(2)
    ahead.on_vote_request(_vote(epoch=5), 900, cluster.now_ms)
    effects = ahead.on_begin_epoch(
        BeginEpochRequest(leader_epoch=1, leader_id=0), 901, cluster.now_ms
    )
    reply = EpochResponse(error_code=ErrorCode.FENCED_LEADER_EPOCH, leader_epoch=5, leader_id=None)
    assert effects == [Reply(901, reply)]
    assert LoseLeadership(1, ()) in cluster.raft(0).on_epoch_response(2, -1, reply, cluster.now_ms)
    assert cluster.raft(0).epoch == 5


def test_without_the_fence_a_leader_of_an_older_epoch_stays() -> None:
    cluster = elected_cluster(RaftRules(no_begin_fence=True))
    ahead = cluster.raft(2)
    ahead.on_vote_request(_vote(epoch=5), 900, cluster.now_ms)
    begin = BeginEpochRequest(leader_epoch=1, leader_id=0)
    assert ahead.on_begin_epoch(begin, 901, cluster.now_ms) == [], "the stale leader gets no answer"
    assert cluster.raft(0).is_leader


def test_a_leader_hint_about_a_third_node_is_not_trusted() -> None:
    hearsay = RaftVoteResponse(leader_epoch=0, leader_id=2, vote_granted=False)
    believes = Cluster(3, rules=RaftRules(trust_leader_hint=True))
    believes.raft(0).on_vote_response(1, -1, hearsay, 10)
    assert believes.raft(0).leader_id == 2, "it asks that node in vain, again and again"
    cluster = Cluster(3)
    raft = cluster.raft(0)
    raft.on_vote_response(1, -1, hearsay, 10)
    assert raft.role is RaftRole.UNATTACHED
    raft.on_vote_response(2, -1, hearsay, 10)
    assert (raft.role, raft.leader_id) == (RaftRole.FOLLOWER, 2)


@pytest.mark.parametrize("by_count", [False, True])
def test_entries_of_earlier_epochs_are_not_committed_by_count(by_count: bool) -> None:
    chain = EpochChain()
    chain.extend(Entry(base_offset=at, count=1, epoch=2, payload=b"x") for at in range(2))
    raft = Raft(
        node_id=0,
        voters=(0, 1, 2),
        state=QuorumState(epoch=3),
        chain=chain,
        draw=lambda _: 0,
        rules=RaftRules(commit_old_epoch=by_count),
    )
    raft.start(0)
    for now_ms in (1_000, 1_001):
        sent = [each for each in raft.on_tick(now_ms) if isinstance(each, SendMessage)]
        asked = sent[0].request_id if sent else raft._last_request_id - 1
        yes = RaftVoteResponse(leader_epoch=raft.epoch, leader_id=None, vote_granted=True)
        raft.on_vote_response(1, asked, yes, now_ms)
    assert raft.is_leader
    fetch = RaftFetchRequest(
        current_leader_epoch=4,
        replica_id=1,
        fetch_offset=2,
        last_fetched_epoch=2,
        known_high_watermark=0,
    )
    raft.on_fetch(fetch, 1, 1_002)
    assert raft.high_watermark == (2 if by_count else 0)
    raft.on_flushed(0, 3, 1_003)
    raft.on_fetch(replace(fetch, fetch_offset=3, last_fetched_epoch=4), 2, 1_004)
    assert raft.high_watermark == 3


def test_a_leader_without_fetches_of_a_majority_resigns() -> None:
    cluster = elected_cluster()
    raft = cluster.raft(0)
    began_ms = cluster.now_ms
    deadline_ms = began_ms + TIMEOUTS.fetch_ms * 3 // 2
    assert raft.on_tick(deadline_ms - 1) is not None
    assert raft.is_leader
    assert LoseLeadership(1, ()) in raft.on_tick(deadline_ms)
    assert raft.role is RaftRole.RESIGNED


def test_one_fetching_follower_of_two_keeps_the_leader() -> None:
    cluster = elected_cluster()
    raft = cluster.raft(0)
    later_ms = cluster.now_ms + TIMEOUTS.fetch_ms
    fetch = RaftFetchRequest(
        current_leader_epoch=1,
        replica_id=1,
        fetch_offset=1,
        last_fetched_epoch=1,
        known_high_watermark=1,
    )
    raft.on_fetch(fetch, 900, later_ms)
    raft.on_tick(cluster.now_ms + TIMEOUTS.fetch_ms * 3 // 2)
    assert raft.is_leader


def test_a_follower_with_a_leader_refuses_pre_votes() -> None:
    cluster = elected_cluster()
    effects = cluster.raft(1).on_vote_request(
        _vote(epoch=1, pre_vote=True), 900, cluster.now_ms + 100
    )
    assert effects == [
        Reply(900, RaftVoteResponse(leader_epoch=1, leader_id=0, vote_granted=False))
    ]


@pytest.mark.parametrize(
    ("last_epoch", "last_offset", "granted"), [(1, 1, True), (1, 0, False), (0, 9, False)]
)
def test_a_vote_goes_only_to_an_up_to_date_log(
    last_epoch: int, last_offset: int, granted: bool
) -> None:
    cluster = elected_cluster()
    request = _vote(epoch=2, last_epoch=last_epoch, last_offset=last_offset)
    effects = cluster.raft(1).on_vote_request(request, 900, cluster.now_ms)
    assert effects[-1] == Reply(
        900, RaftVoteResponse(leader_epoch=2, leader_id=None, vote_granted=granted)
    )


def test_a_voter_votes_once_per_epoch_even_after_a_restart() -> None:
    cluster = elected_cluster()
    cluster.perform(1, cluster.raft(1).on_vote_request(_vote(epoch=2), 900, 0)[:-1])
    cluster.restart(1)
    rival = replace(_vote(epoch=2), candidate_id=0)
    effects = cluster.raft(1).on_vote_request(rival, 901, 0)
    assert effects[-1] == Reply(
        901, RaftVoteResponse(leader_epoch=2, leader_id=None, vote_granted=False)
    )


def test_a_fetch_waits_for_new_entries() -> None:
    cluster = elected_cluster()
    assert not cluster.mail, "both followers wait at the leader"
    cluster.append(0, b"x")
    assert [each.receiver for each in cluster.mail] == [1, 2]
    cluster.settle()
    cluster.tick(0, cluster.now_ms + TIMEOUTS.wait_ms)
    assert [each.receiver for each in cluster.mail] == [1, 2]


def test_entries_with_a_gap_are_dropped_and_reported() -> None:
    cluster = elected_cluster()
    cluster.append(0, b"x")
    mail = next(each for each in cluster.mail if each.receiver == 1)
    gap = Entry(base_offset=7, count=1, epoch=1, payload=b"x")
    response = RaftFetchResponse(leader_epoch=1, leader_id=0, high_watermark=1, entries=(gap,))
    effects = cluster.raft(1).on_fetched(0, mail.request_id, response, cluster.now_ms)
    assert [type(each) for each in effects] == [Complain]
    assert cluster.raft(1).end_offset == 1


def test_a_replica_halts_rather_than_truncate_committed_entries() -> None:
    cluster = elected_cluster()
    cluster.append(0, b"x")
    mail = next(each for each in cluster.mail if each.receiver == 1)
    parting = RaftFetchResponse(
        leader_epoch=1, leader_id=0, high_watermark=1, diverging_epoch=Diverging(0, 0)
    )
    (effect,) = cluster.raft(1).on_fetched(0, mail.request_id, parting, cluster.now_ms)
    assert isinstance(effect, StopReplica)
    assert "everything before offset 1 is committed" in effect.reason


def test_a_second_response_is_ignored() -> None:
    cluster = elected_cluster()
    cluster.append(0, b"x")
    mail = next(each for each in cluster.mail if each.receiver == 1)
    cluster.settle()
    parting = RaftFetchResponse(
        leader_epoch=1, leader_id=0, high_watermark=1, diverging_epoch=Diverging(0, 0)
    )
    assert cluster.raft(1).on_fetched(0, mail.request_id, parting, cluster.now_ms) == []


def test_a_wiped_voter_does_not_vote_before_it_has_rejoined() -> None:
    cluster = elected_cluster()
    cluster.append(0, b"x")
    cluster.settle()
    member = cluster.members[1]
    member.state = QuorumState(rejoin_id=77)
    member.synced.clear()
    cluster.restart(1)
    raft = cluster.raft(1)
    effects = raft.on_vote_request(_vote(epoch=9, candidate_id=2, last_epoch=9), 900, 0)
    assert effects[-1] == Reply(
        900, RaftVoteResponse(leader_epoch=9, leader_id=None, vote_granted=False)
    )


def test_a_wiped_voter_rejoins_once_a_new_entry_is_committed() -> None:
    cluster = elected_cluster()
    cluster.append(0, b"x")
    cluster.settle()
    member = cluster.members[1]
    member.state = QuorumState(rejoin_id=77)
    member.synced.clear()
    cluster.restart(1)
    cluster.lose(2)
    end_offset = cluster.raft(0).end_offset
    for _ in range(3):
        cluster.tick(0, cluster.now_ms + 500)
        cluster.tick(1, cluster.now_ms + 500)
        cluster.settle(2)
    raft = cluster.raft(1)
    assert cluster.raft(0).end_offset == end_offset + 1, "an entry was written since"
    assert (cluster.raft(0).high_watermark, raft.is_rejoining) == (end_offset, True)
    cluster.tick(2, cluster.now_ms + 500)
    for _ in range(3):
        cluster.settle()
        cluster.tick(0, cluster.now_ms + 500)
    assert not raft.is_rejoining
    assert cluster.members[1].state.voted_id == 0, "no vote in an epoch in which it may have voted"


@pytest.mark.parametrize("lax", [False, True])
def test_a_node_that_is_not_a_voter_cannot_rejoin(lax: bool) -> None:
    """It takes itself for a voter: once in, it could form a majority with other such nodes."""
    cluster = Cluster(1, rules=RaftRules(lets_anybody_in=lax))
    cluster.settle()
    leader = cluster.raft(0)
    asked = RaftFetchRequest(
        current_leader_epoch=1,
        replica_id=7,
        fetch_offset=0,
        last_fetched_epoch=0,
        known_high_watermark=0,
        rejoin_id=77,
    )
    effects = leader.on_fetch(asked, 900, 0)
    for flush in [each for each in effects if isinstance(each, FlushLog)]:
        leader.on_flushed(flush.generation, flush.end_offset, 0)
    effects = leader.on_fetch(
        replace(asked, fetch_offset=leader.end_offset, last_fetched_epoch=1), 901, 0
    )
    reply = [each.response.rejoined for each in effects if isinstance(each, ReplyEntries)]
    assert reply == [lax]


def test_only_committed_entries_can_be_trimmed() -> None:
    cluster = elected_cluster()
    assert cluster.raft(0).trim(RaftSnapshotId(2, 1)) == []
    assert cluster.raft(0).trim(RaftSnapshotId(1, 1)) != []
    assert cluster.raft(0).trim(RaftSnapshotId(1, 1)) == []


def _vote(
    *,
    epoch: int,
    candidate_id: int = 2,
    last_epoch: int = 1,
    last_offset: int = 9,
    pre_vote: bool = False,
) -> RaftVoteRequest:
    return RaftVoteRequest(
        candidate_epoch=epoch,
        candidate_id=candidate_id,
        last_offset_epoch=last_epoch,
        last_offset=last_offset,
        pre_vote=pre_vote,
    )
