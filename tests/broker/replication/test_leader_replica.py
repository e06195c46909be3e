"""The leader's side of a partition: one test for each rule that a random search may miss."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.replication.leader_replica import Leader
from streamlog.broker.replication.replica_sessions import wait_ms_max
from streamlog.broker.replication.replica_state import (
    CORRECT,
    Acknowledge,
    AdvanceHighWatermark,
    BrokerIdentity,
    Diverging,
    Effect,
    MirrorOf,
    ProposeIsr,
    RefuseAcknowledgement,
    ReplicaError,
    ReplicaFetch,
    ReplicaLog,
    ReplicaRules,
    ReplicaSettings,
    ReplicaState,
    Serve,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.replace import replace
from tests.broker.replication.epoch_list import EpochList

LAG_MS = 1000
BROKERS = {0: 10, 1: 11, 2: 12}


def new_leader(
    *,
    epochs: tuple[tuple[int, int], ...] = ((3, 0),),
    end: int = 10,
    flushed: int | None = None,
    high_watermark: int = 0,
    epoch: int = 5,
    isr: tuple[int, ...] = (0, 1, 2),
    min_insync: int = 2,
    rules: ReplicaRules = CORRECT,
    mirror_of: MirrorOf | None = None,
    lag_ms: int = LAG_MS,
) -> Leader:
    log = ReplicaLog(
        epochs=EpochList(epochs),
        start_offset=0,
        end_offset=end,
        flushed_offset=end if flushed is None else flushed,
        high_watermark=high_watermark,
    )
    state = ReplicaState(
        leader=0,
        leader_epoch=epoch,
        partition_epoch=7,
        replicas=(0, 1, 2),
        isr=isr,
        mirror_of=mirror_of,
    )
    settings = ReplicaSettings(lag_max_ms=lag_ms, min_insync=min_insync)
    identity = BrokerIdentity(0, BROKERS[0])
    return Leader(identity, log, state, brokers=BROKERS, settings=settings, now_ms=0, rules=rules)


def fetch(
    broker: int,
    offset: int,
    *,
    epoch: int = 5,
    last_epoch: int = 3,
    broker_epoch: int | None = None,
) -> ReplicaFetch:
    return ReplicaFetch(
        broker=broker,
        broker_epoch=BROKERS[broker] if broker_epoch is None else broker_epoch,
        leader_epoch=epoch,
        offset=offset,
        last_epoch=last_epoch,
        log_start=0,
    )


def test_the_high_watermark_is_the_lowest_end_in_sync() -> None:
    leader = new_leader()
    assert leader.on_fetch(fetch(1, 10), 1) == (Serve(0, 0), [])
    answer, effects = leader.on_fetch(fetch(2, 8), 2)
    assert answer == Serve(8, 0)
    assert effects == [AdvanceHighWatermark(8)]


def test_the_high_watermark_stops_at_the_leaders_synced_offset() -> None:
    leader = new_leader(flushed=9)
    leader.on_fetch(fetch(1, 10), 1)
    assert leader.on_fetch(fetch(2, 10), 1)[1] == [AdvanceHighWatermark(9)]


def test_a_follower_of_a_session_lags_from_its_last_request_on() -> None:
    def after_a_minute(*, asked_ms: int | None) -> list[Effect]:
        leader = new_leader()
        for broker in (1, 2):
            leader.on_fetch(fetch(broker, 10), 1)
            if asked_ms is not None:
                leader.on_unchanged(broker, asked_ms)
        leader.on_appended(11)
        return leader.on_tick(60 * LAG_MS)

    assert after_a_minute(asked_ms=60 * LAG_MS - 1) == []
    (proposal,) = after_a_minute(asked_ms=None)
    assert isinstance(proposal, ProposeIsr)
    assert [broker for broker, _ in proposal.isr] == [0]


@given(
    lag_ms=st.integers(8, 1 << 31),
    wait_ms=st.integers(0, 1 << 31),
    stories=st.lists(
        st.tuples(st.integers(0, 9), *[st.fractions(0, 1)] * 4), min_size=1, max_size=4
    ),
)
def test_no_waiting_request_makes_a_follower_lag(
    lag_ms: int, wait_ms: int, stories: list[tuple[int, Fraction, Fraction, Fraction, Fraction]]
) -> None:
    """A follower takes up to a quarter of the time to ask again, and up to half to confirm."""
    leader = new_leader(isr=(0, 1), lag_ms=lag_ms)
    now_ms, end = 0, 10
    for idle_requests, pause, appended, confirmed, look in stories:
        leader.on_fetch(fetch(1, end), now_ms)
        silent_ms = min(wait_ms, wait_ms_max(lag_ms)) + int(pause * (lag_ms // 4))
        asked_ms = now_ms + idle_requests * silent_ms
        appended_ms = asked_ms + int(appended * silent_ms)
        assert leader.on_tick(appended_ms) == []
        leader.on_unchanged(1, asked_ms)
        end += 1
        leader.on_appended(end)
        now_ms = appended_ms + int(confirmed * (lag_ms // 2))
        assert leader.on_tick(appended_ms + int(look * (now_ms - appended_ms))) == []


def test_a_request_of_a_follower_that_is_behind_does_not_count_as_caught_up() -> None:
    leader = new_leader()
    leader.on_fetch(fetch(1, 10), 1)
    leader.on_fetch(fetch(2, 8), 1)
    for broker in (1, 2):
        leader.on_unchanged(broker, 60 * LAG_MS)
    leader.on_appended(11)
    (proposal,) = leader.on_tick(60 * LAG_MS)
    assert isinstance(proposal, ProposeIsr)
    assert [broker for broker, _ in proposal.isr] == [0, 1]


def test_a_late_fetch_of_an_earlier_epoch_is_fenced() -> None:
    # 1. F has 10 records and fetches from L, the leader of epoch 3, at offset 10. It is late.
    # 2. X leads epoch 4, appends nothing, and F truncates its log to 8.
    # 3. L, which still has 10, leads epoch 5. The fetch arrives with L's last epoch, 3.
    late = fetch(1, 10, epoch=3)
    leader = new_leader()
    leader.on_fetch(fetch(2, 10), 1)
    assert leader.on_fetch(late, 1) == (ReplicaError(ErrorCode.FENCED_LEADER_EPOCH, 0), [])
    planted = new_leader(rules=ReplicaRules(ignores_leader_epochs=True))
    planted.on_fetch(fetch(2, 10), 1)
    assert planted.on_fetch(late, 1)[1] == [AdvanceHighWatermark(10)]


def test_a_fetch_that_a_newer_one_has_overtaken_confirms_nothing() -> None:
    """Life 4555 of the simulation: the follower of a mirror had cut what its late fetch named."""
    leader = new_leader()
    late, newer = (replace(fetch(1, at), number=n) for at, n in ((10, 5), (6, 7)))
    assert leader.on_fetch(newer, 1) == (Serve(0, 0), [])
    refusal = ReplicaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert leader.on_fetch(late, 1) == (refusal, [])
    assert leader.follower_lag()[1] == 4
    # Another process counts anew, and a repeated fetch is answered again.
    other = replace(late, broker_epoch=BROKERS[1] + 1, number=1)
    for _ in range(2):
        assert leader.on_fetch(other, 1) == (Serve(0, 0), [])


def test_an_overtaken_fetch_is_refused_though_the_newer_one_has_diverged() -> None:
    leader = new_leader()
    newer = replace(fetch(1, 12), number=7)
    assert isinstance(leader.on_fetch(newer, 1)[0], Diverging)
    late = replace(fetch(1, 10), number=5)
    assert leader.on_fetch(late, 1) == (ReplicaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0), [])


def test_a_fetch_that_has_diverged_confirms_nothing_when_it_comes_again() -> None:
    """Life 5723 of the simulation: a mirror's leader had got what the follower was to cut."""
    leader = new_leader(end=10)
    first = replace(fetch(1, 12), number=7)
    assert isinstance(leader.on_fetch(first, 1)[0], Diverging)
    leader.on_appended(14)
    assert leader.on_fetch(first, 1) == (ReplicaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0), [])
    assert leader.on_fetch(replace(first, number=8), 1) == (Serve(0, 0), [])


def test_followers_of_a_mirror_count_anew_after_a_cut() -> None:
    leader = new_leader()
    for follower in (1, 2):
        leader.on_fetch(fetch(follower, 10), 1)
    assert leader.follower_lag() == {1: 0, 2: 0}
    leader.on_cut(6)
    # What they had may be what was cut: nothing of it counts before they fetch again.
    assert leader.follower_lag() == {1: 10, 2: 10}


def test_a_mirror_that_begins_alone_admits_others_once_its_source_has_answered() -> None:
    """Life 753 of the simulation: the leader asked for an epoch alone again and again."""
    source = MirrorOf(link_id=bytes(16), topic="t", topic_id=bytes(16))
    leader = new_leader(isr=(0,), mirror_of=source)
    assert leader.on_fetch(fetch(1, 10), LAG_MS - 1)[1] == []
    assert leader.is_alone
    leader.admit_others()
    assert leader.on_fetch(fetch(1, 10), LAG_MS - 1)[1] != []
    # A source that is lost must not keep the partition without replicas.
    silent = new_leader(isr=(0,), mirror_of=source)
    assert silent.on_fetch(fetch(1, 10), LAG_MS)[1] != []
    # Others wait for nothing.
    assert new_leader(isr=(0,)).on_fetch(fetch(1, 10), 1)[1] != []
    assert new_leader(isr=(0, 2), mirror_of=source).on_fetch(fetch(1, 10), 1)[1] != []


def test_a_fetch_of_a_later_epoch_is_refused() -> None:
    answer, _ = new_leader().on_fetch(fetch(1, 10, epoch=6), 1)
    assert answer == ReplicaError(ErrorCode.UNKNOWN_LEADER_EPOCH, 0)


def test_a_fetch_of_an_earlier_broker_epoch_is_refused() -> None:
    old = fetch(1, 10, broker_epoch=9)
    leader = new_leader(isr=(0, 2))
    assert leader.on_fetch(old, 1) == (ReplicaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0), [])
    planted = new_leader(isr=(0, 2), rules=ReplicaRules(ignores_broker_epochs=True))
    assert planted.on_fetch(old, 1)[1][0] == ProposeIsr(1, 5, 7, ((0, 10), (1, 9), (2, -1)))


def test_a_fenced_broker_does_not_join_the_isr() -> None:
    leader = new_leader(isr=(0, 2))
    leader._brokers = {0: 10, 2: 12}
    assert leader.on_fetch(fetch(1, 10), 1) == (Serve(0, 0), [])


def test_divergence_compares_the_epoch_and_its_end() -> None:
    leader = new_leader(epochs=((3, 0), (5, 6)), end=10)
    assert leader.on_fetch(fetch(1, 8, last_epoch=3), 1)[0] == Diverging(3, 6)
    assert leader.on_fetch(fetch(1, 6, last_epoch=4), 1)[0] == Diverging(3, 6)
    assert leader.on_fetch(fetch(1, 6, last_epoch=3), 1)[0] == Serve(0, 0)
    assert leader.on_fetch(fetch(1, 12, last_epoch=5), 1)[0] == Diverging(5, 10)
    only_ends = new_leader(epochs=((3, 0), (5, 6)), rules=ReplicaRules(compares_ends_only=True))
    assert only_ends.on_fetch(fetch(1, 6, last_epoch=4), 1)[0] == Serve(0, 0)


def test_too_few_in_sync_replicas_commit_nothing() -> None:
    leader = new_leader(isr=(0,))
    assert leader.is_under_min_isr
    assert leader.on_flushed() == []
    assert new_leader(isr=(0,), min_insync=1).on_flushed() == [AdvanceHighWatermark(10)]
    planted = new_leader(isr=(0,), rules=ReplicaRules(ignores_min_insync_in_commits=True))
    assert planted.on_flushed() == [AdvanceHighWatermark(10)]


def test_too_few_in_sync_replicas_after_an_append_refuse_it() -> None:
    leader = new_leader(isr=(0,), high_watermark=10)
    assert leader.wait(1, 10) == [RefuseAcknowledgement(1)]
    planted = new_leader(
        isr=(0,), high_watermark=10, rules=ReplicaRules(ignores_min_insync_in_answers=True)
    )
    assert planted.wait(1, 10) == [Acknowledge(1)]


def test_min_insync_is_capped_at_the_number_of_replicas() -> None:
    assert new_leader(min_insync=5).min_insync == 3


def test_acknowledgements_go_out_once_and_in_order() -> None:
    leader = new_leader()
    assert leader.wait(1, 9) == leader.wait(2, 8) == leader.wait(3, 10) == leader.wait(4, 8) == []
    leader.cancel(4)
    leader.on_fetch(fetch(1, 9), 1)
    _, effects = leader.on_fetch(fetch(2, 9), 1)
    assert effects == [AdvanceHighWatermark(9), Acknowledge(2), Acknowledge(1)]
    assert leader.take_tickets() == (3,)


def test_a_smaller_isr_counts_once_it_is_confirmed() -> None:
    leader = new_leader()
    leader.on_fetch(fetch(1, 10), 10)
    (proposal,) = leader.on_tick(LAG_MS + 5)
    assert proposal == ProposeIsr(1, 5, 7, ((0, 10), (1, 11)))
    assert leader.on_flushed() == []
    answer = {"leader_epoch": 5, "partition_epoch": 8, "isr": frozenset({0, 1})}
    assert leader.on_isr_answer(1, ErrorCode.NONE, **answer) == [AdvanceHighWatermark(10)]


def test_a_larger_isr_counts_at_once() -> None:
    leader = new_leader(isr=(0, 1), epochs=((3, 0),), end=10, high_watermark=8)
    leader.on_fetch(fetch(1, 8), 1)
    _, effects = leader.on_fetch(fetch(2, 10), 1)
    assert effects == [ProposeIsr(1, 5, 7, ((0, 10), (1, 11), (2, 12)))]
    leader.on_appended(12)
    leader._log.flushed_offset = 12
    _, effects = leader.on_fetch(fetch(1, 12), 1)
    assert effects == [AdvanceHighWatermark(10)]


def test_a_replica_below_the_epoch_start_does_not_join_the_isr() -> None:
    leader = new_leader(isr=(0, 1), high_watermark=5)
    assert leader.on_fetch(fetch(2, 9), 1)[1] == []
    assert leader.on_fetch(fetch(2, 10), 1)[1] != []
    # Offset 9 may be committed: the earlier leader may have had a higher high watermark.
    planted = new_leader(
        isr=(0, 1), high_watermark=5, rules=ReplicaRules(joins_before_epoch_start=True)
    )
    (joined,) = planted.on_fetch(fetch(2, 9), 1)[1]
    assert isinstance(joined, ProposeIsr)
    assert {broker for broker, _ in joined.isr} == {0, 1, 2}


@pytest.mark.parametrize(
    ("code", "stays"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, False),
        (ErrorCode.FENCED_LEADER_EPOCH, True),
        (ErrorCode.INVALID_UPDATE_VERSION, True),
        (ErrorCode.UNKNOWN_TOPIC_ID, True),
    ],
)
def test_a_refused_proposal_stays_pending_unless_it_changed_nothing(code: int, stays: bool) -> None:
    leader = new_leader(isr=(0, 1))
    leader.on_fetch(fetch(2, 10), 1)
    leader.on_isr_answer(1, code, leader_epoch=5, partition_epoch=7, isr=frozenset())
    assert leader.is_isr_pending == stays


def test_a_follower_just_behind_a_busy_leader_stays_in_sync() -> None:
    leader = new_leader(end=100)
    for now_ms in range(0, 5 * LAG_MS, 100):
        end = 100 + now_ms
        leader.on_appended(end)
        leader.on_fetch(fetch(1, max(end - 100, 100)), now_ms)
        leader.on_fetch(fetch(2, max(end - 100, 100)), now_ms)
        assert leader.on_tick(now_ms) == []


def test_the_offset_is_known_once_earlier_commits_are() -> None:
    leader = new_leader(high_watermark=4)
    assert not leader.is_offset_known
    leader.on_fetch(fetch(1, 10), 1)
    leader.on_fetch(fetch(2, 10), 1)
    assert leader.is_offset_known


def test_the_nearest_replica_is_in_sync_and_furthest_ahead() -> None:
    leader = new_leader(end=10, high_watermark=4)
    for broker, end in ((1, 6), (2, 8)):
        leader.on_fetch(fetch(broker, end), now_ms=1)
    assert leader.nearest([1, 2], 5) == 2
    assert leader.nearest([1], 5) == 1
    assert leader.nearest([1], 7) is None, "the reader would have to wait"
    assert leader.nearest([0, 7], 5) is None, "neither the leader nor an unknown broker"
    leader.on_fetch(fetch(1, 8), now_ms=1)
    assert leader.nearest([1, 2], 5) == 1, "equal replicas: always the first"
    outside = new_leader(end=10, isr=(0, 1))
    outside.on_fetch(fetch(2, 8), now_ms=1)
    assert outside.nearest([1, 2], 5) is None, "out of sync"
